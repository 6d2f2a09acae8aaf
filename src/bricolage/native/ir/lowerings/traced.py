"""A node of the engine with Python's arithmetic, comparison and indexing operators, as the shared lowerings use them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import TypeAlias

import numpy as np

from bricolage.native.ir.lowerings.elementwise import convert_node, raise_to_power
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.views import broadcast_node, pointwise, reshape, scalar, take
from bricolage.native.ir.tensors import FLOATS, INTEGERS, STORED_BYTES, Constant, Node, Shape, numpy_type

_AHEAD: Mapping[str, Callable[..., np.ndarray]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
"""Functions that are computed at once where all inputs are constants: sums of biases, positions, negated slopes."""


def apply(function: str, *inputs: TracedArray | Node, dtype: str | None = None) -> TracedArray:
    """An element-wise function; its inputs have one type, conditions aside."""
    nodes = [x.node if isinstance(x, TracedArray) else x for x in inputs]
    if function in _AHEAD and all(isinstance(node, Constant) for node in nodes):
        array = _AHEAD[function](*(node.array.reshape(node.shape) for node in nodes if isinstance(node, Constant)))
        return TracedArray(Constant(array.shape, nodes[0].dtype, np.ascontiguousarray(array).reshape(array.shape)))
    return TracedArray(pointwise(function, *nodes, dtype=dtype))


Index: TypeAlias = int | slice | EllipsisType


class TracedArray:
    """An array of a shared lowering: a node. Python's numbers take the type of the array that they meet."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""
        return self.node.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.node.shape)

    @property
    def dtype(self) -> str:
        """Element type."""
        return self.node.dtype

    def cast(self, dtype: str) -> TracedArray:
        """With another element type; constants at once."""
        if isinstance(self.node, Constant) and np.isfinite(self.node.array).all():
            array = self.node.array.reshape(self.shape)
            if dtype in INTEGERS and array.dtype.kind not in "iub":
                array = array.astype(
                    np.int64
                )  # what numpy makes of a float that does not fit differs by type and processor
            return TracedArray(Constant(self.shape, dtype, array.astype(numpy_type(dtype))))
        return TracedArray(convert_node(self.node, dtype))

    def reshape(self, shape: tuple[int, ...]) -> TracedArray:
        """One size may be -1."""
        if -1 in shape:
            given_elements = -math.prod(shape)
            shape = tuple(self.node.elements // given_elements if extent == -1 else extent for extent in shape)
        return TracedArray(reshape(self.node, shape))

    def broadcast(self, shape: tuple[int, ...]) -> TracedArray:
        """Broadcast to a shape, as numpy does."""
        return TracedArray(broadcast_node(self.node, shape))

    def __getitem__(self, key: Index | tuple[Index, ...]) -> TracedArray:
        """Whole numbers, slices and an ellipsis."""
        given = key if isinstance(key, tuple) else (key,)
        keys = [subscript for subscript in given if not isinstance(subscript, EllipsisType)]
        if Ellipsis in given:
            at = given.index(Ellipsis)
            keys[at:at] = [slice(None)] * (self.ndim - len(keys))
        keys += [slice(None)] * (self.ndim - len(keys))
        starts, steps, sizes, kept = [], [], [], []
        for subscript, extent in zip(keys, self.shape, strict=True):
            if isinstance(subscript, slice):
                spots = range(extent)[subscript]
                starts.append(spots.start)
                steps.append(spots.step)
                sizes.append(len(spots))
                kept.append(len(spots))
            else:
                starts.append(range(extent)[subscript])
                steps.append(1)
                sizes.append(1)
        return TracedArray(reshape(take(self.node, starts, steps, tuple(sizes)), tuple(kept)))

    # --- arithmetic

    def __add__(self, other: Operand) -> TracedArray:
        return apply("add", *cast_alike(self, other))

    def __radd__(self, other: Operand) -> TracedArray:
        return self if isinstance(other, int) and other == 0 else self + other  # what `sum` starts with

    def __sub__(self, other: Operand) -> TracedArray:
        return apply("sub", *cast_alike(self, other))

    def __rsub__(self, other: Operand) -> TracedArray:
        return apply("sub", *cast_alike(other, self))

    def __mul__(self, other: Operand) -> TracedArray:
        return apply("mul", *cast_alike(self, other))

    __rmul__ = __mul__

    def __truediv__(self, other: Operand) -> TracedArray:
        return _quotient(*cast_alike(self, other))

    def __rtruediv__(self, other: Operand) -> TracedArray:
        return _quotient(*cast_alike(other, self))

    def __mod__(self, other: Operand) -> TracedArray:
        """The sign of the divisor."""
        left, right = cast_alike(self, other)
        if left.dtype in FLOATS:
            raise NoLowering("remainders of floats with the sign of the divisor")
        return apply("modulo", left, right)

    def __pow__(self, exponent: float) -> TracedArray:
        return TracedArray(raise_to_power(self.node, scalar(exponent, self.dtype)))

    def __neg__(self) -> TracedArray:
        return apply("neg", self)

    def __abs__(self) -> TracedArray:
        if self.dtype in FLOATS:
            return apply("abs", self)
        return apply("where", self < 0, -self, self)

    # --- comparison and logic

    def __lt__(self, other: Operand) -> TracedArray:
        return apply("less", *cast_alike(self, other), dtype="bool")

    def __le__(self, other: Operand) -> TracedArray:
        return apply("less_equal", *cast_alike(self, other), dtype="bool")

    def __gt__(self, other: Operand) -> TracedArray:
        return apply("greater", *cast_alike(self, other), dtype="bool")

    def __ge__(self, other: Operand) -> TracedArray:
        return apply("greater_equal", *cast_alike(self, other), dtype="bool")

    def __eq__(self, other: Operand) -> TracedArray:  # type: ignore[override]
        return apply("equal", *cast_alike(self, other), dtype="bool")

    def __ne__(self, other: Operand) -> TracedArray:  # type: ignore[override]
        return ~(self == other)

    def __and__(self, other: Operand) -> TracedArray:
        return apply("and", *cast_alike(self, other))

    def __or__(self, other: Operand) -> TracedArray:
        return apply("or", *cast_alike(self, other))

    def __xor__(self, other: Operand) -> TracedArray:
        return apply("xor", *cast_alike(self, other))

    def __invert__(self) -> TracedArray:
        return apply("not" if self.dtype == "bool" else "bit_not", self)

    def __lshift__(self, other: Operand) -> TracedArray:
        return apply("shift_left", *cast_alike(self, other))


Operand: TypeAlias = TracedArray | float


def _rank(dtype: str) -> tuple[bool, bool, int]:
    """Ascending from the narrower to the wider type."""
    return dtype in FLOATS, dtype != "bool", STORED_BYTES[dtype]


def cast_alike(left: Operand, right: Operand) -> tuple[TracedArray, TracedArray]:
    """Both with one type: that of the array if the other is a number, otherwise the wider one of two integers.

    Raises:
        NoLowering: a float meets an array of integers.
    """
    if not isinstance(left, TracedArray):
        assert isinstance(right, TracedArray)
        return number(left, right.dtype), right
    if not isinstance(right, TracedArray):
        return left, number(right, left.dtype)
    if left.dtype == right.dtype:
        return left, right
    if (left.dtype in FLOATS) != (right.dtype in FLOATS):
        raise NoLowering(f"{left.dtype} together with {right.dtype}")
    wanted = max(left.dtype, right.dtype, key=_rank)
    return left.cast(wanted), right.cast(wanted)


def number(value: float, dtype: str) -> TracedArray:
    """A constant of rank 0."""
    if dtype not in FLOATS and not float(value).is_integer():
        raise NoLowering(f"{value} together with {dtype}")
    if dtype in INTEGERS and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise NoLowering(f"{value} together with {dtype}")
    return TracedArray(scalar(value, dtype))


def _quotient(left: TracedArray, right: TracedArray) -> TracedArray:
    if left.dtype not in FLOATS:
        raise NoLowering("quotients of integers")
    return apply("div", left, right)
