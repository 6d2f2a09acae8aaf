# ruff: noqa: ARG002 -- `like` places a constant on the device of an array, which nodes do not need
"""The vocabulary of `lowering.arrays` over the engine's nodes, so that operators which are made of others need no second
definition here. What it lacks, the engine does not claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from bricolage.lowering.arrays import Step
from bricolage.lowering.common import Array
from bricolage.native.ir.lowerings.contractions import multiply_matrices
from bricolage.native.ir.lowerings.einsum import contract_operands
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.movement import join_parts
from bricolage.native.ir.lowerings.numpy_functions import ElementwiseFunctions
from bricolage.native.ir.lowerings.ordering import largest_at, select_top_k
from bricolage.native.ir.lowerings.recurrent import written_out
from bricolage.native.ir.lowerings.reductions import reduce, soft_row
from bricolage.native.ir.lowerings.scattering import scatter_updates
from bricolage.native.ir.lowerings.traced import Operand, TracedArray, apply, cast_alike, number
from bricolage.native.ir.lowerings.views import empty, pad, reshape, transpose
from bricolage.native.ir.lowerings.windowed_products import convolve_windows, convolved_transposed
from bricolage.native.ir.tensors import C_TYPES, FLOATS, INTEGERS, Constant, Gather, Node, Reduction, View

_LARGEST_MATRIX = 4


class NodeArrays:
    """Implements `lowering.arrays.Arrays` as far as nodes go."""

    lib = ElementwiseFunctions()

    def __getattr__(self, name: str) -> NoReturn:
        raise NoLowering(f"what the lowerings call '{name}'")

    # --- types and construction

    def dtype(self, onnx_type: int) -> str:
        """The name of an ONNX element type.

        Raises:
            NoLowering: the engine does not compute with it.
        """
        name = ir.DataType(int(onnx_type)).numpy().name
        if name not in C_TYPES:
            raise NoLowering(f"the type {name}")
        return name

    def kind(self, x: TracedArray) -> str:
        """The first letter of the element type, which tells floats from integers."""
        return x.dtype[0]

    def int_range(self, dtype: str) -> tuple[int, int]:
        """The least and the largest value of an integer type.

        Raises:
            NoLowering: it is none.
        """
        if dtype not in INTEGERS:
            raise NoLowering(f"the range of {dtype}")
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def lowest(self, dtype: str) -> float:
        """What no value of a type lies below."""
        if dtype in FLOATS:
            return -math.inf
        return False if dtype == "bool" else int(np.iinfo(dtype).min)

    def astype(self, x: TracedArray, dtype: str) -> TracedArray:
        """With the named element type."""
        return x.cast(dtype)

    def cast(self, x: TracedArray, onnx_type: int) -> TracedArray:
        """With an ONNX element type."""
        return x.cast(self.dtype(onnx_type))

    def widen(self, x: TracedArray) -> TracedArray:
        """For sums: unchanged, since the engine adds long sums in float64 itself."""
        return x

    def rounded(self, x: TracedArray, onnx_type: int | None) -> TracedArray:
        """Unchanged: nothing is wider here than the model states."""
        del onnx_type
        return x

    def constant(self, value: np.ndarray, like: TracedArray | None = None) -> TracedArray:
        """An array that is known.

        Raises:
            NoLowering: the engine does not compute with its type.
        """
        if value.dtype.name not in C_TYPES:
            raise NoLowering(f"constants of the type {value.dtype.name}")
        return TracedArray(Constant(value.shape, value.dtype.name, value))

    def full(self, shape: Sequence[int], value: float, dtype: str, like: TracedArray | None = None) -> TracedArray:
        """An array of equal elements."""
        return number(value, dtype).broadcast(tuple(shape))

    def arange(self, start: float, stop: float, step: float, dtype: str) -> TracedArray:
        """Numbers from `start` to `stop`."""
        return self.constant(np.arange(start, stop, step, dtype=dtype))

    # --- element-wise

    def where(self, condition: TracedArray, a: Operand, b: Operand) -> TracedArray:
        """`a` where the condition holds, otherwise `b`."""
        if not isinstance(a, TracedArray) and not isinstance(b, TracedArray):
            raise NoLowering("a choice between two numbers")
        return apply("where", condition, *cast_alike(a, b))

    def maximum(self, a: Operand, b: Operand) -> TracedArray:
        """The larger ones; NaN where either is."""
        return apply("maximum", *cast_alike(a, b))

    def minimum(self, a: Operand, b: Operand) -> TracedArray:
        """The smaller ones; NaN where either is."""
        return apply("minimum", *cast_alike(a, b))

    def truncate_divide(self, a: TracedArray, b: TracedArray) -> TracedArray:
        """Quotients of integers, towards zero."""
        return apply("quotient", *cast_alike(a, b))

    def fmod(self, a: TracedArray, b: TracedArray) -> TracedArray:
        """Remainders with the sign of `a`."""
        left, right = cast_alike(a, b)
        return apply("fmod" if left.dtype in FLOATS else "remainder", left, right)

    def power(self, a: TracedArray, b: Operand) -> TracedArray:
        """Powers of floats."""
        left, right = cast_alike(a, b)
        if left.dtype not in FLOATS:
            raise NoLowering(f"powers of {left.dtype}")
        return apply("pow", left, right)

    def shift_right(self, a: TracedArray, b: TracedArray) -> TracedArray:
        """Bits moved down, and the sign kept."""
        return apply("shift_right", *cast_alike(a, b))

    def erf(self, x: TracedArray) -> TracedArray:
        """The error function."""
        return apply("erf", x)

    def sigmoid(self, x: TracedArray) -> TracedArray:
        """1 / (1 + exp(-x))."""
        return apply("sigmoid", x)

    def softplus(self, x: TracedArray) -> TracedArray:
        """log(1 + exp(x))."""
        return apply("softplus", x)

    # --- reductions

    def _reduce_axes(self, kind: Reduction, x: TracedArray, axes: tuple[int, ...], keepdims: bool) -> TracedArray:
        reduced_node = reduce(kind, x.node, axes) if axes else x.node
        shape = tuple(extent for axis, extent in enumerate(reduced_node.shape) if keepdims or axis not in axes)
        return TracedArray(reshape(reduced_node, shape))

    def sum(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Over `axes`."""
        return self._reduce_axes("sum", x, axes, keepdims)

    def mean(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Over `axes`, of floats."""
        if x.dtype not in FLOATS:
            raise NoLowering("means of integers")
        return self._reduce_axes("mean", x, axes, keepdims)

    def prod(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Over `axes`."""
        return self._reduce_axes("product", x, axes, keepdims)

    def max(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Over `axes`."""
        return self._reduce_axes("max", x, axes, keepdims)

    def min(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Over `axes`."""
        return self._reduce_axes("min", x, axes, keepdims)

    def _shift_by_max(self, x: TracedArray, top: TracedArray, axes: tuple[int, ...]) -> tuple[TracedArray, TracedArray]:
        """What lies below the largest element, and the logarithm of the sum of exponentials."""
        if x.dtype not in FLOATS:
            raise NoLowering("exponentials of integers")
        below = x - top
        return below, self.lib.log(self.sum(self.lib.exp(below), axes, True))

    def logsumexp(self, x: TracedArray, axes: tuple[int, ...], keepdims: bool = False) -> TracedArray:
        """Logarithms of sums of exponentials over `axes`, without overflow."""
        if not axes:
            return x
        top = self.max(x, axes, True)
        top = self.where(abs(top) == math.inf, 0.0, top)
        _, total = self._shift_by_max(x, top, axes)
        shape = tuple(extent for axis, extent in enumerate(top.shape) if keepdims or axis not in axes)
        return (total + top).reshape(shape)

    def softmax(self, x: TracedArray, axis: int) -> TracedArray:
        """Along `axis`."""
        return TracedArray(soft_row(x.node, axis))

    def log_softmax(self, x: TracedArray, axis: int) -> TracedArray:
        """As in a softmax, a row with infinity in it, or of -inf alone, becomes NaN."""
        below, total = self._shift_by_max(x, self.max(x, (axis,), True), (axis,))
        return below - total

    def argmax(self, x: TracedArray, axis: int, keepdims: bool) -> TracedArray:
        """The first of the largest; a NaN counts as larger than anything."""
        return largest_at(self, x, axis, keepdims)

    def topk(self, x: TracedArray, k: int, axis: int, largest: bool) -> tuple[TracedArray, TracedArray]:
        """The largest or the smallest in order, with their positions; a NaN counts as larger than anything."""
        return select_top_k(self, x, k, axis, largest)

    def _running(
        self, x: TracedArray, axis: int, combine: Callable[[TracedArray, TracedArray], TracedArray], neutral: int
    ) -> TracedArray:
        """By doubling (Hillis and Steele, Data parallel algorithms, 1986): after k rounds each element holds 2^k of them."""
        reach = 1
        while reach < x.shape[axis]:
            widths = [(reach if i == axis else 0, 0) for i in range(x.ndim)]
            x = combine(x, self.slice_axis(self.pad(x, widths, neutral), axis, 0, x.shape[axis], 1))
            reach *= 2
        return x

    def cumsum(self, x: TracedArray, axis: int) -> TracedArray:
        """Along `axis`."""
        return self._running(x, axis, lambda a, b: a + b, 0)

    def cumprod(self, x: TracedArray, axis: int) -> TracedArray:
        """Along `axis`."""
        return self._running(x, axis, lambda a, b: a * b, 1)

    # --- movement

    def reshape(self, x: TracedArray, shape: Sequence[int]) -> TracedArray:
        """The same elements in another shape; one size may be -1."""
        return x.reshape(tuple(shape))

    def transpose(self, x: TracedArray, perm: Sequence[int]) -> TracedArray:
        """With dimension `perm[i]` as the i-th."""
        return TracedArray(transpose(x.node, perm))

    def broadcast_to(self, x: TracedArray, shape: Sequence[int]) -> TracedArray:
        """Broadcast as numpy does."""
        return x.broadcast(tuple(shape))

    def concat(self, xs: Sequence[TracedArray], axis: int) -> TracedArray:
        """One behind the other along `axis`."""
        return TracedArray(join_parts([x.node for x in xs], axis))

    def stack(self, xs: Sequence[TracedArray], axis: int) -> TracedArray:
        """Along a new dimension."""
        return self.concat([x.reshape((*x.shape[:axis], 1, *x.shape[axis:])) for x in xs], axis)

    def flip(self, x: TracedArray, axes: tuple[int, ...]) -> TracedArray:
        """Reversed along `axes`."""
        return x[tuple(slice(None, None, -1 if i in axes else 1) for i in range(x.ndim))]

    def tile(self, x: TracedArray, repeats: Sequence[int]) -> TracedArray:
        """Repeated along each dimension."""
        apart = x.reshape(tuple(size for extent in x.shape for size in (1, extent)))
        wide = apart.broadcast(tuple(size for pair in zip(repeats, x.shape, strict=True) for size in pair))
        return wide.reshape(tuple(extent * times for extent, times in zip(x.shape, repeats, strict=True)))

    def pad(self, x: TracedArray, widths: Sequence[tuple[int, int]], value: float) -> TracedArray:
        """With `value` before and behind each dimension."""
        shape = tuple(extent + sum(width) for extent, width in zip(x.shape, widths, strict=True))
        return TracedArray(pad(x.node, [before for before, _ in widths], shape, value))

    def slice_axis(self, x: TracedArray, axis: int, start: int, stop: int | None, step: int) -> TracedArray:
        """Every `step`-th element along `axis`."""
        return x[(*(slice(None),) * axis, slice(start, stop, step))]

    def _distance(self, x: TracedArray) -> TracedArray:
        """Column minus row of each element."""
        rows, columns = x.shape[-2:]
        return self.arange(0, columns, 1, "int32") - self.arange(0, rows, 1, "int32").reshape((rows, 1))

    def tril(self, x: TracedArray, k: int) -> TracedArray:
        """Zeros above the `k`-th diagonal of the last two dimensions."""
        return self.where(self._distance(x) <= k, x, 0)

    def triu(self, x: TracedArray, k: int) -> TracedArray:
        """Zeros below the `k`-th diagonal of the last two dimensions."""
        return self.where(self._distance(x) >= k, x, 0)

    # --- gathering

    def take(self, x: TracedArray, indices: Array, axis: int) -> TracedArray:
        """Slices along `axis` that `indices` names."""
        chosen = indices if isinstance(indices, TracedArray) else self.constant(np.asarray(indices, np.int64))
        shape = (*x.shape[:axis], *chosen.shape, *x.shape[axis + 1 :])
        if 0 in (*shape, *x.shape):
            return TracedArray(empty(shape, x.dtype))
        return TracedArray(Gather(shape, x.dtype, x.node, chosen.node, axis))

    def take_along(self, x: TracedArray, indices: TracedArray, axis: int) -> TracedArray:
        """Elements along `axis`, at the index that stands in their place."""
        coords = [
            indices
            if i == axis
            else self.arange(0, extent, 1, indices.dtype).reshape((extent, *(1,) * (x.ndim - 1 - i)))
            for i, extent in enumerate(indices.shape)
        ]
        return self.index(x, tuple(coords))

    def index(self, x: TracedArray, indices: tuple[TracedArray, ...]) -> TracedArray:
        """Elements, or slices, at coordinates given by one array for each of the first dimensions."""
        leading, rest = x.shape[: len(indices)], x.shape[len(indices) :]
        flat: Array = 0
        for chosen, extent in zip(indices, leading, strict=True):
            flat = chosen if isinstance(flat, int) else flat * extent + chosen
        return self.take(x.reshape((math.prod(leading), *rest)), flat, 0)

    def scatter(
        self, x: TracedArray, indices: tuple[TracedArray, ...], updates: TracedArray, reduction: str
    ) -> TracedArray:
        """Elements, or slices, replaced at coordinates given by one array for each of the first dimensions."""
        return scatter_updates(self, x, indices, updates, reduction)

    # --- linear algebra

    def convolution(
        self,
        x: TracedArray,
        w: TracedArray,
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilations: Sequence[int],
        groups: int,
    ) -> TracedArray:
        """As a product of windows and weights, for those that no kernel of convolutions takes."""
        return TracedArray(convolve_windows(x.node, w.node, strides, pads, dilations, groups))

    def convolution_transpose(
        self, x: TracedArray, w: TracedArray, strides: Sequence[int], dilations: Sequence[int], groups: int
    ) -> TracedArray:
        """As `convolution`, of what has zeros between its elements."""
        return TracedArray(convolved_transposed(x.node, w.node, strides, dilations, groups))

    def det(self, x: TracedArray) -> TracedArray:
        """By the first row's minors, of small matrices."""
        size = x.shape[-1]
        if size > _LARGEST_MATRIX:
            raise NoLowering(f"determinants of more than {_LARGEST_MATRIX} rows")
        if size == 1:
            return x[..., 0, 0]
        total = x[..., 0, 0] * self.det(x[..., 1:, 1:])
        for column in range(1, size):
            left, right = x[..., 1:, :column], x[..., 1:, column + 1 :]
            minor = left if column == size - 1 else self.concat([left, right], x.ndim - 1)
            term = x[..., 0, column] * self.det(minor)
            total = total - term if column % 2 else total + term
        return total

    def matmul(self, a: TracedArray, b: TracedArray) -> TracedArray:
        """Matrix products as numpy defines them, of floats."""
        finite_constant = isinstance(b.node, Constant) and b.ndim == 2 and np.isfinite(b.node.array).all()
        if finite_constant and _is_zero(a.node):
            return self.full((*a.shape[:-1], b.shape[-1]), 0, a.dtype)  # the first step of a recurrence
        return TracedArray(multiply_matrices(a.node, b.node))

    def einsum(self, equation: str, *xs: TracedArray) -> TracedArray:
        """As a matrix product of two, or sums and transpositions of one."""
        return contract_operands(self, equation, xs)

    # --- control

    def scan(self, step: Step, carry: Array, xs: Array, length: int) -> tuple[Array, Array]:
        """Written out step by step; equal steps share their functions."""
        return written_out(step, carry, xs, length)


def _is_zero(node: Node) -> bool:
    """Whether nothing but zeros is in it, as `NodeArrays.full` makes them."""
    return isinstance(node, View) and isinstance(node.source, Constant) and not np.any(node.source.array)
