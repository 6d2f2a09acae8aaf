# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Matrices: products, inverses, distances of rows (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, contributed
from bricolage.lowering.operators.contributed.activation import apply_activation
from bricolage.lowering.operators.matmul import gemm


def _batch_moved(xp: Arrays, x: Array) -> Array:
    """The first axis behind the other batch axes."""
    return xp.transpose(x, (*range(1, x.ndim - 1), 0, x.ndim - 1))


def _transpose_matrix(xp: Arrays, x: Array) -> Array:
    return x if x.ndim < 2 else xp.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@contributed("FusedMatMul")
def fused_matmul(
    xp: Arrays,
    a: Array,
    b: Array,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Array:
    """ContribOperators.md#com.microsoft.FusedMatMul."""
    a, b = (_batch_moved(xp, x) if moved else x for x, moved in ((a, transBatchA), (b, transBatchB)))
    a, b = (_transpose_matrix(xp, x) if turned else x for x, turned in ((a, transA), (b, transB)))
    return xp.matmul(a, b) * alpha


@contributed("TransposeMatMul")
def transpose_matmul(xp: Arrays, a: Array, b: Array, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Array:
    """ContribOperators.md#com.microsoft.TransposeMatMul: FusedMatMul as it was called before."""
    return fused_matmul(xp, a, b, alpha=alpha, transA=transA, transB=transB)


@contributed("FusedGemm")
def fused_gemm(
    xp: Arrays,
    a: Array,
    b: Array,
    c: Array = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """ContribOperators.md#com.microsoft.FusedGemm."""
    product = gemm(xp, a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return apply_activation(xp, product, activation, activation_alpha, activation_beta)


def unpack_bits(xp: Arrays, packed: Array, bits: int, count: int) -> Array:
    """Unsigned numbers of `bits` bits, 8 / `bits` to a byte of the last axis, the low ones first; the first `count` of each row,
    as int32."""
    rows = xp.astype(packed, xp.dtype(6))
    parts = [rows // (1 << low) % (1 << bits) for low in range(0, 8, bits)]
    *outer, width = packed.shape
    every = xp.stack(parts, rows.ndim).reshape((*outer, width * len(parts)))
    return xp.slice_axis(every, rows.ndim - 1, 0, count, 1)


def _unknown_packing(node: ir.Node) -> str | None:
    if node.attributes.get_int("bits", 4) not in (2, 4, 8):
        return "weights of 2, 4 and 8 bits alone are packed into whole bytes"
    if node.attributes.get_int("weight_prepacked", 0):
        return "its weights are laid out for one particular processor"
    if len(node.inputs) > 4 and node.inputs[4] is not None:
        return "weights in another order (g_idx) are not handled"
    return None


@contributed("MatMulNBits", unless=_unknown_packing)
def matmul_n_bits(
    xp: Arrays,
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array = None,
    g_idx: Array = None,
    bias: Array = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> Array:
    """ContribOperators.md#com.microsoft.MatMulNBits. `accuracy_level` says how coarsely a runtime may take A; here A is exact."""
    blocks = -(-K // block_size)
    values = unpack_bits(xp, b.reshape((N, -1)), bits, blocks * block_size).reshape((N, blocks, block_size))
    weights = xp.astype(values, a.dtype)
    if zero_points is None:
        weights = weights - float(1 << (bits - 1))
    else:
        packed = xp.kind(zero_points) == "u"
        zeros = unpack_bits(xp, zero_points.reshape((N, -1)), bits, blocks) if packed else zero_points
        weights = weights - xp.astype(zeros, a.dtype).reshape((N, blocks, 1))
    weights = weights * xp.astype(scales, a.dtype).reshape((N, blocks, 1))
    weights = xp.slice_axis(weights.reshape((N, blocks * block_size)), 1, 0, K, 1)
    product = xp.matmul(a, xp.transpose(weights, (1, 0)))
    return product if bias is None else product + bias


@contributed("Inverse")
def inverse(xp: Arrays, x: Array) -> Array:
    """ContribOperators.md#com.microsoft.Inverse, of matrices in the last two axes."""
    return xp.lib.linalg.inv(x)


def _other_metric(node: ir.Node) -> str | None:
    metric = node.attributes.get_string("metric", "sqeuclidean")
    return None if metric in ("euclidean", "sqeuclidean") else f"distances of the kind {metric!r} are not handled"


@contributed("CDist", unless=_other_metric)
def distances(xp: Arrays, a: Array, b: Array, *, metric: str = "sqeuclidean") -> Array:
    """ContribOperators.md#com.microsoft.CDist: of each row of A (M, K) to each of B (N, K)."""
    apart = a.reshape((a.shape[0], 1, a.shape[1])) - b.reshape((1, b.shape[0], b.shape[1]))
    squared = xp.sum(apart * apart, (2,))
    return xp.lib.sqrt(squared) if metric == "euclidean" else squared
