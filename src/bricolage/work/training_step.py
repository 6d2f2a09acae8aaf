"""A training step as a graph: its operators in the order in which they run, when memory is taken and given back, and when gradients
are complete.

It knows no framework; `frontends/torch_training.py` makes it from PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from bricolage.work.liveness import Lifetime, alive, curve
from bricolage.work.work_graph import WorkGraph

Phase: TypeAlias = Literal["forward", "backward", "recompute", "update"]
Kind: TypeAlias = Literal["weights", "optimiser state", "inputs", "gradients", "activations", "temporary"]
OUTSIDE = -1
"""Born before the step."""


@dataclass(frozen=True)
class Storage:
    """A piece of memory: its bytes, the operators before which it is there and after which it is gone. None: it stays."""

    bytes: int
    born: int
    """Number of the operator that makes it, or `OUTSIDE`."""
    freed: int | None
    """Number of the operator before which it is given back."""
    kind: Kind
    layer: str = ""
    """Path of the module that makes it."""

    @property
    def lifetime(self) -> Lifetime:
        """From which operator of the step on, before which."""
        return Lifetime(self.bytes, max(self.born, 0), math.inf if self.freed is None else self.freed)


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter and the operator after which it is complete."""

    parameter: str
    bytes: int
    ready: int


@dataclass(frozen=True)
class StepGraph:
    """A training step. Operators are numbered in the order in which they run; everything by operator has their length."""

    work: WorkGraph
    phases: tuple[Phase, ...]
    layers: tuple[str, ...]
    """Paths of modules; "" for what belongs to none, as the loss."""
    signatures: tuple[str, ...]
    """Operator, shapes, types and integers: two calls with one signature take the same time."""
    storages: tuple[Storage, ...] = field(repr=False)
    gradients: tuple[Gradient, ...] = field(repr=False)
    """In the order in which they are complete."""

    def memory(self) -> list[tuple[int, int]]:
        """Bytes that are taken from each operator on at which that changes, what it makes included."""
        return [
            (int(at), size) for at, size in curve(storage.lifetime for storage in self.storages) if at < len(self.work)
        ]

    def kinds(self, operator: int) -> dict[Kind, int]:
        """Bytes that are taken while an operator runs, by what they are."""
        return alive(((storage.kind, storage.lifetime) for storage in self.storages), operator)

    def peak(self) -> int:
        """Bytes at most."""
        return max((size for _, size in self.memory()), default=0)
