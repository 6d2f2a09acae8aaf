"""Matrix products and attention as single ATen calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bricolage.lowering.torch.fused import NodeView, emitter
from bricolage.lowering.torch.known_values import Emitted


@emitter("MatMul")
def matmul(v: NodeView) -> Emitted | None:
    return v.call(torch.matmul, v.tensor(0), v.tensor(1))


@emitter("Gemm")
def gemm(v: NodeView) -> Emitted | None:
    """addmm, or linear when the weight is stored as [out, in]."""
    alpha, beta = v.get("alpha", 1.0), v.get("beta", 1.0)
    if not v.is_float(0):
        return None
    bias = v.shape(2) if v.given(2) else None
    plain = alpha == 1 and beta == 1
    a = v.builder.method("t", v.tensor(0)) if v.get("transA", 0) else v.tensor(0)
    if plain and v.get("transB", 0) and (not v.given(2) or (bias is not None and len(bias) == 1)):
        return v.call(F.linear, a, v.tensor(1), v.tensor(2))
    b = v.builder.method("t", v.tensor(1)) if v.get("transB", 0) else v.tensor(1)
    if not v.given(2):
        product = v.call(torch.mm, a, b)
        return product if alpha == 1 else v.call(torch.mul, product, alpha)
    return v.call(torch.addmm, v.tensor(2), a, b, beta=beta, alpha=alpha)


@emitter("Einsum")
def einsum(v: NodeView) -> Emitted | None:
    return v.call(torch.einsum, v.get("equation").replace(" ", ""), *[v.tensor(i) for i in range(len(v.inputs))])


@emitter("Attention")
def attention(v: NodeView) -> Emitted | None:
    """The fused kernel for plain attention over [batch, heads, time, size]; masks and caches take the long way."""
    simple = (
        v.outputs == 1
        and all(v.rank(i) == 4 for i in range(3))
        and not any(v.given(i) for i in range(3, 7))
        and not v.get("softcap", 0.0)
        and v.get("softmax_precision") is None
        and v.get("left_window_size", -1) < 0
        and v.get("right_window_size", -1) < 0
    )
    shapes = [v.shape(i) for i in range(3)]
    if not simple or any(s is None for s in shapes) or v.builder.xp.float_dtype is not None:
        return None
    q, k, _ = shapes
    grouped = q is not None and k is not None and q[1] != k[1]
    return v.call(
        F.scaled_dot_product_attention,
        v.tensor(0),
        v.tensor(1),
        v.tensor(2),
        is_causal=bool(v.get("is_causal", 0)),
        scale=v.get("scale"),
        enable_gqa=grouped,
    )
