"""Sums and chains of matrix products."""

from __future__ import annotations

from bricolage.rewrite.facts import broadcast, floating, rank, require, require_shape, shape
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Op, op
from bricolage.rewrite.rule import Example, Operators, Result, Rule

a, b, c, x = Any("a"), Any("b"), Any("c"), Any("x")


class SumIntoGemm(Rule):
    """MatMul(x, z) + c = Gemm(x, z, c), Gemm(x, z) + c = Gemm(x, z, c)

    for matrices x and z of floating-point numbers, and c that broadcasts to the shape of the product.
    """

    family = "product"
    examples = (
        Example("float[2,3] x, float[3,4] z, float[4] c", "t = MatMul(x, z) y = Add(t, c)"),
        Example("float[N,3] x, float[3,4] z, float[N,4] c", "t = MatMul(x, z) y = Add(c, t)"),
        Example("float[2,3] x, float[4,3] z, float[2,1] c", "t = Gemm<transB=1,alpha=2.0>(x, z) y = Add(t, c)"),
    )
    counterexamples = (
        Example("int32[2,3] x, int32[3,4] z, int32[4] c", "t = MatMul(x, z) y = Add(t, c)", why="floating-point"),
        Example("float[5,2,3] x, float[3,4] z, float[4] c", "t = MatMul(x, z) y = Add(t, c)", why="no matrices"),
        Example(
            "float[2,3] x, float[3,4] z, float[5,2,4] c", "t = MatMul(x, z) y = Add(t, c)", why="has not the shape"
        ),
        Example("float[1,3] x, float[3,4] z, float[2,4] c", "t = MatMul(x, z) y = Add(t, c)", why="has not the shape"),
        Example(
            "float[2,3] x, float[3,4] z, float[4] c", "t = MatMul(x, z) y = Add(t, c)", outputs="y, t", why="no gain"
        ),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(x, Any("z"), name="product")
        return [op.Add(product, c), op.Add(op.Gemm(x, Any("z"), name="product"), c)]

    def check(self, match: Match) -> None:
        product = match.node("product").outputs[0]
        floating(product)
        require(rank(match["x"]) == rank(match["z"]) == 2, "x and z are no matrices")
        require_shape(match.root, product)
        require(broadcast(match["c"], product) == shape(product), "c does not broadcast to the product")

    def rewrite(self, op: Operators, match: Match) -> Result:
        product = match.node("product")
        if product.op_type == "MatMul":
            return op.Gemm(match["x"], match["z"], match["c"])
        return op.copy(product, match["x"], match["z"], match["c"], beta=1.0)


class FactorOutProduct(Rule):
    """MatMul(A, B) ± MatMul(A, C) = MatMul(A, B ± C), MatMul(B, A) ± MatMul(C, A) = MatMul(B ± C, A)

    where B and C have equal shapes.
    """

    family = "product"
    examples = (
        Example("float[2,3] a, float[3,4] b, float[3,4] c", "s = MatMul(a, b) t = MatMul(a, c) y = Add(s, t)"),
        Example("float[5,2,3] b, float[5,2,3] c, float[3,4] a", "s = MatMul(b, a) t = MatMul(c, a) y = Sub(s, t)"),
    )
    counterexamples = (
        Example(
            "float[2,3] a, float[3,4] b, float[5,3,4] c", "s = MatMul(a, b) t = MatMul(a, c) y = Add(s, t)", why="shape"
        ),
        Example(
            "float[3,3] a, float[3,3] b, float[3,3] c", "s = MatMul(a, b) t = MatMul(c, a) y = Add(s, t)", why="another"
        ),
        Example(
            "float[2,3] a, float[3,4] b, float[3,4] c",
            "s = MatMul(a, b) t = MatMul(a, c) y = Add(s, t)",
            outputs="y, t",
            why="no gain",
        ),
    )

    def patterns(self) -> list[Op]:
        sums = op.one_of("Add", "Sub")
        return [
            sums(op.MatMul(a, b), op.MatMul(a, c), name="left"),
            sums(op.MatMul(b, a), op.MatMul(c, a), name="right"),
        ]

    def check(self, match: Match) -> None:
        floating(match.root)
        require_shape(match["b"], match["c"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "left" in match.nodes:
            return op.MatMul(match["a"], op.copy(match.node("left"), match["b"], match["c"]))
        return op.MatMul(op.copy(match.node("right"), match["b"], match["c"]), match["a"])


class ReassociateProducts(Rule):
    """MatMul(MatMul(a, b), c) = MatMul(a, MatMul(b, c)), and back

    for matrices, where that takes fewer operations.
    """

    family = "product"
    examples = (
        Example("float[64,64] a, float[64,64] b, float[64,2] c", "t = MatMul(a, b) y = MatMul(t, c)"),
        Example("float[2,64] a, float[64,64] b, float[64,64] c", "t = MatMul(b, c) y = MatMul(a, t)"),
        Example("float[9,6] x", "t = MatMul(x, v) y = MatMul(t, w)", {"v": (6, 6), "w": (6, 3)}),
    )
    counterexamples = (
        Example("float[2,8] a, float[8,8] b, float[8,8] c", "t = MatMul(a, b) y = MatMul(t, c)", why="no gain"),
        Example("float[3,8,8] a, float[3,8,8] b, float[3,8,2] c", "t = MatMul(a, b) y = MatMul(t, c)", why="matrices"),
    )

    def patterns(self) -> list[Op]:
        return [op.MatMul(op.MatMul(a, b), c, name="left"), op.MatMul(a, op.MatMul(b, c))]

    def check(self, match: Match) -> None:
        floating(match.root)
        require(all(rank(match[name]) == 2 for name in "abc"), "they are not all matrices")

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "left" in match.nodes:
            return op.MatMul(match["a"], op.MatMul(match["b"], match["c"]))
        return op.MatMul(op.MatMul(match["a"], match["b"]), match["c"])
