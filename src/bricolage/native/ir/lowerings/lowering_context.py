"""What a lowering gets: one ONNX operator with its inputs lowered; and the register of lowerings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.lowering.common import AttributeValue
from bricolage.native.ir.tensors import Constant, Node, Shape


class NoLowering(Exception):
    """The engine has no lowering of an operator, or none for these shapes or attributes."""


@dataclass(frozen=True)
class RecurrentBatch:
    """Sequences that one recurrent operator takes together."""

    sequences: int
    steps: int
    directions: int
    weights: int
    """By which a direction multiplies a state."""


BatchDivision = Callable[[RecurrentBatch], int]
"""Into how many parts the sequences fall, each with steps of its own."""


def keep_batch_whole(batch: RecurrentBatch) -> int:  # noqa: ARG001 -- a BatchDivision
    """All sequences in one part."""
    return 1


@dataclass(frozen=True)
class OpContext:
    """One ONNX operator with its inputs lowered. Missing inputs are None."""

    op_type: str
    inputs: tuple[Node | None, ...]
    attributes: Mapping[str, AttributeValue]
    shapes: tuple[Shape, ...]
    """Of the outputs."""
    opset: int
    node: ir.Node
    """The operator itself."""
    divide_batch: BatchDivision = keep_batch_whole

    def get(self, name: str, default: AttributeValue = None) -> AttributeValue:
        """An attribute."""
        return self.attributes.get(name, default)

    def tensor(self, position: int) -> Node:
        """An input that must be there.

        Raises:
            NoLowering: it is missing.
        """
        node = self.inputs[position] if position < len(self.inputs) else None
        if node is None:
            raise NoLowering(f"{self.op_type} without its input {position}")
        return node

    def optional(self, position: int) -> Node | None:
        """An input, or None."""
        return self.inputs[position] if position < len(self.inputs) else None

    def numbers(self, position: int) -> list[int] | None:
        """Values of a constant integer input; None when it is missing.

        Raises:
            NoLowering: it is computed.
        """
        node = self.optional(position)
        if node is None:
            return None
        if not isinstance(node, Constant):
            raise NoLowering(f"{self.op_type} whose input {position} is computed")
        return [int(value) for value in node.array.reshape(-1)]

    def scalar(self, position: int, default: float) -> float:
        """The value of a constant input of one element; `default` when it is missing.

        Raises:
            NoLowering: it is computed, or has more elements.
        """
        node = self.optional(position)
        if node is None:
            return default
        if not isinstance(node, Constant) or node.array.size != 1:
            raise NoLowering(f"{self.op_type} whose input {position} is computed")
        number: float = node.array.reshape(-1)[0].item()  # of integers an integer, which a float may not hold
        return number

    @property
    def shape(self) -> Shape:
        """Of the first output."""
        return self.shapes[0]

    @property
    def empty(self) -> bool:
        """Whether an input has no elements."""
        return any(node is not None and not node.elements for node in self.inputs)


Lowering = Callable[[OpContext], Node | tuple[Node, ...]]
LOWERINGS: dict[str, Lowering] = {}


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a function as the lowering of these operators."""

    def add(function: Lowering) -> Lowering:
        LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return add


def axis_of(op: OpContext, rank: int, default: int) -> int:
    """The attribute `axis`, counted from the front."""
    axis = int(op.get("axis", default))
    return axis + rank if axis < 0 else axis


def pads_of(
    op: OpContext, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    """Padding before each spatial dimension, then behind."""
    auto = op.get("auto_pad", "NOTSET")
    spatial = len(kernel)
    if auto in ("NOTSET", "", b"NOTSET"):
        return list(op.get("pads") or [0] * (2 * spatial))
    if auto == "VALID":
        return [0] * (2 * spatial)
    before, behind = [], []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (k - 1) * dilation + 1 - size)
        small, large = total // 2, total - total // 2
        before.append(large if auto == "SAME_LOWER" else small)
        behind.append(small if auto == "SAME_LOWER" else large)
    return before + behind
