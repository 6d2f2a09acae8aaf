"""Exact products of the bytes that dequantised tensors are made of.

With a = s_a (A - z_a) and w = s_w (W - z_w), of k terms, and W' = W - z_w where that is a byte with a sign:

    Σ a·w = s_a s_w Σ (A - z_a) W',    Σ (A - z_a) W' = Σ A·W' - z_a ΣW'

so that a product of float32 is one of bytes, exact in int32, less a constant for each column, times a scale (Jacob et al.,
"Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018). Where W - z_w is no byte
with a sign, W' is what it is less a shift d of its column, and d·ΣA is added: the sums ΣA are a product with a column of ones.

Kernels take bytes without a sign on the left. A byte with a sign is kept as itself plus 128, with a zero point that is 128 more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Constant, DequantisedConstant, Node, Pointwise, View

MOST_TERMS = (2**31 - 1) // (255 * 255)
"""Of a sum that int32 holds, whatever the bytes and their zero points are."""
_HALF = 128
"""What a byte with a sign is more as one without."""


@dataclass(frozen=True)
class Dequantised:
    """A tensor of numbers that are given as bytes without a sign: (integers - zero) · scale."""

    integers: Node
    """uint8."""
    zero: int
    """From 0 to 255."""
    scale: Node
    """float32, one element."""

    @property
    def positive(self) -> bool:
        """Whether larger bytes mean larger numbers."""
        return isinstance(self.scale, Constant) and bool((self.scale.array > 0).all())


def match_dequantised(node: Node) -> Dequantised | None:
    """What a tensor is made of, if it is dequantised bytes with one scale and a known zero point, or a view of such."""
    views: list[View] = []
    while isinstance(node, View):
        views.append(node)
        node = node.source
    if not isinstance(node, Pointwise) or node.function != "dequantise":
        return None
    integers, zero, scale = node.inputs
    if not isinstance(zero, Constant) or zero.elements != 1 or scale.elements != 1:
        return None
    if integers.dtype not in ("uint8", "int8") or any(view.guard is not None and view.fill for view in views):
        return None
    point = int(zero.array.reshape(-1)[0]) + (_HALF if integers.dtype == "int8" else 0)
    byte_node = shift_to_unsigned(integers)
    for view in reversed(views):
        byte_node = View(view.shape, "uint8", byte_node, view.mapping, view.guard, point, view.inverse)
    return Dequantised(byte_node, point, scale)


def numbers_of(integers: Node, zero: Node | int, scale: Node) -> Node:
    """(integers - zero) · scale."""
    point = Constant((), "float32", np.asarray(zero, np.float32)) if isinstance(zero, int) else zero
    return Pointwise(integers.shape, "float32", "dequantise", (integers, point, scale))


def shift_to_unsigned(integers: Node) -> Node:
    """Bytes without a sign: those with one plus 128."""
    if integers.dtype == "uint8":
        return integers
    if isinstance(integers, Pointwise) and integers.function == "flip_sign":
        return integers.inputs[0]
    if isinstance(integers, Constant):
        array = (integers.array.astype(np.int16) + _HALF).astype(np.uint8)
        return Constant(integers.shape, "uint8", array)
    return Pointwise(integers.shape, "uint8", "flip_sign", (integers,))


def shift_to_signed(integers: Node) -> Node:
    """The bytes with a sign, 128 less than those without."""
    return Pointwise(integers.shape, "int8", "flip_sign", (integers,))


@dataclass(frozen=True)
class ByteWeights:
    """The right side of a product, its columns along one axis: W - z_w = integers + shifts."""

    integers: np.ndarray
    """int8."""
    shifts: np.ndarray | None
    """int32, one for each column, where the difference is no byte with a sign."""
    axis: int

    @staticmethod
    def of(integers: np.ndarray, zeros: np.ndarray, axis: int) -> ByteWeights | None:
        """Of bytes with their zero points, which broadcast to their shape; None where these differ within a column."""
        rest = tuple(i for i in range(integers.ndim) if i != axis)
        if any(zeros.shape[i] != 1 for i in rest):
            return None
        centred = integers.astype(np.int32) - zeros
        if centred.min(initial=0) >= -128 and centred.max(initial=0) <= 127:
            return ByteWeights(centred.astype(np.int8), None, axis)
        lower = 0 if integers.dtype == np.int8 else _HALF
        shifts = np.broadcast_to(lower - zeros.reshape(-1), (integers.shape[axis],)).astype(np.int32)
        return ByteWeights((integers.astype(np.int32) - lower).astype(np.int8), shifts, axis)

    @property
    def constant(self) -> Constant:
        """As a node."""
        return Constant(self.integers.shape, "int8", np.ascontiguousarray(self.integers))

    @property
    def sums(self) -> np.ndarray:
        """ΣW - z_w of each column, int32."""
        rest = tuple(i for i in range(self.integers.ndim) if i != self.axis)
        column_sums = np.asarray(self.integers.sum(axis=rest, dtype=np.int32))
        return column_sums if self.shifts is None else column_sums + self.shifts * np.int32(self.terms)

    @property
    def terms(self) -> int:
        """That a sum has."""
        return math.prod(size for i, size in enumerate(self.integers.shape) if i != self.axis)


def weights_of(node: Node, axis: int) -> tuple[ByteWeights, np.ndarray] | None:
    """A constant that a file gives as bytes as the right side of an exact product, and the scales of its columns; None where it is
    no such constant, or its scales differ within a column, or the sums may be too long."""
    if not isinstance(node, DequantisedConstant) or node.integers.dtype not in (np.int8, np.uint8):
        return None
    if any(extent != 1 for i, extent in enumerate(node.scales.shape) if i != axis):
        return None
    byte_weights = ByteWeights.of(node.integers, node.zeros, axis)
    if byte_weights is None or not 0 < byte_weights.terms <= MOST_TERMS:
        return None
    return byte_weights, np.broadcast_to(node.scales.reshape(-1), (node.shape[axis],))


def exact(
    multiplied: Callable[[Node, Constant], Node], left: Node, zero: Node | int, right: ByteWeights, tail: int = 0
) -> Node:
    """Σ (A - zero) · (W - z_w) in int32.

    Args:
        multiplied: the product of the uint8 tensor with constant int8 weights, in int32.
        zero: one number, or a tensor of int32 that broadcasts to the product.
        tail: dimensions of the product behind that of its columns.
    """
    column = (-1, *(1,) * tail)
    total = multiplied(left, right.constant)
    if right.shifts is not None:
        shape = list(right.integers.shape)
        shape[right.axis] = 1
        ones = Constant(tuple(shape), "int8", np.ones(shape, np.int8))
        total = pointwise("add", total, pointwise("mul", multiplied(left, ones), _int32(right.shifts.reshape(column))))
    sums = right.sums.reshape(column)
    if isinstance(zero, int):
        return pointwise("sub", total, _int32(sums * np.int32(zero))) if zero else total
    return pointwise("sub", total, pointwise("mul", zero, _int32(sums)))


def scale_sums(total: Node, scale: Node, scales: np.ndarray, tail: int = 0) -> Node:
    """Integer sums as numbers: times the scale of the left side and those of their columns."""
    columns = np.ascontiguousarray(scales, np.float32).reshape(-1, *(1,) * tail)
    factor: Node
    if isinstance(scale, Constant):
        both = columns * np.float32(scale.array.reshape(-1)[0])
        factor = Constant(both.shape, "float32", both)
    else:
        factor = pointwise("mul", Constant(columns.shape, "float32", columns), scale)
    return pointwise("mul", pointwise("cast", total, dtype="float32"), factor)


def _int32(array: Sequence[int] | np.ndarray) -> Constant:
    integers = np.ascontiguousarray(array, np.int32)
    return Constant(integers.shape, "int32", integers)
