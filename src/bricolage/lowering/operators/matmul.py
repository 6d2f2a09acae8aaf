"""Matrix products."""

from __future__ import annotations

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, operator


@operator("MatMul")
def matmul(xp: Arrays, a: Array, b: Array) -> Array:
    return xp.matmul(a, b)


@operator("Gemm", since=7)
def gemm(
    xp: Arrays,
    a: Array,
    b: Array,
    c: Array = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    product = xp.matmul(xp.transpose(a, (1, 0)) if transA else a, xp.transpose(b, (1, 0)) if transB else b)
    if alpha != 1:
        product = xp.astype(product * alpha, product.dtype)
    if c is None or beta == 0:
        return product
    return product + (c if beta == 1 else xp.astype(c * beta, c.dtype))


@operator("Einsum", since=12)
def einsum(xp: Arrays, *xs: Array, equation: str) -> Array:
    return xp.einsum(equation.replace(" ", ""), *xs)


@operator("Det", since=11)
def det(xp: Arrays, x: Array) -> Array:
    return xp.det(x)
