"""Weights of products and embeddings of a graph, as the description has them: whole, or as integers in blocks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import Matrix
from bricolage.graph.constant_folding import constant_elements, is_known
from bricolage.graph.quantised_blocks import BITS, QuantisedBlocks, blocks_of, unpack_nibbles
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_FLOATS = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_SIGNED = {ir.DataType.INT4: 8, ir.DataType.INT8: 128, ir.DataType.UINT4: 0, ir.DataType.UINT8: 0}
"""What is added to integers so that they have no sign."""


def is_product(node: ir.Node, computed: set[ir.Value]) -> bool:
    """Whether a node multiplies what is computed by weights."""
    if (node.domain, node.op_type) not in (("", "MatMul"), ("com.microsoft", "MatMulNBits")):
        return False
    return node.inputs[0] in computed and not any(value in computed for value in node.inputs[1:])


def read_product(node: ir.Node) -> Matrix:
    """Weights [outputs, inputs] of a product.

    Raises:
        NotUnderstood: they are stored in a way that is not read.
    """
    if node.op_type == "MatMulNBits":
        return _read_n_bits(node)
    weights = node.inputs[1]
    assert weights is not None
    return _upright(*_read_matrix(weights, node, turned=True), node)


def read_embedding(node: ir.Node) -> Matrix:
    """Weights [tokens, width] that a node takes rows of.

    Raises:
        NotUnderstood: it does something else, or they are stored in a way that is not read.
    """
    attributes = node.attributes
    table = node.inputs[0]
    assert table is not None
    if (node.domain, node.op_type) == ("", "Gather") and attributes.get_int("axis", 0) == 0:
        return _upright(*_read_matrix(table, node, turned=False), node)
    if (node.domain, node.op_type) == ("com.microsoft", "GatherBlockQuantized") and not attributes.get_int(
        "gather_axis", 0
    ):
        return _read_gathered_blocks(node)
    raise NotUnderstood(f"tokens go into '{node.name}' ({node.op_type})")


def _fail(node: ir.Node, reason: str) -> NotUnderstood:
    return NotUnderstood(f"the weights of '{node.name}' ({node.op_type}) are {reason}")


def _read_matrix(value: ir.Value, node: ir.Node, *, turned: bool) -> tuple[Matrix, bool]:
    """A matrix as it is stored, and whether it lies the other way."""
    array = constant_elements(value)
    if array is not None:
        if array.ndim != 2 or array.dtype not in _FLOATS:
            raise _fail(node, f"{array.dtype} of rank {array.ndim}")
        return array, turned
    maker = value.producer()
    source = maker.inputs[0] if maker is not None else None
    if maker is None or maker.domain or source is None:
        raise _fail(node, "computed")
    if maker.op_type == "DequantizeLinear":
        blocks, sideways = _read_dequantised(maker, turned)
        return blocks, turned != sideways
    if maker.op_type == "Transpose":
        order = list(maker.attributes.get_ints("perm", [1, 0]) or ())
        return _read_matrix(source, node, turned=turned != (order == [1, 0]))
    if maker.op_type in ("Cast", "Identity"):
        return _read_matrix(source, node, turned=turned)
    raise _fail(node, f"computed by {maker.op_type}")


def _upright(matrix: Matrix, turned: bool, node: ir.Node) -> Matrix:
    if not turned:
        return matrix
    if isinstance(matrix, QuantisedBlocks):
        raise _fail(node, "in blocks across what is summed")
    return np.asarray(matrix.T)


_ROW_BLOCK = 32
"""Numbers of a block where a whole row has one scale."""


def _read_dequantised(node: ir.Node, turned: bool) -> tuple[QuantisedBlocks, bool]:
    """Blocks along the axis of DequantizeLinear, and whether that is the first one. Without blocks, rows or columns have a scale
    each, or all have one; these are `turned` as the matrix is."""
    given = [None if value is None else constant_elements(value) for value in node.inputs]
    stored = node.inputs[0]
    if stored is None or stored.dtype not in _SIGNED or any(array is None for array in given):
        raise _fail(node, "no constant integers of 4 or 8 bits")
    integers, scales = given[0], given[1]
    assert integers is not None and scales is not None
    axis, block = node.attributes.get_int("axis", 1) % 2, node.attributes.get_int("block_size", 0)
    offset = _SIGNED[stored.dtype]
    zeros = np.full(scales.shape, offset) if len(given) < 3 or given[2] is None else given[2].astype(np.int16) + offset
    if integers.ndim != 2 or scales.ndim != (2 if block else min(scales.ndim, 1)) or zeros.shape != scales.shape:
        raise _fail(node, f"{list(scales.shape)} scales of {list(integers.shape)} integers in blocks of {block}")
    sideways = axis == 0 if block else turned if scales.size == 1 else axis == 1
    if sideways:
        integers, scales, zeros = integers.T, scales.T, zeros.T
    unsigned = (integers.astype(np.int16) + offset).astype(np.uint8)
    if not block:
        block = _ROW_BLOCK
        if scales.size not in (1, len(unsigned)):
            raise _fail(node, f"{scales.size} scales of {len(unsigned)} rows")
        shape = (len(unsigned), -(-unsigned.shape[1] // block))
        scales, zeros = (np.broadcast_to(each.reshape(-1, 1), shape) for each in (scales, zeros))
    if scales.shape != (len(unsigned), -(-unsigned.shape[1] // block)):
        raise _fail(node, f"{list(scales.shape)} scales of {list(unsigned.shape)} integers in blocks of {block}")
    bits = 4 if stored.dtype in (ir.DataType.INT4, ir.DataType.UINT4) else 8
    return blocks_of(unsigned, _as_floats(scales), _as_floats(zeros), bits, block), sideways


def _as_floats(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float32)


def _read_n_bits(node: ir.Node) -> QuantisedBlocks:
    """com.microsoft.MatMulNBits."""
    words = {name: node.attributes.get_int(name, 4) for name in ("K", "N", "block_size", "bits")}
    k, n, block, bits = (int(words[name] or 0) for name in ("K", "N", "block_size", "bits"))
    if any(value is not None for value in node.inputs[4:]):
        raise _fail(node, "in an order of their own")
    packed, scales, zeros = (_constant(node, place) for place in (1, 2, 3))
    if bits not in BITS or min(k, n, block) < 1 or packed is None or scales is None:
        raise _fail(node, f"{k} x {n} of {bits} bits in blocks of {block}")
    count = -(-k // block)
    size = -(-count * block * bits // 8)
    if packed.size != n * size or scales.size != n * count:
        raise _fail(node, f"{packed.size} bytes and {scales.size} scales for {k} x {n} in blocks of {block}")
    return QuantisedBlocks(
        packed.reshape(n, size),
        _as_floats(scales.reshape(n, count)),
        _zero_points(node, zeros, n, count, bits),
        bits,
        block,
        k,
    )


def _zero_points(node: ir.Node, zeros: np.ndarray | None, n: int, count: int, bits: int) -> np.ndarray | None:
    """float32 [n, count]; None where all are the middle of the integers."""
    if zeros is None:
        return None
    if zeros.dtype == np.uint8 and bits == 4:
        if zeros.size != n * -(-count // 2):
            raise _fail(node, f"{zeros.size} bytes of zero points for {n} x {count}")
        zeros = unpack_nibbles(zeros.reshape(n, -1))[:, :count]
    if zeros.size != n * count:
        raise _fail(node, f"{zeros.size} zero points for {n} x {count}")
    points = _as_floats(zeros.reshape(n, count))
    return None if (points == 1 << (bits - 1)).all() else points


def _read_gathered_blocks(node: ir.Node) -> QuantisedBlocks:
    """com.microsoft.GatherBlockQuantized along the first axis, in blocks along the second."""
    stored, scales, zeros = node.inputs[0], _constant(node, 2), _constant(node, 3)
    block, bits = node.attributes.get_int("block_size", 128) or 0, node.attributes.get_int("bits", 4) or 0
    integers = _constant(node, 0)
    if stored is None or integers is None or scales is None or bits not in BITS or block < 1:
        raise _fail(node, f"of {bits} bits in blocks of {block}")
    if node.attributes.get_int("quantize_axis", 1) not in (1, -1) or integers.ndim != 2:
        raise _fail(node, "in blocks along another axis")
    if stored.dtype == ir.DataType.UINT8:  # around the middle, where there are no zero points
        unsigned = unpack_nibbles(integers) if bits == 4 else integers
    elif stored.dtype == ir.DataType.INT4 and zeros is None:
        unsigned = (integers.astype(np.int16) + 8).astype(np.uint8)
    else:
        raise _fail(node, f"{stored.dtype} with zero points")
    n, count = len(unsigned), -(-unsigned.shape[1] // block)
    if scales.shape != (n, count):
        raise _fail(node, f"{list(scales.shape)} scales of {list(unsigned.shape)} integers in blocks of {block}")
    return blocks_of(unsigned, _as_floats(scales), _zero_points(node, zeros, n, count, bits), bits, block)


def _constant(node: ir.Node, place: int) -> np.ndarray | None:
    value = node.inputs[place] if place < len(node.inputs) else None
    if value is None:
        return None
    if not is_known(value):
        raise _fail(node, "computed")
    return constant_elements(value)
