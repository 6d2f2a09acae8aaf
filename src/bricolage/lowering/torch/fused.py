"""PyTorch's own calls for operators: what an emitter writes replaces the portable definition.

An emitter returns graph nodes (or known values), or None to decline, in which case the portable definition runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import fx
from torch.fx.node import Argument

from bricolage.lowering.common import Attributes, AttributeValue, rank_of, static_shape
from bricolage.lowering.torch.arrays import DTYPES
from bricolage.lowering.torch.fx_builder import Builder
from bricolage.lowering.torch.known_values import AbsentInput, Const, Emitted, Known, Size, Sizes


@dataclass(frozen=True)
class NodeView:
    """One node as an emitter sees it."""

    builder: Builder
    node: ir.Node
    inputs: list[Known]
    attributes: Attributes
    opset: int

    def tensor(self, index: int) -> fx.Node | None:
        """Input `index` as a graph node; None when it is not given."""
        return self.builder.tensor(self.inputs[index]) if index < len(self.inputs) else None

    def const(self, index: int) -> torch.Tensor | None:
        """Input `index` as a tensor known now, else None."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        return operand.tensor if isinstance(operand, Const) else None

    def sizes(self, index: int) -> tuple[Size, ...] | None:
        """Input `index` as numbers and size nodes, None when it is not made of them."""
        operand = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(operand, Sizes):
            return operand.elements
        if isinstance(operand, Const):
            return tuple(operand.tensor.reshape(-1).tolist())
        return None

    @property
    def outputs(self) -> int:
        """How many outputs are asked for: trailing ones without readers do not count."""
        used = [i for i, value in enumerate(self.node.outputs) if value.uses() or value.is_graph_output()]
        return max(used, default=0) + 1

    def given(self, index: int) -> bool:
        """Whether input `index` is there."""
        return index < len(self.inputs) and not isinstance(self.inputs[index], AbsentInput)

    def shape(self, index: int) -> tuple[int, ...] | None:
        """Sizes of input `index`; None unless all are known."""
        const = self.const(index)
        return tuple(const.shape) if const is not None else static_shape(self.node.inputs[index])

    def rank(self, index: int) -> int | None:
        """Number of axes of input `index`; None where unknown."""
        const = self.const(index)
        return const.ndim if const is not None else rank_of(self.node.inputs[index])

    def dtype(self, index: int) -> torch.dtype | None:
        """The type in which input `index` is computed, None when unknown."""
        operand = self.inputs[index]
        if isinstance(operand, Const):
            return operand.tensor.dtype
        value = self.node.inputs[index]
        if value is None or value.dtype is None or int(value.dtype) not in DTYPES:
            return None
        return self.builder.xp.dtype(int(value.dtype))

    def is_float(self, index: int) -> bool:
        """Whether input `index` is computed in a floating-point type."""
        dtype = self.dtype(index)
        return dtype is not None and bool(dtype.is_floating_point)

    def get(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """An attribute's value."""
        return self.attributes.get(name, default)

    def axis(self, default: int, rank: int | None) -> int | None:
        """The `axis` attribute counted from the front; None when the rank is unknown and it is negative."""
        axis = self.get("axis", default)
        if axis >= 0:
            return int(axis)
        return None if rank is None else int(axis) + rank

    def scalar(self, index: int) -> int | float | None:
        """A constant of one element that broadcasts like a number, as a number."""
        const = self.const(index)
        if const is None or const.numel() != 1 or const.dtype is torch.bool or const.is_complex():
            return None
        others = [self.rank(i) for i in range(len(self.inputs)) if i != index]
        if const.ndim and any(r is None or r < const.ndim for r in others):
            return None
        return const.reshape(()).item()

    def call(self, function: Callable[..., object], *args: Argument, **kwargs: Argument) -> fx.Node:
        """Writes the call of a function."""
        return self.builder.call(function, args, kwargs)


Emitter = Callable[[NodeView], Emitted | None]
EMITTERS: dict[str, Emitter] = {}


def emitter(*names: str) -> Callable[[Emitter], Emitter]:
    """Registers a function as the emitter of operators of these types."""

    def register(function: Emitter) -> Emitter:
        for name in names:
            EMITTERS[name] = function
        return function

    return register


__all__ = ["EMITTERS", "NodeView", "emitter"]
