"""What the builder knows about an ONNX value while it writes the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import fx

Size: TypeAlias = int | torch.SymInt | fx.Node
"""A number, or a graph node that yields one at run time."""


@dataclass(frozen=True)
class Const:
    """Known at lowering time: a tensor."""

    tensor: torch.Tensor


@dataclass(frozen=True)
class Sizes:
    """An int64 value made of sizes: each element a number, or a graph node that yields one at run time.

    `rank` is 0 or 1. Keeping sizes out of tensors is what lets dynamic shapes run without a copy to the host and lets
    dynamo trace them as symbolic integers.
    """

    elements: tuple[Size, ...]
    rank: int

    @property
    def literal(self) -> Size | tuple[Size, ...]:
        """As an argument: a number for rank 0, a tuple for rank 1."""
        return self.elements[0] if self.rank == 0 else self.elements


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor that a graph node yields."""

    node: fx.Node


@dataclass(frozen=True)
class AbsentInput:
    """An optional input that is not given."""


Known: TypeAlias = Const | Sizes | DeviceTensor | AbsentInput
MISSING = AbsentInput()
Emitted: TypeAlias = fx.Node | Known | tuple[fx.Node | Known, ...]
"""Results of an operator: of the first output, or one for each output."""
