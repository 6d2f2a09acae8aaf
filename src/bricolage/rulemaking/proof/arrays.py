# ruff: noqa: ARG002 -- `like` places a constant on the device of an array, which numpy does by itself
"""The field as an array library: what `lowering.operators` needs to state every ONNX operator over it.

Arrays are of two kinds. Integers and truth values that follow from shapes and constants stay numpy arrays; floating-point
numbers are tensors over the field. Casts between floating types change nothing: rounding is not part of a proof.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NoReturn

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.lowering.arrays import Step
from bricolage.lowering.common import Array, Dtype
from bricolage.rulemaking.proof import extremes, transcendental
from bricolage.rulemaking.proof.field_contractions import convolve_windows, convolved_transposed, spread
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint
from bricolage.rulemaking.proof.tensor import BOOL, FLOAT, FieldTensor, align, gather, opaque, tensor

_FLOATS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)


class _Library:
    """Element-wise functions by numpy's names."""

    def __getattr__(self, name: str) -> Callable[[Array], Array]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(x: Array) -> Array:
            if isinstance(x, np.ndarray):
                return np.asarray(getattr(np, name)(x))
            if name not in transcendental.UNARY:
                raise NotModelled(f"the function {name}")
            return transcendental.UNARY[name](x)

        return call


def _make_refusal(reason: str) -> Callable[..., NoReturn]:
    """What the field has no model for."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise NotModelled(reason)

    return refuse


class FieldArrays:
    """Implements `lowering.arrays.Arrays` on one point."""

    lib = _Library()

    def __init__(self, point: RandomPoint) -> None:
        self.point = point

    # --- types and construction

    def dtype(self, onnx_type: int) -> np.dtype:
        """All floating types are one."""
        try:
            named = ir.DataType(onnx_type).numpy()
        except TypeError as error:
            raise NotModelled(f"values of type {ir.DataType(onnx_type).name}") from error
        if named in _FLOATS:
            return FLOAT
        if named.kind not in "biu":
            raise NotModelled(f"values of type {ir.DataType(onnx_type).name}")
        return named

    def kind(self, x: Array) -> str:
        return str(x.dtype.kind)

    def lowest(self, dtype: Dtype) -> int:
        if np.dtype(dtype).kind not in "iu":
            raise NotModelled("minus infinity")
        return int(np.iinfo(dtype).min)

    def int_range(self, dtype: Dtype) -> tuple[int, int]:
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)

    def astype(self, x: Array, dtype: Dtype) -> Array:
        wanted = np.dtype(dtype)
        if isinstance(x, np.ndarray):
            return tensor(self.point, x).typed(FLOAT) if wanted == FLOAT else x.astype(wanted)
        if wanted == x.dtype or wanted == FLOAT:
            return x.typed(wanted)
        if wanted == BOOL:
            return x != 0
        raise NotModelled(f"the cast of data to {wanted}")

    def cast(self, x: Array, onnx_type: int) -> Array:
        return self.astype(x, self.dtype(onnx_type))

    bitcast = _make_refusal("bits of numbers")

    def widen(self, x: Array) -> Array:
        return x

    def rounded(self, x: Array, onnx_type: int | None) -> Array:
        del onnx_type
        return x

    def constant(self, value: np.ndarray, like: Array | None = None) -> Array:
        """Integers and truth values stay what they are."""
        return value if value.dtype.kind in "biu" else tensor(self.point, value)

    def full(self, shape: Sequence[int], value: Array, dtype: Dtype, like: Array | None = None) -> Array:
        if isinstance(value, FieldTensor):
            return self.broadcast_to(value, shape)
        return self.astype(self.constant(np.full(tuple(shape), value)), dtype)

    def arange(self, start: Array, stop: Array, step: Array, dtype: Dtype) -> Array:
        return self.astype(self.constant(np.arange(start, stop, step)), dtype)

    def _all_known(self, *xs: Array) -> bool:
        return not any(isinstance(x, FieldTensor) for x in xs)

    def _tensors(self, *xs: Array) -> list[FieldTensor]:
        return [tensor(self.point, x) for x in xs]

    # --- element-wise

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """A condition c that is not known gives b + c (a - b)."""
        if self._all_known(condition, a, b):
            return np.where(condition, a, b)
        yes, no = self._tensors(a, b)
        if isinstance(condition, FieldTensor):
            dtype = BOOL if yes.dtype == no.dtype == BOOL else FLOAT
            return (no + condition * (yes - no)).typed(dtype)
        return gather([yes, no], lambda i, j: np.asarray(np.where(condition, i, j)))

    def maximum(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b) if self._all_known(a, b) else extremes.pairwise("max", *self._tensors(a, b))

    def minimum(self, a: Array, b: Array) -> Array:
        return np.minimum(a, b) if self._all_known(a, b) else extremes.pairwise("min", *self._tensors(a, b))

    def truncate_divide(self, a: Array, b: Array) -> Array:
        if not self._all_known(a, b):
            raise NotModelled("integer division of data")
        magnitude = abs(a) // abs(b)
        return np.where((a < 0) != (b < 0), -magnitude, magnitude)

    def fmod(self, a: Array, b: Array) -> Array:
        if not self._all_known(a, b):
            raise NotModelled("the remainder of data")
        return np.fmod(a, b)

    def power(self, a: Array, b: Array) -> Array:
        if self._all_known(a, b):
            return np.power(a, b)
        base, exponent = self._tensors(a, b)
        return base**exponent

    def erf(self, x: Array) -> Array:
        return transcendental.odd("erf", x)

    def sigmoid(self, x: Array) -> Array:
        return transcendental.sigmoid(x)

    def softplus(self, x: Array) -> Array:
        return transcendental.softplus(x)

    def shift_right(self, a: Array, b: Array) -> Array:
        if not self._all_known(a, b):
            raise NotModelled("bits of numbers")
        return np.right_shift(a, b)

    # --- reductions

    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if isinstance(x, np.ndarray):
            return x.sum(axes, dtype=x.dtype, keepdims=keepdims)
        summed = self.point.field.sum(x.values, tuple(axis + 1 for axis in axes))
        degree = x.degree.summed(self._count(x, axes))
        return self._drop_axes(x.derived(summed, degree), axes, keepdims)

    def _count(self, x: Array, axes: tuple[int, ...]) -> int:
        return int(np.prod([x.shape[axis] for axis in axes], dtype=np.int64))

    def _drop_axes(self, x: FieldTensor, axes: tuple[int, ...], keepdims: bool) -> FieldTensor:
        return x if keepdims else x.reshape(tuple(d for i, d in enumerate(x.shape) if i not in axes))

    def mean(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if isinstance(x, np.ndarray):
            raise NotModelled("the mean of integers")
        return self.sum(x, axes, keepdims) / self._count(x, axes)

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if isinstance(x, np.ndarray):
            return x.prod(axes, dtype=x.dtype, keepdims=keepdims)
        values = x.values
        for axis in axes:
            values = self.point.field.product(values, axis + 1)
        return self._drop_axes(x.derived(values, x.degree.power(self._count(x, axes))), axes, keepdims)

    def max(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if isinstance(x, np.ndarray):
            return x.max(axes, keepdims=keepdims)
        return extremes.over("max", x, axes, keepdims)

    def min(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if isinstance(x, np.ndarray):
            return x.min(axes, keepdims=keepdims)
        return extremes.over("min", x, axes, keepdims)

    def logsumexp(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return opaque("log", self.sum(transcendental.exponential(x), axes, keepdims))

    argmax = _make_refusal("the position of a maximum")

    def softmax(self, x: Array, axis: int) -> Array:
        grown = transcendental.exponential(x)
        return grown / self.sum(grown, (axis,), True)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return opaque("log", self.softmax(x, axis))

    def cumsum(self, x: Array, axis: int) -> Array:
        if isinstance(x, np.ndarray):
            return x.cumsum(axis, dtype=x.dtype)
        return self._running(x, axis, operator.add)

    def cumprod(self, x: Array, axis: int) -> Array:
        if isinstance(x, np.ndarray):
            return x.cumprod(axis, dtype=x.dtype)
        return self._running(x, axis, operator.mul)

    def _running(self, x: FieldTensor, axis: int, combine: Callable[[Array, Array], Array]) -> Array:
        steps = [self.slice_axis(x, axis, i, i + 1, 1) for i in range(x.shape[axis])]
        for i in range(1, len(steps)):
            steps[i] = combine(steps[i - 1], steps[i])
        return self.concat(steps, axis) if steps else x

    topk = _make_refusal("sorting")

    # --- movement

    def _move(self, x: Array, place: Callable[[np.ndarray], np.ndarray]) -> Array:
        return x.move(place) if isinstance(x, FieldTensor) else place(np.asarray(x))

    def _join(self, xs: Sequence[Array], place: Callable[..., np.ndarray]) -> Array:
        return place(*xs) if self._all_known(*xs) else gather(self._tensors(*xs), place)

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return x.reshape(tuple(shape))

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        return self._move(x, lambda i: np.transpose(i, tuple(perm)))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        return self._move(x, lambda i: np.broadcast_to(i, tuple(shape)))

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return self._join(xs, lambda *i: np.concatenate(i, axis))

    def stack(self, xs: Sequence[Array], axis: int) -> Array:
        return self._join(xs, lambda *i: np.stack(i, axis))

    def flip(self, x: Array, axes: tuple[int, ...]) -> Array:
        return self._move(x, lambda i: np.flip(i, axes))

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        return self._move(x, lambda i: np.tile(i, tuple(repeats)))

    def pad(self, x: Array, widths: Sequence[tuple[int, int]], value: Array) -> Array:
        if self._all_known(x, value):
            return np.pad(x, widths, constant_values=value)
        return gather(self._tensors(x, value), lambda i, filler: np.pad(i, widths, constant_values=filler.item()))

    def slice_axis(self, x: Array, axis: int, start: int, stop: int | None, step: int) -> Array:
        where = (slice(None),) * axis + (slice(start, stop, step),)
        return self._move(x, lambda i: i[where])

    def tril(self, x: Array, k: int) -> Array:
        return self._triangle(x, np.tril(np.ones(x.shape[-2:], bool), k))

    def triu(self, x: Array, k: int) -> Array:
        return self._triangle(x, np.triu(np.ones(x.shape[-2:], bool), k))

    def _triangle(self, x: Array, kept: np.ndarray) -> Array:
        zero = np.zeros((), x.dtype)
        return self.where(kept, x, zero)

    # --- gathering and scattering

    def _indices(self, *indices: Array) -> None:
        if not self._all_known(*indices):
            raise NotModelled("an index that depends on data")

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        self._indices(indices)
        return self._move(x, lambda i: np.take(i, indices, axis))

    def take_along(self, x: Array, indices: Array, axis: int) -> Array:
        """numpy's function broadcasts the other axes; ONNX wants the indices' own extent."""
        self._indices(indices)
        extent = tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(indices.shape))
        return self._move(x, lambda i: np.take_along_axis(i[extent], indices, axis))

    def index(self, x: Array, indices: tuple[Array, ...]) -> Array:
        self._indices(*indices)
        return self._move(x, lambda i: np.asarray(i[indices]))

    def scatter(self, x: Array, indices: tuple[Array, ...], updates: Array, reduction: str) -> Array:
        self._indices(*indices)
        if reduction != "none":
            raise NotModelled(f"a scatter with reduction {reduction}")

        def place(i: np.ndarray, j: np.ndarray) -> np.ndarray:
            scattered = np.array(i)
            scattered[indices] = j
            return scattered

        return self._join([x, updates], place)

    # --- linear algebra

    def matmul(self, a: Array, b: Array) -> Array:
        if self._all_known(a, b):
            return np.matmul(a, b)
        left, right = self._tensors(a, b)
        row, column = left.ndim == 1, right.ndim == 1
        left = left.reshape((1, -1)) if row else left
        right = right.reshape((-1, 1)) if column else right
        inner = left.shape[-1]
        if inner != right.shape[-2]:
            raise ValueError(f"shapes {left.shape} and {right.shape} do not multiply")
        left, right = align(left, right)
        degree = left.degree.times(right.degree).summed(inner)
        product = left.derived(self.point.field.matmul(left.values, right.values), degree)
        dropped = ((product.ndim - 2,) if row else ()) + ((product.ndim - 1,) if column else ())
        return self._drop_axes(product, dropped, not dropped)

    def einsum(self, equation: str, *xs: Array) -> Array:
        """One product of everything, broadcast over all letters, then one sum: for small tensors."""
        if self._all_known(*xs):
            return np.einsum(equation, *xs)
        operands, _, output = equation.partition("->")
        terms = operands.split(",")
        if "." in equation:
            raise NotModelled("an ellipsis in Einsum")
        if "->" not in equation:
            together = "".join(terms)
            output = "".join(sorted(letter for letter in set(together) if together.count(letter) == 1))
        letters = output + "".join(sorted(set("".join(terms)) - set(output)))
        factors = [spread(x, term, letters) for x, term in zip(self._tensors(*xs), terms, strict=True)]
        product = functools.reduce(operator.mul, factors)
        sizes = {letter: d for x, term in zip(xs, terms, strict=True) for letter, d in zip(term, x.shape, strict=True)}
        product = self.broadcast_to(product, [sizes[letter] for letter in letters])
        return self.sum(product, tuple(range(len(output), len(letters))))

    det = _make_refusal("a determinant")

    fft = complex = real = imag = _make_refusal("complex numbers")

    def convolution(
        self,
        x: Array,
        w: Array,
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilations: Sequence[int],
        groups: int,
    ) -> Array:
        x, w = self._tensors(x, w)
        return convolve_windows(self, x, w, strides, pads, dilations, groups)

    def convolution_transpose(
        self, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int
    ) -> Array:
        x, w = self._tensors(x, w)
        return convolved_transposed(self, x, w, strides, dilations, groups)

    # --- control

    def scan(self, step: Step, carry: Array, xs: Array, length: int) -> tuple[Array, Array]:
        """Round by round; `xs` is a tuple of tensors with time in front."""
        results = []
        for t in range(length):
            carry, y = step(carry, tuple(x[t] for x in xs))
            results.append(y)
        return carry, self.stack(results, 0)

    def nonzero(self, x: Array) -> Array:
        self._indices(x)
        return np.stack(np.nonzero(x))
