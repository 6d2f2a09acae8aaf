"""Lowerings of quantisation, and of integer products with constant weights. What they do not take (blocks, other types, computed
weights), the definition that the libraries share does (`decompositions`)."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bricolage.native.ir.cache_nodes import RepeatedElements
from bricolage.native.ir.lowerings.block_weights import constant_in_blocks
from bricolage.native.ir.lowerings.contractions import convolve, multiply_matrices
from bricolage.native.ir.lowerings.decompositions import decompose_operator
from bricolage.native.ir.lowerings.in_steps import product_in_steps, sum_in_steps, without_relu
from bricolage.native.ir.lowerings.integers import (
    MOST_TERMS,
    ByteWeights,
    exact,
    match_dequantised,
    numbers_of,
    shift_to_signed,
    shift_to_unsigned,
)
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, lowering
from bricolage.native.ir.lowerings.views import pad, pointwise, reshape, scalar
from bricolage.native.ir.tensors import (
    Constant,
    Conv,
    DequantisedConstant,
    MatMul,
    Node,
    Normalise,
    Pointwise,
    Softmax,
    View,
)

_NORMAL = (2.0**-100, 2.0**100)
"""Scales of which a reciprocal, and what is multiplied with it, is neither subnormal nor infinite."""
_FINITE = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "abs",
        "relu",
        "leaky",
        "clip",
        "hardsigmoid",
        "hardswish",
        "sigmoid",
        "silu",
        "tanh",
        "gelu",
        "gelu_tanh",
        "cast",
        "dequantise",
    ]
)
"""Functions of numbers below 2^30 that are below 2^60."""
_INTEGERS = ("uint8", "int8", "uint16", "int16", "int32")


def _spread(op: OpContext, position: int, rank: int, axis: int) -> np.ndarray | None:
    """A constant scale or zero point, for a tensor or along an axis, as an array of that rank; None where it is missing.

    Raises:
        NoLowering: it is computed, or given by blocks.
    """
    node = op.optional(position)
    if node is None:
        return None
    if not isinstance(node, Constant) or op.get("block_size", 0):
        raise NoLowering(f"{op.op_type} whose input {position} is computed or in blocks")
    array = node.array.reshape(node.shape)
    if array.size == 1:
        return array.reshape((1,) * rank)
    if array.ndim != 1:
        raise NoLowering(f"{op.op_type} whose input {position} has {array.ndim} dimensions")
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)


def _repeat_scales(op: OpContext, axis: int) -> RepeatedElements | None:
    """Computed scales of whole blocks along the last dimension, without zero points; None where they are something else."""
    x, scales, times = op.tensor(0), op.tensor(1), int(op.get("block_size", 0))
    if isinstance(scales, Constant) or not times or op.optional(2) is not None or axis != len(x.shape) - 1:
        return None
    if scales.shape != (*x.shape[:-1], x.shape[-1] // times) or x.shape[-1] % times or not x.elements:
        return None
    return RepeatedElements(
        x.shape, scales.dtype, scales, lambda coords: (*coords[:-1], coords[-1].split(times)[0]), times=times
    )


def _axis(op: OpContext, rank: int) -> int:
    axis = int(op.get("axis", 1))
    return axis % rank if rank and -rank <= axis < rank else 0


def _constant(array: np.ndarray, dtype: str) -> Constant:
    data = np.ascontiguousarray(array, dtype)
    return Constant(data.shape if data.size > 1 else (), dtype, data if data.size > 1 else data.reshape(()))


@lowering("DequantizeLinear")
def dequantize_linear(op: OpContext) -> Node:
    """(x - zero point) · scale, which products of bytes look for in front of them; of constants with what they are made of.

    Raises:
        NoLowering: scales do not fit the integers, or see `decomposed`.
    """
    if (blocks := constant_in_blocks(op)) is not None:
        return blocks
    x, rank = op.tensor(0), len(op.tensor(0).shape)
    axis = _axis(op, rank)
    if x.dtype not in _INTEGERS or op.tensor(1).dtype != "float32" or op.get("output_dtype", 1) not in (0, 1):
        raise NoLowering(f"{op.op_type} of such types")
    if (repeated := _repeat_scales(op, axis)) is not None:
        return numbers_of(x, 0, repeated)
    scales = _spread(op, 1, rank, axis)
    zeros = _spread(op, 2, rank, axis)
    assert scales is not None
    zeros = np.zeros((1,) * rank, np.int32) if zeros is None else zeros.astype(np.int32)
    if isinstance(x, Constant):
        integers = x.array.reshape(x.shape)
        array = ((integers.astype(np.float32) - zeros.astype(np.float32)) * scales).astype(np.float32)
        return DequantisedConstant(x.shape, "float32", array, integers, scales.astype(np.float32), zeros)
    return numbers_of(x, _constant(zeros, "float32"), _constant(scales, "float32"))


@lowering("QuantizeLinear")
def quantize_linear(op: OpContext) -> Node:
    """round(x / scale) + zero point, the quotient that of float32. Bytes with a sign are kept as those without. What is made of
    bytes of the same scale by views alone is those bytes."""
    x, rank = op.tensor(0), len(op.tensor(0).shape)
    types = {value.dtype for value in op.node.inputs[:2] if value is not None}
    wanted = _type(op)
    if types != {ir.DataType.FLOAT} or op.get("precision", 1) not in (0, 1) or wanted not in ("uint8", "int8"):
        raise NoLowering(f"{op.op_type} of such types")
    axis = _axis(op, rank)
    scales = _spread(op, 1, rank, axis)
    zeros = _spread(op, 2, rank, axis)
    assert scales is not None
    zeros = np.zeros((1,) * rank, np.int32) if zeros is None else zeros.astype(np.int32)
    if not all(_NORMAL[0] < abs(value) < _NORMAL[1] for value in scales.flat):
        raise NoLowering(f"{op.op_type} of such types")
    if wanted == "int8":
        zeros = zeros + 128
    dequantisation = match_dequantised(x)
    same = dequantisation is not None and isinstance(dequantisation.scale, Constant) and scales.size == zeros.size == 1
    if (
        dequantisation is not None
        and same
        and dequantisation.zero == zeros.flat[0]
        and dequantisation.scale.array.reshape(-1)[0] == scales.flat[0]  # type: ignore[attr-defined]
    ):
        return dequantisation.integers if wanted == "uint8" else shift_to_signed(dequantisation.integers)
    with np.errstate(all="ignore"):
        inverse = np.float32(1) / scales
    if scales.size == zeros.size == 1:
        if zeros.flat[0] == 0 and scales.flat[0] > 0:
            x = without_relu(x)
        steps = sum_in_steps(x, np.float32(scales.flat[0])) or product_in_steps(x, np.float32(inverse.flat[0]))
        if steps is not None:
            return _round_to_byte(steps, _constant(zeros, "float32"), wanted)
    sources = _leaves(x)
    if any(isinstance(source, (Conv, MatMul, Normalise, Softmax)) for source in sources):
        ratio = pointwise("mul", x, _constant(inverse, "float32"))
    else:
        finite = all(isinstance(source, Constant) or source.dtype in ("uint8", "int8") for source in sources)
        function = "finite_steps" if finite else "steps"
        ratio = pointwise(function, x, _constant(scales, "float32"), _constant(inverse, "float32"))
    return _round_to_byte(ratio, _constant(zeros, "float32"), wanted)


def _leaves(x: Node) -> list[Node]:
    """What a tensor is computed from by element-wise functions that keep what is finite so, and views: bytes, and others.

    They tell how x is divided by a scale. Products, normalisations and softmax are rounded sums, of which where exactly a tie lies
    says nothing: x times the reciprocal of the scale is no further from what is right, and takes a fifth of the instructions. Of
    other functions of bytes ties may be many (of sums of two bytes with one scale every other one), and where they lie is what the
    quotient says; but it is finite.
    """
    leaves: list[Node] = []
    todo, seen = [x], {x}
    while todo:
        node = todo.pop()
        if isinstance(node, View) or (isinstance(node, Pointwise) and node.function in _FINITE):
            todo += [source for source in dict.fromkeys(node.sources) if source not in seen]
            seen.update(node.sources)
        else:
            leaves.append(node)
    return leaves


def _type(op: OpContext) -> str:
    zero = op.optional(2)
    if zero is not None:
        return zero.dtype
    return ir.DataType(int(op.get("output_dtype", 0)) or ir.DataType.UINT8).numpy().name


def _round_to_byte(ratio: Node, zero: Node, dtype: str) -> Node:
    """A float rounded to a byte; a zero point of one with a sign is 128 more."""
    byte_node = pointwise("saturate", ratio, zero, dtype="uint8", parameters=(0, 255))
    return byte_node if dtype == "uint8" else pointwise("flip_sign", byte_node, dtype="int8")


@lowering("DynamicQuantizeLinear")
def dynamic_quantize_linear(op: OpContext) -> tuple[Node, ...]:
    """By its definition, but for the last step."""
    defined = decompose_operator(op)
    assert isinstance(defined, tuple)
    _, scale, zero = defined
    ratio = pointwise("div", op.tensor(0), scale)
    return _round_to_byte(ratio, pointwise("cast", zero, dtype="float32"), "uint8"), scale, zero


def _left(op: OpContext, position: int, zero_position: int, *, rows: bool) -> tuple[Node, Node | int]:
    """The left side of an integer product as bytes without a sign, and its zero point: a number, or int32 that is computed.

    Raises:
        NoLowering: it is no tensor of bytes, or has other zero points than one, or one for each of its `rows`.
    """
    x, zero = op.tensor(position), op.optional(zero_position)
    if x.dtype not in ("uint8", "int8"):
        raise NoLowering(f"{op.op_type} of {x.dtype}")
    more = 128 if x.dtype == "int8" else 0
    if zero is None:
        return shift_to_unsigned(x), more
    if isinstance(zero, Constant) and zero.elements == 1:
        return shift_to_unsigned(x), int(zero.array.reshape(-1)[0]) + more
    if zero.elements != 1 and not (rows and len(zero.shape) == 1 and zero.shape[0] == x.shape[-2]):
        raise NoLowering(f"{op.op_type} with {zero.elements} zero points")
    wide = pointwise("cast", zero, dtype="int32")
    shape = () if zero.elements == 1 else (zero.elements, 1)
    return shift_to_unsigned(x), reshape(pointwise("add", wide, scalar(more, "int32")) if more else wide, shape)


def _right(op: OpContext, position: int, zero_position: int, axis: int) -> ByteWeights:
    """The right side.

    Raises:
        NoLowering: it is computed, or its zero points are not those of its columns, or sums of it may be too long.
    """
    w = op.tensor(position)
    if not isinstance(w, Constant) or w.dtype not in ("uint8", "int8") or axis >= len(w.shape):
        raise NoLowering(f"{op.op_type} with computed weights")
    if "MatMul" in op.op_type and len(w.shape) != 2:
        raise NoLowering(f"{op.op_type} with weights of {len(w.shape)} dimensions")
    zero = op.optional(zero_position)
    if zero is not None and not isinstance(zero, Constant):
        raise NoLowering(f"{op.op_type} with computed zero points")
    zeros = np.zeros(1, np.int32) if zero is None else zero.array.reshape(-1).astype(np.int32)
    if zeros.size not in (1, w.shape[axis]):
        raise NoLowering(f"{op.op_type} with {zeros.size} zero points")
    shape = [1] * len(w.shape)
    shape[axis] = zeros.size
    byte_weights = ByteWeights.of(w.array.reshape(w.shape), zeros.reshape(shape), axis)
    if byte_weights is None or not 0 < byte_weights.terms <= MOST_TERMS:
        raise NoLowering(f"{op.op_type} with sums that int32 may not hold")
    return byte_weights


@lowering("MatMulInteger")
def matmul_integer(op: OpContext) -> Node:
    """Into int32; the left zero point may be computed, and one for each row."""
    left, zero = _left(op, 0, 2, rows=len(op.tensor(0).shape) > 1)
    return exact(multiply_matrices, left, zero, _right(op, 1, 3, 1))


@lowering("QLinearMatMul")
def qlinear_matmul(op: OpContext) -> Node:
    """The integer sums in the units of the result."""
    left, zero = _left(op, 0, 2, rows=False)
    return _requantise_sums(op, exact(multiply_matrices, left, zero, _right(op, 3, 5, 1)), (1, 4, 6, 7), 0)


@lowering("ConvInteger")
def conv_integer(op: OpContext) -> Node:
    """Into int32; around the images lies their zero point, which may be computed."""
    left, zero = _left(op, 0, 2, rows=False)
    return _convolution(op, left, zero, _right(op, 1, 3, 0))


@lowering("QLinearConv")
def qlinear_conv(op: OpContext) -> Node:
    """The integer sums, with an int32 bias, in the units of the result."""
    left, zero = _left(op, 0, 2, rows=False)
    tail = len(op.tensor(3).shape) - 2
    total, bias = _convolution(op, left, zero, _right(op, 3, 5, 0)), op.optional(8)
    if bias is not None:
        total = pointwise("add", total, reshape(bias, (-1 if not bias.shape else bias.shape[0], *(1,) * tail)))
    return _requantise_sums(op, total, (1, 4, 6, 7), tail)


def _convolution(op: OpContext, x: Node, zero: Node | int, weights: ByteWeights) -> Node:
    tail = weights.integers.ndim - 2
    if weights.shifts is not None and op.get("group", 1) != 1:
        raise NoLowering(f"{op.op_type} of groups whose weights are no bytes with a sign")
    if isinstance(zero, int):
        return exact(lambda a, w: convolve(op, a, w, zero), x, zero, weights, tail)
    pads = op.get("pads") or [0] * (2 * tail)
    if op.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NoLowering(f"{op.op_type} with {op.get('auto_pad')} and a computed zero point")
    if any(pads) and op.get("auto_pad", "NOTSET") == "NOTSET":
        x = _pad_with_zero_point(x, zero, pads[:tail], pads[tail:])
        op = OpContext(op.op_type, op.inputs, {**op.attributes, "pads": [0] * (2 * tail)}, op.shapes, op.opset, op.node)
    return exact(lambda a, w: convolve(op, a, w), x, zero, weights, tail)


def _pad_with_zero_point(x: Node, zero: Node, before: list[int], behind: list[int]) -> Node:
    """Images with a computed zero point around them."""
    sizes = tuple(b + size + e for b, size, e in zip(before, x.shape[2:], behind, strict=True))
    shape = (*x.shape[:2], *sizes)
    inside = np.zeros(sizes, np.bool_)
    inside[tuple(slice(b, b + size) for b, size in zip(before, x.shape[2:], strict=True))] = True
    byte = pointwise("cast", zero, dtype="uint8")
    return pointwise("where", Constant(sizes, "bool", inside), pad(x, (0, 0, *before), shape, 0), byte)


def _requantise_sums(op: OpContext, total: Node, positions: tuple[int, int, int, int], tail: int) -> Node:
    """Sums times the quotient of their scales, every step in float32, and rounded: scales of the left and of the right side and of
    the result, and the result's zero point, are at these positions.

    Raises:
        NoLowering: one of them is computed, or there is more than one for the left side or the result.
    """
    scales = [op.tensor(position) for position in positions]
    if not all(isinstance(scale, Constant) for scale in scales):
        raise NoLowering(f"{op.op_type} with computed scales")
    x, w, y, zero = (scale.array.reshape(-1) for scale in scales if isinstance(scale, Constant))
    if math.prod((x.size, y.size, zero.size)) != 1 or scales[0].dtype != "float32":
        raise NoLowering(f"{op.op_type} with scales of rows")
    with np.errstate(all="ignore"):
        factor = (x.astype(np.float32) * w.astype(np.float32)) / y.astype(np.float32)
    numbers = pointwise("cast", total, dtype="float32")
    ratio = pointwise("mul", numbers, _constant(factor.reshape(-1, *(1,) * tail), "float32"))
    dtype = scales[3].dtype
    return _round_to_byte(ratio, scalar(int(zero[0]) + (128 if dtype == "int8" else 0)), dtype)
