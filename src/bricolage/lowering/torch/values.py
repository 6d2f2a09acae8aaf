"""What the builder knows about an ONNX value while it writes the graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Const:
    """Known at lowering time: a tensor."""

    tensor: Any


@dataclass(frozen=True)
class Sizes:
    """An int64 value made of sizes: each element a number, or a graph node that yields one at run time.

    `rank` is 0 or 1. Keeping sizes out of tensors is what lets dynamic shapes run without a copy to the host and lets
    dynamo trace them as symbolic integers.
    """

    elements: tuple[Any, ...]
    rank: int

    @property
    def literal(self) -> Any:
        """As an argument: a number for rank 0, a tuple for rank 1."""
        return self.elements[0] if self.rank == 0 else self.elements


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor that a graph node yields."""

    node: Any


@dataclass(frozen=True)
class AbsentInput:
    """An optional input that is not given."""


Known = Const | Sizes | DeviceTensor | AbsentInput
MISSING = AbsentInput()
