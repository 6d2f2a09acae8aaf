# ruff: noqa: ARG002 -- `like` places a constant on the device of an array, which JAX does by itself
"""JAX as an array library."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from bricolage.errors import UnsupportedType
from bricolage.lowering.arrays import Step
from bricolage.lowering.common import Array, Dtype

DTYPES: dict[int, Dtype] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
    4: np.uint16,
    5: np.int16,
    6: np.int32,
    7: np.int64,
    9: np.bool_,
    10: np.float16,
    11: np.float64,
    12: np.uint32,
    13: np.uint64,
    14: np.complex64,
    15: np.complex128,
    16: ml_dtypes.bfloat16,
}
"""ONNX element types that this library computes with."""


class JaxArrays:
    """Implements `lowering.arrays.Arrays`. With `float_dtype` float32 becomes that."""

    lib = jnp

    def __init__(self, float_dtype: Dtype = None) -> None:
        self.float_dtype = float_dtype

    # --- types and construction

    def given(self, x: Array) -> Array:
        """An array that comes in from outside, or a constant."""
        array = jnp.asarray(x)
        return array.astype(self.float_dtype) if self.float_dtype is not None and array.dtype == np.float32 else array

    def dtype(self, onnx_type: int) -> Dtype:
        if int(onnx_type) not in DTYPES:
            raise UnsupportedType(
                name=f"element type {onnx_type}", type=str(onnx_type), who="JAX", advice="Use another backend"
            )
        dtype = np.dtype(DTYPES[int(onnx_type)])
        return self.float_dtype if self.float_dtype is not None and dtype == np.float32 else dtype

    def kind(self, x: Array) -> str:
        return "f" if jnp.issubdtype(x.dtype, jnp.floating) else np.dtype(x.dtype).kind

    def lowest(self, dtype: Dtype) -> float:
        if jnp.issubdtype(dtype, jnp.floating):
            return -math.inf
        return False if dtype == np.bool_ else int(jnp.iinfo(dtype).min)

    def highest(self, dtype: Dtype) -> float:
        if jnp.issubdtype(dtype, jnp.floating):
            return math.inf
        return True if dtype == np.bool_ else int(jnp.iinfo(dtype).max)

    def int_range(self, dtype: Dtype) -> tuple[int, int]:
        info = jnp.iinfo(dtype)
        return int(info.min), int(info.max)

    def astype(self, x: Array, dtype: Dtype) -> Array:
        return x.astype(dtype)

    def cast(self, x: Array, onnx_type: int) -> Array:
        return x.astype(self.dtype(onnx_type))

    def bitcast(self, x: Array, onnx_type: int) -> Array:
        if x.dtype == np.bool_:
            x = x.astype(np.uint8)
        if onnx_type == 9:
            return x != 0
        return lax.bitcast_convert_type(x, self.dtype(onnx_type))

    def widen(self, x: Array) -> Array:
        return x.astype(np.float32) if x.dtype in (np.float16, ml_dtypes.bfloat16) else x

    def rounded(self, x: Array, onnx_type: int | None) -> Array:
        del onnx_type
        return x

    def constant(self, value: np.ndarray, like: Array | None = None) -> Array:
        return jnp.asarray(value)

    def full(self, shape: Sequence[int], value: Array, dtype: Dtype, like: Array | None = None) -> Array:
        return jnp.full(tuple(shape), value, dtype)

    def arange(self, start: Array, stop: Array, step: Array, dtype: Dtype) -> Array:
        return jnp.arange(start, stop, step, dtype=dtype)

    # --- element-wise

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        return jnp.where(condition, a, b)

    def maximum(self, a: Array, b: Array) -> Array:
        return jnp.maximum(a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        return jnp.minimum(a, b)

    def truncate_divide(self, a: Array, b: Array) -> Array:
        return lax.div(*jnp.broadcast_arrays(a, b))

    def fmod(self, a: Array, b: Array) -> Array:
        return lax.rem(*jnp.broadcast_arrays(a, b))

    def power(self, a: Array, b: Array) -> Array:
        return jnp.power(a, b).astype(a.dtype)

    def erf(self, x: Array) -> Array:
        return lax.erf(x)

    def sigmoid(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def softplus(self, x: Array) -> Array:
        return jnp.logaddexp(x, jnp.zeros((), x.dtype))

    def shift_right(self, a: Array, b: Array) -> Array:
        return jnp.right_shift(a, b)

    # --- reductions

    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return jnp.sum(x, axes, dtype=x.dtype, keepdims=keepdims)

    def mean(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return jnp.mean(x, axes, keepdims=keepdims).astype(x.dtype)

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return jnp.prod(x, axes, dtype=x.dtype, keepdims=keepdims)

    def max(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return jnp.max(x, axes, keepdims=keepdims, initial=self.lowest(x.dtype))

    def min(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return jnp.min(x, axes, keepdims=keepdims, initial=self.highest(x.dtype))

    def logsumexp(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if any(x.shape[a] == 0 for a in axes):
            return jnp.log(self.sum(jnp.exp(x), axes, keepdims))
        return jax.nn.logsumexp(x, axes, keepdims=keepdims) if axes else x

    def argmax(self, x: Array, axis: int, keepdims: bool) -> Array:
        return jnp.argmax(x, axis, keepdims=keepdims).astype(np.int64)

    def softmax(self, x: Array, axis: int) -> Array:
        return jax.nn.softmax(x, axis)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return jax.nn.log_softmax(x, axis)

    def cumsum(self, x: Array, axis: int) -> Array:
        return jnp.cumsum(x, axis, dtype=x.dtype)

    def cumprod(self, x: Array, axis: int) -> Array:
        return jnp.cumprod(x, axis, dtype=x.dtype)

    def topk(self, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
        order = jnp.argsort(x, axis=axis, stable=True, descending=largest)
        indices = lax.slice_in_dim(order, 0, k, axis=axis)
        return jnp.take_along_axis(x, indices, axis), indices.astype(np.int64)

    # --- movement

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return x.reshape(tuple(shape))

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        return jnp.transpose(x, tuple(perm))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        return jnp.broadcast_to(x, tuple(shape))

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return jnp.concatenate(tuple(xs), axis)

    def stack(self, xs: Sequence[Array], axis: int) -> Array:
        return jnp.stack(tuple(xs), axis)

    def flip(self, x: Array, axes: tuple[int, ...]) -> Array:
        return jnp.flip(x, axes)

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        return jnp.tile(x, tuple(repeats))

    def pad(self, x: Array, widths: Sequence[tuple[int, int]], value: Array) -> Array:
        return lax.pad(x, jnp.asarray(value, x.dtype), [(low, high, 0) for low, high in widths])

    def slice_axis(self, x: Array, axis: int, start: int, stop: int | None, step: int) -> Array:
        where = [slice(None)] * x.ndim
        where[axis] = slice(start, stop, step)
        return x[tuple(where)]

    def tril(self, x: Array, k: int) -> Array:
        return jnp.tril(x, k)

    def triu(self, x: Array, k: int) -> Array:
        return jnp.triu(x, k)

    # --- gathering and scattering

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        return jnp.take(x, indices, axis, mode="clip")

    def take_along(self, x: Array, indices: Array, axis: int) -> Array:
        """numpy's function broadcasts the other axes; ONNX wants the indices' own extent."""
        x = x[tuple(slice(None) if i == axis else slice(0, d) for i, d in enumerate(indices.shape))]
        return jnp.take_along_axis(x, indices, axis, mode="clip")

    def index(self, x: Array, indices: tuple[Array, ...]) -> Array:
        return x[indices]

    def scatter(self, x: Array, indices: tuple[Array, ...], updates: Array, reduction: str) -> Array:
        place = x.at[indices]
        if reduction == "none":
            return place.set(updates)
        return {"add": place.add, "mul": place.multiply, "max": place.max, "min": place.min}[reduction](updates)

    # --- linear algebra

    def matmul(self, a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)

    def einsum(self, equation: str, *xs: Array) -> Array:
        return jnp.einsum(equation, *xs, precision=lax.Precision.HIGHEST)

    def det(self, x: Array) -> Array:
        return jnp.linalg.det(x)

    def fft(self, x: Array, n: int, axis: int, inverse: bool) -> Array:
        return (jnp.fft.ifft if inverse else jnp.fft.fft)(x, n, axis)

    def complex(self, real: Array, imaginary: Array) -> Array:
        return lax.complex(real, imaginary)

    def real(self, x: Array) -> Array:
        return jnp.real(x)

    def imag(self, x: Array) -> Array:
        return jnp.imag(x)

    def convolution(
        self,
        x: Array,
        w: Array,
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilations: Sequence[int],
        groups: int,
    ) -> Array:
        return lax.conv_general_dilated(
            x,
            w,
            tuple(strides),
            list(pads),
            rhs_dilation=tuple(dilations),
            feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )

    def convolution_transpose(
        self, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int
    ) -> Array:
        """The gradient of a convolution: a convolution of the stretched input with the mirrored kernel."""
        inputs, outputs = w.shape[0], w.shape[1]
        spatial = tuple(w.shape[2:])
        w = w.reshape((groups, inputs // groups, outputs, *spatial))
        w = jnp.swapaxes(w, 1, 2).reshape((groups * outputs, inputs // groups, *spatial))
        w = jnp.flip(w, tuple(range(2, w.ndim)))
        reach = [((k - 1) * d, (k - 1) * d) for k, d in zip(spatial, dilations, strict=True)]
        return lax.conv_general_dilated(
            x,
            w,
            (1,) * len(spatial),
            reach,
            lhs_dilation=tuple(strides),
            rhs_dilation=tuple(dilations),
            feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )

    # --- control

    def scan(self, step: Step, carry: Array, xs: Array, length: int) -> tuple[Array, Array]:
        def step_typed(state: Array, inputs: Array) -> tuple[Array, Array]:
            new, y = step(state, inputs)
            return jax.tree.map(lambda n, old: jnp.asarray(n, old.dtype), new, state), y

        carry, ys = lax.scan(step_typed, carry, xs, length=length)
        return carry, ys

    def nonzero(self, x: Array) -> Array:
        return jnp.stack(jnp.nonzero(x)).astype(np.int64)
