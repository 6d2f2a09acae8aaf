"""The vocabulary that an array library supplies; `operators/` is written over it alone.

Arrays of all libraries share Python's arithmetic, comparison and indexing operators, `.shape`, `.ndim`, `.dtype` and
`.reshape(tuple)`; everything else an operator needs is named here. Axes are numbers, shapes and permutations tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from bricolage.lowering.common import Array, Dtype

Functions: TypeAlias = Any
"""A module, or an object, whose functions carry numpy's names."""
Step: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]
"""Of a scan: (carry, slices) to (carry, output)."""


class Arrays(Protocol):
    """One array library in one mode (the floating types may be widened)."""

    lib: Functions
    """The module whose element-wise functions carry numpy's names (`exp`, `arctan`, `floor` ...)."""

    # --- types and construction
    def dtype(self, onnx_type: int) -> Dtype:
        """The library's type for an ONNX element type (UnsupportedType where it has none)."""

    def kind(self, x: Array) -> str:
        """The kind of its elements as in `numpy.dtype.kind`; floats of every width are "f"."""

    def lowest(self, dtype: Dtype) -> float:
        """The least value of a type; minus infinity for floats."""

    def int_range(self, dtype: Dtype) -> tuple[int, int]:
        """Least and largest value of an integer type."""

    def astype(self, x: Array, dtype: Dtype) -> Array:
        """Elements converted as the library does it."""

    def cast(self, x: Array, onnx_type: int) -> Array:
        """Elements converted as ONNX Cast does it, to an ONNX element type."""

    def bitcast(self, x: Array, onnx_type: int) -> Array:
        """The same bits as elements of another ONNX type."""

    def widen(self, x: Array) -> Array:
        """float16 and bfloat16 as float32, others as they are: for sums and functions that lose digits."""

    def rounded(self, x: Array, onnx_type: int | None) -> Array:
        """Floats to what the ONNX type holds that the model states, where the library has widened them; their type stays. Where
        nothing is widened, x itself."""

    def constant(self, value: np.ndarray, like: Array | None = None) -> Array:
        """A numpy array as an array, where `like` is."""

    def full(self, shape: Sequence[int], value: Array, dtype: Dtype, like: Array | None = None) -> Array:
        """An array of one value."""

    def arange(self, start: Array, stop: Array, step: Array, dtype: Dtype) -> Array:
        """start, start + step ... before `stop`; 1-d."""

    # --- element-wise
    def where(self, condition: Array, a: Array, b: Array) -> Array:
        """a where the condition holds, otherwise b; all three broadcast."""

    def maximum(self, a: Array, b: Array) -> Array:
        """Element-wise; NaN if either is NaN."""

    def minimum(self, a: Array, b: Array) -> Array:
        """Element-wise; NaN if either is NaN."""

    def truncate_divide(self, a: Array, b: Array) -> Array:
        """Quotient rounded towards zero."""

    def fmod(self, a: Array, b: Array) -> Array:
        """Remainder with the sign of a."""

    def power(self, a: Array, b: Array) -> Array:
        """a to the power b, in the type of a."""

    def erf(self, x: Array) -> Array:
        """The error function."""

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x))."""

    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""

    def shift_right(self, a: Array, b: Array) -> Array:
        """a shifted right by b bits; both unsigned integers."""

    # --- reductions
    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Over `axes`, in the type of x."""

    def mean(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Over `axes`."""

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Over `axes`, in the type of x."""

    def max(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Over `axes`."""

    def min(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Over `axes`."""

    def logsumexp(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """log of the sum of exp over `axes`, without overflow."""

    def argmax(self, x: Array, axis: int, keepdims: bool) -> Array:
        """Position of a largest element along an axis."""

    def softmax(self, x: Array, axis: int) -> Array:
        """exp(x) over its sum along an axis, without overflow."""

    def log_softmax(self, x: Array, axis: int) -> Array:
        """The logarithm of `softmax`, without underflow."""

    def cumsum(self, x: Array, axis: int) -> Array:
        """Sums of all elements up to and with each one along an axis."""

    def cumprod(self, x: Array, axis: int) -> Array:
        """Products of all elements up to and with each one along an axis."""

    def topk(self, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
        """The k largest (or least) elements along an axis, sorted, and their positions; of equal ones the first."""

    # --- movement
    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        """The same elements in row-major order in another shape."""

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        """Axis i of the result is axis perm[i] of x."""

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        """Axes of size 1, and missing leading ones, repeated."""

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        """Arrays one behind the other along an axis."""

    def stack(self, xs: Sequence[Array], axis: int) -> Array:
        """Arrays of one shape along a new axis."""

    def flip(self, x: Array, axes: tuple[int, ...]) -> Array:
        """Elements in reverse order along `axes`."""

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        """x repeated along every axis."""

    def pad(self, x: Array, widths: Sequence[tuple[int, int]], value: Array) -> Array:
        """`widths` elements of one value before and behind, for each axis."""

    def slice_axis(self, x: Array, axis: int, start: int, stop: int | None, step: int) -> Array:
        """Python's x[start:stop:step] along one axis; the step may be negative."""

    def tril(self, x: Array, k: int) -> Array:
        """Elements above the k-th diagonal of the last two axes become 0."""

    def triu(self, x: Array, k: int) -> Array:
        """Elements below the k-th diagonal of the last two axes become 0."""

    # --- gathering and scattering
    def take(self, x: Array, indices: Array, axis: int) -> Array:
        """Slices of x along an axis: shape x[:axis] + indices + x[axis + 1:]."""

    def take_along(self, x: Array, indices: Array, axis: int) -> Array:
        """One element of x for each of `indices`, which has the rank of x (ONNX GatherElements)."""

    def index(self, x: Array, indices: tuple[Array, ...]) -> Array:
        """Elements at the positions given by one index array for each leading axis."""

    def scatter(self, x: Array, indices: tuple[Array, ...], updates: Array, reduction: str) -> Array:
        """x with `updates` at such positions; `reduction` is none, add, mul, max or min."""

    # --- linear algebra
    def matmul(self, a: Array, b: Array) -> Array:
        """As numpy.matmul: (..., m, k) and (..., k, n) to (..., m, n)."""

    def einsum(self, equation: str, *xs: Array) -> Array:
        """As numpy.einsum."""

    def det(self, x: Array) -> Array:
        """Determinants of (..., n, n)."""

    def fft(self, x: Array, n: int, axis: int, inverse: bool) -> Array:
        """Discrete Fourier transform of length n along an axis, complex."""

    def complex(self, real: Array, imaginary: Array) -> Array:
        """A complex array from its parts."""

    def real(self, x: Array) -> Array:
        """The real part."""

    def imag(self, x: Array) -> Array:
        """The imaginary part; zeros of a real array."""

    def convolution(
        self,
        x: Array,
        w: Array,
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilations: Sequence[int],
        groups: int,
    ) -> Array:
        """x (N, C, ...) and w (M, C / groups, ...) to (N, M, ...)."""

    def convolution_transpose(
        self, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int
    ) -> Array:
        """x (N, C, ...) and w (C, M / groups, ...) to (N, M, ...), without padding: the gradient of a convolution."""

    # --- control
    def scan(self, step: Step, carry: Array, xs: Array, length: int) -> tuple[Array, Array]:
        """Runs `step(carry, x)` over the leading axis: the last carry and the stacked results."""

    def nonzero(self, x: Array) -> Array:
        """Positions of the elements that are not 0: (rank, count), row-major."""
