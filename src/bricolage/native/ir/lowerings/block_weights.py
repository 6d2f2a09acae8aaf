"""Lowerings of operators whose weights are integers of 4 or 8 bits in blocks: they stay integers where products read them."""

from __future__ import annotations

import numpy as np

from bricolage.graph.quantised_blocks import BITS, QuantisedBlocks, blocks_of, unpack_nibbles
from bricolage.lowering.common import PORTABLE, refusal
from bricolage.native.ir.lowerings.contractions import multiply_matrices
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, axis_of, lowering
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import BlockConstant, Constant, Node

_IN_BYTES = 4
"""The `accuracy_level` of a model that lets rows become bytes, each block with a scale of its own."""
_FULL = 8
"""What the length of a block is made a multiple of where there is one block for a whole column."""


@lowering("MatMulNBits")
def matmul_n_bits(op: OpContext) -> Node:
    """com.microsoft.MatMulNBits: rows [..., K] times K × N weights, which are integers in blocks along K.

    Raises:
        NoLowering: weights that are computed, in another order (`g_idx`) or laid out for one processor, of 2 bits, or of sizes that
            do not fit together.
    """
    if (reason := refusal(PORTABLE, op.node, 1)) is not None:
        raise NoLowering(reason)
    k, n, block, bits = (int(op.get(name, 4)) for name in ("K", "N", "block_size", "bits"))
    if bits not in BITS:
        raise NoLowering(f"weights of {bits} bits")
    if block < 1 or k < 1 or n < 1:
        raise NoLowering(f"{k} x {n} weights in blocks of {block}")
    count = -(-k // block)
    packed = _read_constant(op, 1, "uint8")
    scales = _read_constant(op, 2, "float32")
    if packed is None or scales is None:
        raise NoLowering("MatMulNBits without weights or scales")
    bytes_ = -(-count * block * bits // 8)
    if packed.size != n * bytes_ or scales.size != n * count:
        raise NoLowering(f"{packed.size} bytes of weights and {scales.size} scales for {k} x {n} in blocks of {block}")
    zeros = _zeros(op, n, count, bits)
    if zeros is not None and (zeros == 1 << (bits - 1)).all():
        zeros = None
    weights = QuantisedBlocks(packed.reshape(n, bytes_), scales.reshape(n, count), zeros, bits, block, k)
    coarse = op.get("accuracy_level", 0) == _IN_BYTES
    product = multiply_matrices(op.tensor(0), BlockConstant(weights, in_bytes=coarse))
    bias = op.optional(5)
    return product if bias is None else pointwise("add", product, bias)


def _zeros(op: OpContext, n: int, count: int, bits: int) -> np.ndarray | None:
    """Zero points [n, count] as float32, as which they may be given; None where there are none."""
    node = op.optional(3)
    if node is None:
        return None
    if node.dtype != "uint8":
        zeros = _read_constant(op, 3, "float32")
        assert zeros is not None
    else:
        packed = _read_constant(op, 3, "uint8")
        assert packed is not None
        if bits == 4:
            if packed.size != n * -(-count // 2):
                raise NoLowering(f"{packed.size} bytes of zero points for {n} x {count}")
            packed = unpack_nibbles(packed.reshape(n, -1))[:, :count]
        zeros = packed.astype(np.float32)
    if zeros.size != n * count:
        raise NoLowering(f"{zeros.size} zero points for {n} x {count}")
    return np.ascontiguousarray(zeros.reshape(n, count))


def _read_constant(op: OpContext, position: int, dtype: str) -> np.ndarray | None:
    """A constant input of a type.

    Raises:
        NoLowering: it is computed, or of another type.
    """
    node = op.optional(position)
    if node is None:
        return None
    if not isinstance(node, Constant) or node.dtype != dtype:
        raise NoLowering(f"{op.op_type} whose input {position} is computed, or {node.dtype} instead of {dtype}")
    return node.array.reshape(node.shape)


def constant_in_blocks(op: OpContext) -> BlockConstant | None:
    """DequantizeLinear of a constant matrix of 4 bits, or of 8 bits in blocks, which stays integers where a product reads it; None
    for any other.

    Raises:
        NoLowering: the scales do not fit the integers.
    """
    x, scale, zero = op.tensor(0), op.tensor(1), op.optional(2)
    if (
        isinstance(x, Constant)
        and isinstance(scale, Constant)
        and (zero is None or isinstance(zero, Constant))
        and (len(x.shape), x.dtype in ("int8", "uint8"), scale.dtype) == (2, True, "float32")
        and x.elements
        and (op.get("block_size", 0) or _bits(op) == 4)
    ):
        return _in_blocks(op, x, scale, zero)
    return None


def _in_blocks(op: OpContext, x: Constant, scale: Constant, zero: Constant | None) -> BlockConstant:
    block, bits, axis = int(op.get("block_size", 0)), _bits(op), axis_of(op, 2, 1)
    integers = x.array.reshape(x.shape).astype(np.int16)
    # A scale for each index of an axis, or one for all, makes one block along the other dimension.
    along = axis if block else 1 - axis if scale.elements > 1 else 0
    given = [scale.array.reshape(scale.shape)] + ([] if zero is None else [zero.array.reshape(zero.shape)])
    if not block:
        block = -(-x.shape[along] // _FULL) * _FULL
        size = (1, x.shape[1]) if along == 0 else (x.shape[0], 1)
        if scale.elements not in (1, max(size)):
            raise NoLowering(f"{scale.elements} scales for {list(x.shape)}")
        given = [np.broadcast_to(each.reshape(-1) if along == 0 else each.reshape(-1, 1), size) for each in given]
    if along == 0:
        integers, given = integers.T, [each.T for each in given]
    n, k = integers.shape
    if any(each.shape != (n, -(-k // block)) for each in given):
        raise NoLowering(f"scales {list(scale.shape)} of {list(x.shape)} integers in blocks of {block}")
    scales, *zeros = (np.ascontiguousarray(each, np.float32) for each in given)
    middle = 1 << (bits - 1)
    offset = middle if x.dtype == "int8" else 0
    around = zeros[0] + np.float32(offset) if zeros else np.full_like(scales, offset)
    return BlockConstant(
        blocks_of((integers + offset).astype(np.uint8), scales, around, bits, block), turned=along == 1
    )


def _bits(op: OpContext) -> int:
    """Of the integers as the model has them."""
    stored = op.node.inputs[0]
    return 4 if stored is not None and stored.dtype is not None and stored.dtype.name in ("INT4", "UINT4") else 8
