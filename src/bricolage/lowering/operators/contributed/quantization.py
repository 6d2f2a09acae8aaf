# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Operators on integers with scales (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

from typing import Unpack

import onnx_ir as ir

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Dtype, Results, contributed, front_axis
from bricolage.lowering.operators.attention import merge_heads
from bricolage.lowering.operators.contributed.attention import ScoreAttributes, compute_attention, split_by_width
from bricolage.lowering.operators.contributed.matmul import unpack_bits
from bricolage.lowering.operators.indexing import gather
from bricolage.lowering.operators.pooling import average_pool
from bricolage.lowering.operators.quantization import (
    dequantize_linear,
    dynamic_quantize_linear,
    matmul_integer,
    qlinear_conv,
    quantize_linear,
    round_to,
    spread,
)
from bricolage.lowering.window_indices import ConvAttributes

Ints = tuple[int, ...]


def _real(xp: Arrays, x: Array, scale: Array, zero: Array) -> Array:
    """The numbers that integers represent."""
    value = xp.astype(x, scale.dtype)
    value = value if zero is None else value - xp.astype(zero, scale.dtype).reshape(())
    return value * scale.reshape(())


def _integers(xp: Arrays, real: Array, scale: Array, zero: Array, dtype: Dtype) -> Array:
    """Real numbers as integers of a type."""
    return round_to(xp, real / scale.reshape(()), None if zero is None else zero.reshape(()), dtype)


@contributed("QuantizeLinear")
def contributed_quantize_linear(
    xp: Arrays, x: Array, scale: Array, zero: Array = None, *, axis: int = 1, _types: tuple[int | None, ...] = ()
) -> Array:
    """ContribOperators.md#com.microsoft.QuantizeLinear."""
    return quantize_linear(xp, x, scale, zero, axis=axis, _types=_types)


@contributed("DequantizeLinear")
def contributed_dequantize_linear(xp: Arrays, x: Array, scale: Array, zero: Array = None, *, axis: int = 1) -> Array:
    """ContribOperators.md#com.microsoft.DequantizeLinear."""
    return dequantize_linear(xp, x, scale, zero, axis=axis)


@contributed("QLinearAdd")
def qlinear_add(
    xp: Arrays,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c_scale: Array,
    c_zero: Array = None,
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearAdd."""
    return _integers(xp, _real(xp, a, a_scale, a_zero) + _real(xp, b, b_scale, b_zero), c_scale, c_zero, a.dtype)


@contributed("QLinearMul")
def qlinear_mul(
    xp: Arrays,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c_scale: Array,
    c_zero: Array = None,
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearMul."""
    return _integers(xp, _real(xp, a, a_scale, a_zero) * _real(xp, b, b_scale, b_zero), c_scale, c_zero, a.dtype)


@contributed("QLinearSigmoid")
def qlinear_sigmoid(xp: Arrays, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array = None) -> Array:
    """ContribOperators.md#com.microsoft.QLinearSigmoid."""
    return _integers(xp, xp.sigmoid(_real(xp, x, x_scale, x_zero)), y_scale, y_zero, x.dtype)


@contributed("QLinearLeakyRelu")
def qlinear_leaky_relu(
    xp: Arrays, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array = None, *, alpha: float = 0.01
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearLeakyRelu."""
    real = _real(xp, x, x_scale, x_zero)
    return _integers(xp, xp.where(real < 0, real * alpha, real), y_scale, y_zero, x.dtype)


@contributed("QLinearSoftmax")
def qlinear_softmax(
    xp: Arrays, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array, *, opset: int, axis: int = -1
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearSoftmax: below opset 13 over all axes from `axis` on."""
    real = _real(xp, x, x_scale, x_zero)
    if opset >= 13:
        return _integers(xp, xp.softmax(real, axis), y_scale, y_zero, x.dtype)
    axis = front_axis(x.ndim, axis)
    flat = xp.softmax(real.reshape((*x.shape[:axis], -1)), axis)
    return _integers(xp, flat.reshape(tuple(x.shape)), y_scale, y_zero, x.dtype)


@contributed("QLinearConcat")
def qlinear_concat(xp: Arrays, y_scale: Array, y_zero: Array, *inputs: Array, axis: int) -> Array:
    """ContribOperators.md#com.microsoft.QLinearConcat: `inputs` are tensors, scales and zero points in turn."""
    parts = [
        _integers(xp, _real(xp, *inputs[i : i + 3]), y_scale, y_zero, inputs[i].dtype) for i in range(0, len(inputs), 3)
    ]
    return xp.concat(parts, axis)


@contributed("QLinearWhere")
def qlinear_where(
    xp: Arrays,
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    y: Array,
    y_scale: Array,
    y_zero: Array,
    z_scale: Array,
    z_zero: Array,
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearWhere."""
    left, right = _real(xp, x, x_scale, x_zero), _real(xp, y, y_scale, y_zero)
    return _integers(xp, xp.where(condition, left, right), z_scale, z_zero, x.dtype)


def _channels_first(xp: Arrays, x: Array) -> Array:
    return xp.transpose(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def _channels_last(xp: Arrays, x: Array) -> Array:
    return xp.transpose(x, (0, *range(2, x.ndim), 1))


@contributed("QLinearAveragePool")
def qlinear_average_pool(
    xp: Arrays,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    y_scale: Array,
    y_zero: Array = None,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    channels_last: int = 0,
    count_include_pad: int = 0,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearAveragePool."""
    real = _real(xp, _channels_first(xp, x) if channels_last else x, x_scale, x_zero)
    pooled = average_pool(
        xp,
        real,
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        pads=pads,
        strides=strides,
    )
    y = _integers(xp, pooled, y_scale, y_zero, x.dtype)
    return _channels_last(xp, y) if channels_last else y


@contributed("QLinearGlobalAveragePool")
def qlinear_global_average_pool(
    xp: Arrays, x: Array, x_scale: Array, x_zero: Array, y_scale: Array, y_zero: Array, *, channels_last: int = 0
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearGlobalAveragePool."""
    axes = tuple(range(1, x.ndim - 1)) if channels_last else tuple(range(2, x.ndim))
    return _integers(xp, xp.mean(_real(xp, x, x_scale, x_zero), axes, True), y_scale, y_zero, x.dtype)


@contributed("QLinearConv")
def contributed_qlinear_conv(
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
    *,
    channels_last: int = 0,
    **attributes: Unpack[ConvAttributes],
) -> Array:
    """ContribOperators.md#com.microsoft.QLinearConv: ONNX's, with channels last where asked for."""
    y = qlinear_conv(
        xp,
        _channels_first(xp, x) if channels_last else x,
        x_scale=x_scale,
        x_zero=x_zero,
        w=w,
        w_scale=w_scale,
        w_zero=w_zero,
        y_scale=y_scale,
        y_zero=y_zero,
        bias=bias,
        **attributes,
    )
    return _channels_last(xp, y) if channels_last else y


@contributed("QGemm")
def qgemm(
    xp: Arrays,
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    c: Array = None,
    y_scale: Array = None,
    y_zero: Array = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """ContribOperators.md#com.microsoft.QGemm: c is in units of the product."""
    a = xp.transpose(a, (1, 0)) if transA else a
    b = xp.transpose(b, (1, 0)) if transB else b
    total = matmul_integer(xp, a, b, a_zero.reshape(()), b_zero)
    total = total if c is None else total + c
    real = xp.astype(total, a_scale.dtype) * (a_scale.reshape(()) * spread(xp, b_scale, total, 1, 0) * alpha)
    return real if y_scale is None else _integers(xp, real, y_scale, y_zero, y_zero.dtype)


@contributed("MatMulIntegerToFloat")
def matmul_integer_to_float(
    xp: Arrays,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero: Array = None,
    b_zero: Array = None,
    bias: Array = None,
) -> Array:
    """ContribOperators.md#com.microsoft.MatMulIntegerToFloat."""
    total = matmul_integer(xp, a, b, a_zero, b_zero)
    y = xp.astype(total, a_scale.dtype) * a_scale.reshape(()) * spread(xp, b_scale, total, -1, 0)
    return y if bias is None else y + bias


@contributed("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(
    xp: Arrays, a: Array, b: Array, b_scale: Array, b_zero: Array = None, bias: Array = None
) -> Array:
    """ContribOperators.md#com.microsoft.DynamicQuantizeMatMul: all of A has one scale, as DynamicQuantizeLinear finds it."""
    quantized, scale, zero = dynamic_quantize_linear(xp, a)
    return matmul_integer_to_float(
        xp, quantized, b=b, a_scale=scale, b_scale=b_scale, a_zero=zero, b_zero=b_zero, bias=bias
    )


@contributed("QAttention")
def qattention(
    xp: Arrays,
    x: Array,
    weight: Array,
    bias: Array,
    x_scale: Array,
    weight_scale: Array,
    mask_index: Array = None,
    x_zero: Array = None,
    weight_zero: Array = None,
    past: Array = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
    _outputs: int = 1,
    **attributes: Unpack[ScoreAttributes],
) -> Results:
    """ContribOperators.md#com.microsoft.QAttention."""
    projected = matmul_integer_to_float(
        xp, x, b=weight, a_scale=x_scale, b_scale=weight_scale, a_zero=x_zero, b_zero=weight_zero, bias=bias
    )
    q, k, v = split_by_width(xp, projected, (), num_heads, past)
    y, _ = compute_attention(xp, q, k, v, mask_index, None, attributes)
    return merge_heads(xp, y) if _outputs == 1 else (merge_heads(xp, y), xp.stack((k, v), 0))


def _no_bytes(node: ir.Node) -> str | None:
    data = node.inputs[0] if node.inputs else None
    return None if data is not None and data.dtype == ir.DataType.UINT8 else "weights that are not packed into bytes"


@contributed("GatherBlockQuantized", unless=_no_bytes)
def gather_block_quantized(
    xp: Arrays,
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """ContribOperators.md#com.microsoft.GatherBlockQuantized: bytes hold 8 / `bits` numbers along the last axis, around the middle
    of their range where there are no zero points."""
    axis = front_axis(data.ndim, quantize_axis)
    numbers = unpack_bits(xp, data, bits, data.shape[-1] * (8 // bits))
    block = xp.arange(0, numbers.shape[axis], 1, xp.dtype(7)) // block_size
    real = xp.astype(numbers, scales.dtype)
    if zero_points is None:
        real = real - float(1 << (bits - 1))
    else:
        zeros = xp.astype(unpack_bits(xp, zero_points, bits, scales.shape[-1]), scales.dtype)
        real = real - xp.take(zeros, block, axis)
    return gather(xp, real * xp.take(scales, block, axis), indices, axis=gather_axis)
