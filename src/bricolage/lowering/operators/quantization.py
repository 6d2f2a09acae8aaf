# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Quantisation to integers and back, and integer products."""

from __future__ import annotations

import math
from typing import Unpack

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Dtype, Results, front_axis, operator
from bricolage.lowering.operators.convolution import conv
from bricolage.lowering.window_indices import ConvAttributes

Types = tuple[int | None, ...]
"""ONNX element types of a node's inputs."""
EXACT_TERMS = 2**24 // 255**2
"""Products of two differences of bytes whose sum float32 holds exactly, in whatever order they are added."""


def spread(xp: Arrays, v: Array, x: Array, axis: int, block_size: int) -> Array:
    """A scale or zero point laid out to broadcast against `x`: per tensor, per axis, or per block along `axis`."""
    if v.ndim == 0 or (v.ndim == 1 and v.shape[0] == 1 and block_size == 0):
        return v.reshape(())
    axis = front_axis(x.ndim, axis)
    if block_size == 0:
        view = [1] * x.ndim
        view[axis] = v.shape[0]
        return v.reshape(tuple(view))
    before, after = v.shape[: axis + 1], v.shape[axis + 1 :]
    repeated = xp.broadcast_to(v.reshape((*before, 1, *after)), (*before, block_size, *after))
    full = repeated.reshape((*v.shape[:axis], v.shape[axis] * block_size, *after))
    return xp.slice_axis(full, axis, 0, x.shape[axis], 1)


def round_to(xp: Arrays, x: Array, zero: Array | None, dtype: Dtype) -> Array:
    """round(x) + zero, saturated to the integer type."""
    low, high = xp.int_range(dtype)
    y = xp.lib.round(x)
    if zero is not None:
        y = y + xp.astype(zero, y.dtype)
    return xp.astype(xp.minimum(xp.maximum(y, low), high), dtype)


@operator("QuantizeLinear", since=10)
def quantize_linear(
    xp: Arrays,
    x: Array,
    scale: Array,
    zero: Array = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    _types: Types = (),
) -> Array:
    """The quotient is rounded to the type of the scale (or `precision`) before it is rounded to an integer: that decides what is a
    tie, so it is part of the definition."""
    dtype = zero.dtype if zero is not None else xp.dtype(output_dtype or 2)
    kind = xp.dtype(precision) if precision else scale.dtype
    stored = [xp.rounded(value, type_) for value, type_ in zip((x, scale), (*_types, None, None), strict=False)]
    ratio = xp.astype(stored[0], kind) / xp.astype(spread(xp, stored[1], x, axis, block_size), kind)
    ratio = xp.rounded(ratio, precision or (_types[1] if len(_types) > 1 else None))
    offset = None if zero is None else spread(xp, zero, x, axis, block_size)
    return round_to(xp, xp.widen(ratio), offset, dtype)


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    xp: Arrays, x: Array, scale: Array, zero: Array = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0
) -> Array:
    kind = xp.dtype(output_dtype) if output_dtype else scale.dtype
    y = xp.astype(x, xp.dtype(1))
    if zero is not None:
        y = y - xp.astype(spread(xp, zero, x, axis, block_size), y.dtype)
    return xp.astype(y * xp.astype(spread(xp, scale, x, axis, block_size), y.dtype), kind)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(xp: Arrays, x: Array) -> Results:
    """Every step in float32, as it is defined: what is rounded to an integer is the same in every runtime that keeps to it."""
    axes = tuple(range(x.ndim))
    x = xp.rounded(x, 1)
    low, high = xp.minimum(xp.min(x, axes), 0), xp.maximum(xp.max(x, axes), 0)
    scale = xp.rounded(xp.rounded(xp.where(high == low, 1.0, high - low), 1) / 255, 1)
    zero = xp.lib.round(xp.minimum(xp.maximum(xp.rounded(-low / scale, 1), 0), 255))
    byte = xp.dtype(2)
    return round_to(xp, xp.rounded(x / scale, 1), zero, byte), scale, xp.astype(zero, byte)


def requantize_sums(xp: Arrays, total: Array, x_scale: Array, w_scale: Array, y_scale: Array, y_zero: Array) -> Array:
    """Integer sums in the units of y. The factor and its products are those of float32, as ONNX's own implementation and runtimes
    compute them: half a unit more or less in them decides where a tie goes."""
    scales = (xp.rounded(xp.widen(scale), 1) for scale in (x_scale, w_scale, y_scale))
    x_scale, w_scale, y_scale = scales
    factor = xp.rounded(xp.rounded(x_scale * w_scale, 1) / y_scale, 1)
    product = xp.rounded(xp.rounded(xp.astype(total, factor.dtype), 1) * factor, 1)
    return round_to(xp, product, y_zero, y_zero.dtype)


def _subtract_zero(xp: Arrays, x: Array, zero: Array | None, axis: int) -> Array:
    wide = xp.astype(x, xp.dtype(6))
    return wide if zero is None else wide - xp.astype(spread(xp, zero, x, axis, 0), wide.dtype)


@operator("MatMulInteger", since=10)
def matmul_integer(xp: Arrays, a: Array, b: Array, a_zero: Array = None, b_zero: Array = None) -> Array:
    return _exact_product(xp, _subtract_zero(xp, a, a_zero, -2 if a.ndim > 1 else 0), _subtract_zero(xp, b, b_zero, -1))


def _sums_type(xp: Arrays) -> Dtype:
    """The float type in which integers are summed: what float32 is computed in, unless that is narrower than float32."""
    kind = xp.dtype(1)
    return xp.dtype(11) if "16" in str(kind) else kind


def _exact_product(xp: Arrays, a: Array, b: Array) -> Array:
    """An integer product as products of floats, which libraries multiply much faster than int32, and Inductor's packed weights
    alone: as many terms at a time as float32 sums exactly."""
    kind, rows = _sums_type(xp), -2 if b.ndim > 1 else 0
    total: Array = None
    for at in range(0, max(a.shape[-1], 1), EXACT_TERMS):
        parts = (xp.slice_axis(v, axis % v.ndim, at, at + EXACT_TERMS, 1) for v, axis in ((a, -1), (b, rows)))
        left, right = parts if a.shape[-1] > EXACT_TERMS else (a, b)
        partial_sum = xp.astype(xp.matmul(xp.astype(left, kind), xp.astype(right, kind)), xp.dtype(6))
        total = partial_sum if total is None else total + partial_sum
    return total


def _exact_conv(xp: Arrays, x: Array, w: Array, bias: Array | None, **attributes: Unpack[ConvAttributes]) -> Array:
    """An integer convolution as convolutions of floats: of as many input channels at a time as float32 sums exactly, and through
    float64, which holds every int32 sum, where a kernel has more taps than that or groups more channels."""
    taps = math.prod(w.shape[2:])
    step, kind = EXACT_TERMS // max(taps, 1), _sums_type(xp)
    if w.shape[1] > step and (attributes.get("group", 1) > 1 or step == 0):
        step, kind = w.shape[1], xp.dtype(11)
    total: Array = None
    for at in range(0, max(w.shape[1], 1), max(step, 1)):
        parts = (xp.slice_axis(v, 1, at, at + step, 1) for v in (x, w))
        some_x, some_w = parts if w.shape[1] > step else (x, w)
        partial_sum = conv(xp, xp.astype(some_x, kind), xp.astype(some_w, kind), None, **attributes)
        partial_sum = xp.astype(partial_sum, xp.dtype(6))
        total = partial_sum if total is None else total + partial_sum
    return total if bias is None else total + bias.reshape((1, -1) + (1,) * (total.ndim - 2))


@operator("ConvInteger", since=10)
def conv_integer(
    xp: Arrays, x: Array, w: Array, x_zero: Array = None, w_zero: Array = None, **attributes: Unpack[ConvAttributes]
) -> Array:
    return _exact_conv(xp, _subtract_zero(xp, x, x_zero, 1), _subtract_zero(xp, w, w_zero, 0), None, **attributes)


@operator("QLinearMatMul", since=10)
def qlinear_matmul(
    xp: Arrays,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    y_scale: Array,
    y_zero: Array,
) -> Array:
    total = matmul_integer(xp, a, b, a_zero, b_zero)
    return requantize_sums(xp, total, a_scale, b_scale, y_scale, y_zero)


@operator("QLinearConv", since=10)
def qlinear_conv(
    xp: Arrays,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array = None,
    **attributes: Unpack[ConvAttributes],
) -> Array:
    total = _exact_conv(xp, _subtract_zero(xp, x, x_zero, 1), _subtract_zero(xp, w, w_zero, 0), bias, **attributes)
    return requantize_sums(xp, total, x_scale, spread(xp, w_scale, total, 1, 0), y_scale, y_zero)
