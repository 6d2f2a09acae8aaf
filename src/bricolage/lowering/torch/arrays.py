"""PyTorch as an array library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from bricolage.errors import UnsupportedType
from bricolage.lowering.arrays import Step
from bricolage.lowering.common import normalise_axes

Array: TypeAlias = torch.Tensor
Operand: TypeAlias = torch.Tensor | float

DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
}
"""ONNX element types that this library computes with."""

NARROW_FLOATS = frozenset({torch.float32, torch.float16, torch.bfloat16})

_KINDS = {
    torch.uint8: "u",
    torch.uint16: "u",
    torch.uint32: "u",
    torch.uint64: "u",
    torch.bool: "b",
    torch.complex64: "c",
    torch.complex128: "c",
}


def from_numpy(value: np.ndarray) -> Array:
    """A tensor with its own memory, also for bfloat16, which numpy holds through ml_dtypes."""
    array = np.array(value, order="C")
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(value: Array) -> np.ndarray:
    """The tensor as numpy, bfloat16 included."""
    value = value.detach().cpu().contiguous()
    if value.dtype is torch.bfloat16:
        return np.asarray(value.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(value.numpy())


def _linear(x: Array, indices: tuple[Array, ...]) -> Array:
    """One index into the flattened leading axes for a tuple of indices into them."""
    flat = indices[0]
    for size, index in zip(x.shape[1 : len(indices)], indices[1:], strict=True):
        flat = flat * size + index
    return flat


class TorchArrays:
    """Implements `lowering.arrays.Arrays`. With `float_dtype` every narrower floating type is widened to it."""

    lib = torch

    def __init__(self, float_dtype: torch.dtype | None = None) -> None:
        self.float_dtype = float_dtype

    # --- types and construction

    def dtype(self, onnx_type: int) -> torch.dtype:
        if int(onnx_type) not in DTYPES:
            raise UnsupportedType(
                name=f"element type {onnx_type}", type=str(onnx_type), who="PyTorch", advice="Use another backend"
            )
        return self.widened(DTYPES[int(onnx_type)])

    def widened(self, dtype: torch.dtype) -> torch.dtype:
        return self.float_dtype if self.float_dtype is not None and dtype in NARROW_FLOATS else dtype

    def kind(self, x: Array) -> str:
        return "f" if x.dtype.is_floating_point else _KINDS.get(x.dtype, "i")

    def lowest(self, dtype: torch.dtype) -> float:
        if dtype.is_floating_point:
            return -math.inf
        return False if dtype is torch.bool else torch.iinfo(dtype).min

    def highest(self, dtype: torch.dtype) -> float:
        if dtype.is_floating_point:
            return math.inf
        return True if dtype is torch.bool else torch.iinfo(dtype).max

    def int_range(self, dtype: torch.dtype) -> tuple[int, int]:
        info = torch.iinfo(dtype)
        return int(info.min), int(info.max)

    def astype(self, x: Array, dtype: torch.dtype) -> Array:
        return x.to(dtype)

    def cast(self, x: Array, onnx_type: int) -> Array:
        return x.to(self.dtype(onnx_type))

    def bitcast(self, x: Array, onnx_type: int) -> Array:
        return x.view(DTYPES[onnx_type])

    def widen(self, x: Array) -> Array:
        return x.to(torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else x

    def rounded(self, x: Array, onnx_type: int | None) -> Array:
        stored = DTYPES.get(onnx_type or 1)
        if self.float_dtype is None or stored not in NARROW_FLOATS or not x.dtype.is_floating_point:
            return x
        return x.to(stored).to(x.dtype)

    def constant(self, value: np.ndarray, like: Array | None = None) -> Array:
        tensor = from_numpy(np.asarray(value))
        tensor = tensor.to(self.widened(tensor.dtype))
        return tensor if like is None else tensor.to(like.device)

    def full(self, shape: Sequence[int], value: float, dtype: torch.dtype, like: Array | None = None) -> Array:
        return torch.full(tuple(shape), value, dtype=dtype, device=None if like is None else like.device)

    def arange(self, start: float, stop: float, step: float, dtype: torch.dtype) -> Array:
        return torch.arange(start, stop, step, dtype=dtype)

    # --- element-wise

    def where(self, condition: Array, a: Array, b: Operand) -> Array:
        return torch.where(condition, a, b)

    def maximum(self, a: Array, b: Operand) -> Array:
        return torch.maximum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, min=b)

    def minimum(self, a: Array, b: Operand) -> Array:
        return torch.minimum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, max=b)

    def truncate_divide(self, a: Array, b: Array) -> Array:
        return torch.div(a, b, rounding_mode="trunc")

    def fmod(self, a: Array, b: Array) -> Array:
        return torch.fmod(a, b)

    def power(self, a: Array, b: Operand) -> Array:
        return torch.pow(a, b).to(a.dtype)

    def erf(self, x: Array) -> Array:
        return torch.erf(x)

    def sigmoid(self, x: Array) -> Array:
        return torch.sigmoid(x)

    def softplus(self, x: Array) -> Array:
        return torch.logaddexp(x, torch.zeros((), dtype=x.dtype, device=x.device))

    def shift_right(self, a: Array, b: Array) -> Array:
        return a >> b

    # --- reductions; torch takes "no axes" for "all axes", ONNX does not

    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return torch.sum(x, axes, keepdims, dtype=x.dtype) if axes else x

    def mean(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if not x.dtype.is_floating_point:
            return self.mean(x.to(torch.float64), axes, keepdims).to(x.dtype)
        return torch.mean(x, axes, keepdims) if axes else x

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        for axis in sorted(normalise_axes(axes, x.ndim), reverse=True):
            x = torch.prod(x, axis, keepdims, dtype=x.dtype)
        return x

    def _reduce_empty(self, x: Array, axes: tuple[int, ...], keepdims: bool, value: float) -> Array | None:
        """The result over an axis without elements, which torch refuses to reduce."""
        if not any(x.shape[a] == 0 for a in axes):
            return None
        shape = [1 if i in axes else d for i, d in enumerate(x.shape) if keepdims or i not in axes]
        return torch.full(shape, value, dtype=x.dtype, device=x.device)

    def max(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if not axes:
            return x
        empty = self._reduce_empty(x, axes, keepdims, self.lowest(x.dtype))
        return torch.amax(x, axes, keepdims) if empty is None else empty

    def min(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if not axes:
            return x
        empty = self._reduce_empty(x, axes, keepdims, self.highest(x.dtype))
        return torch.amin(x, axes, keepdims) if empty is None else empty

    def logsumexp(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        if any(x.shape[a] == 0 for a in axes):
            return torch.log(self.sum(torch.exp(x), axes, keepdims))
        return torch.logsumexp(x, axes, keepdims) if axes else x

    def argmax(self, x: Array, axis: int, keepdims: bool) -> Array:
        return torch.argmax(x.to(torch.uint8) if x.dtype is torch.bool else x, axis, keepdims)

    def softmax(self, x: Array, axis: int) -> Array:
        return torch.softmax(x, axis)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return torch.log_softmax(x, axis)

    def cumsum(self, x: Array, axis: int) -> Array:
        return torch.cumsum(x, axis, dtype=x.dtype)

    def cumprod(self, x: Array, axis: int) -> Array:
        return torch.cumprod(x, axis, dtype=x.dtype)

    def topk(self, x: Array, k: int, axis: int, largest: bool) -> tuple[Array, Array]:
        """Equal values in the order of their indices, which torch.topk does not promise."""
        values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)

    # --- movement

    def reshape(self, x: Array, shape: Sequence[int]) -> Array:
        return x.reshape(tuple(shape))

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        return x.permute(tuple(perm))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        return x.expand(tuple(shape))

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return torch.cat(tuple(xs), axis)

    def stack(self, xs: Sequence[Array], axis: int) -> Array:
        return torch.stack(tuple(xs), axis)

    def flip(self, x: Array, axes: tuple[int, ...]) -> Array:
        return torch.flip(x, axes)

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        return x.repeat(tuple(repeats))

    def pad(self, x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
        flat = [n for pair in reversed(widths) for n in pair]
        return torch.constant_pad_nd(x, flat, value)

    def slice_axis(self, x: Array, axis: int, start: int, stop: int | None, step: int) -> Array:
        if step > 0:
            sliced: Array = torch.ops.aten.slice.Tensor(x, axis, start, stop, step)
            return sliced
        indices = torch.arange(start, -1 if stop is None else stop, step, device=x.device)
        return torch.index_select(x, axis, indices)

    def tril(self, x: Array, k: int) -> Array:
        return torch.tril(x, k)

    def triu(self, x: Array, k: int) -> Array:
        return torch.triu(x, k)

    # --- gathering and scattering

    def _index(self, indices: Array | np.ndarray, like: Array) -> Array:
        tensor = indices if isinstance(indices, torch.Tensor) else from_numpy(np.asarray(indices))
        return tensor.to(device=like.device, dtype=torch.int64)

    def take(self, x: Array, indices: Array | np.ndarray, axis: int) -> Array:
        chosen = self._index(indices, x)
        if chosen.ndim == 1:
            return torch.index_select(x, axis, chosen)
        flat = torch.index_select(x, axis, chosen.reshape(-1))
        return flat.reshape((*x.shape[:axis], *chosen.shape, *x.shape[axis + 1 :]))

    def take_along(self, x: Array, indices: Array, axis: int) -> Array:
        return torch.gather(x, axis, self._index(indices, x))

    def index(self, x: Array, indices: tuple[Array, ...]) -> Array:
        return x[tuple(self._index(i, x) for i in indices)]

    def scatter(self, x: Array, indices: tuple[Array, ...], updates: Array, reduction: str) -> Array:
        places = tuple(self._index(i, x) for i in indices)
        if reduction in ("none", "add"):
            return torch.index_put(x, places, updates, accumulate=reduction == "add")
        rest = tuple(x.shape[len(places) :])
        flat = x.reshape((-1, math.prod(rest)))
        rows = torch.broadcast_to(_linear(x, places), updates.shape[: updates.ndim - len(rest)]).reshape((-1, 1))
        values = updates.reshape((-1, math.prod(rest)))
        how = {"mul": "prod", "max": "amax", "min": "amin"}[reduction]
        return torch.scatter_reduce(flat, 0, rows.expand(values.shape), values, how).reshape(x.shape)

    # --- linear algebra

    def matmul(self, a: Array, b: Array) -> Array:
        return torch.matmul(a, b)

    def einsum(self, equation: str, *xs: Array) -> Array:
        return torch.einsum(equation, *xs)

    def det(self, x: Array) -> Array:
        determinant: Array = torch.linalg.det(x)
        return determinant

    def fft(self, x: Array, n: int, axis: int, inverse: bool) -> Array:
        spectrum: Array = (torch.fft.ifft if inverse else torch.fft.fft)(x, n, axis)
        return spectrum

    def complex(self, real: Array, imaginary: Array) -> Array:
        return torch.complex(real, imaginary)

    def real(self, x: Array) -> Array:
        return torch.real(x)

    def imag(self, x: Array) -> Array:
        return torch.imag(x) if x.is_complex() else torch.zeros_like(x)

    def convolution(
        self,
        x: Array,
        w: Array,
        strides: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dilations: Sequence[int],
        groups: int,
    ) -> Array:
        run = (torch.conv1d, torch.conv2d, torch.conv3d)[x.ndim - 3]
        if all(low == high for low, high in pads):
            return run(x, w, None, tuple(strides), tuple(low for low, _ in pads), tuple(dilations), groups)
        x = self.pad(x, [(0, 0), (0, 0), *pads], 0)
        return run(x, w, None, tuple(strides), (0,) * len(pads), tuple(dilations), groups)

    def convolution_transpose(
        self, x: Array, w: Array, strides: Sequence[int], dilations: Sequence[int], groups: int
    ) -> Array:
        run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3]
        return run(x, w, stride=tuple(strides), groups=groups, dilation=tuple(dilations))

    # --- control

    def scan(self, step: Step, carry: Array, xs: Sequence[Array], length: int) -> tuple[Array, Array]:
        """Unrolled: `step` for each time, outputs stacked."""
        outputs = []
        for t in range(length):
            carry, y = step(carry, tuple(x[t] for x in xs))
            outputs.append(y)
        return carry, torch.stack(outputs)

    def nonzero(self, x: Array) -> Array:
        return torch.nonzero(x).T
