"""Sums and chains of matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.properties import SYMBOLIC_SIZE
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, Weight, op
from bricolage.rewrite.predicates import broadcast, floating, integer, rank, require, require_shape, shape, sizes
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

a, b, c, x = AnyValue("a"), AnyValue("b"), AnyValue("c"), AnyValue("x")


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
        examples[0].but("has not the shape", inputs="float[2,3] x, float[3,4] z, float[5,2,4] c"),
        Example("float[1,3] x, float[3,4] z, float[2,4] c", "t = MatMul(x, z) y = Add(t, c)", why="has not the shape"),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(x, AnyValue("z"), name="product")
        return [op.Add(product, c), op.Add(op.Gemm(x, AnyValue("z"), name="product"), c)]

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
        examples[0].but("shape", inputs="float[2,3] a, float[3,4] b, float[5,3,4] c"),
        Example(
            "float[3,3] a, float[3,3] b, float[3,3] c", "s = MatMul(a, b) t = MatMul(c, a) y = Add(s, t)", why="another"
        ),
        examples[0].but("not profitable", outputs="y, t"),
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


def _factors(value: ir.Value, home: object, root: bool = True) -> list[ir.Value]:
    """The factors of a chain of products: those of its parts that nothing else reads."""
    node = value.producer()
    inner = node is not None and node.op_type == "MatMul" and not node.domain and node.graph is home
    if not root and (len(value.uses()) > 1 or value.is_graph_output() or is_known(value)):
        inner = False
    if node is None or not inner:
        return [value]
    left, right = node.inputs
    assert left is not None and right is not None
    if rank(right) != 2 or rank(left) < 2:
        return [value]
    return [*_factors(left, home, False), *_factors(right, home, False)]


class _Chain:
    """The cheapest order of a chain of products (dynamic programming; Godbole 1973). Constants multiply one another for nothing."""

    def __init__(self, factors: Sequence[ir.Value]) -> None:
        rows = math.prod(d if isinstance(d, int) else SYMBOLIC_SIZE for d in shape(factors[0])[:-1])
        last = [shape(value)[-1] for value in factors]
        if not all(isinstance(d, int) for d in last):
            raise MatchFailure("a size is not known")
        self._sizes = [rows, *(int(d) for d in last)]
        self._constant = [is_known(value) for value in factors]
        self._cuts: dict[tuple[int, int], int] = {}
        self._costs: dict[tuple[int, int], int] = {}
        for length in range(len(factors) + 1):
            for start in range(len(factors) - length):
                self._solve(start, start + length)

    def _solve(self, start: int, end: int) -> None:
        """The factors from `start` to `end`, both included."""
        options = [(self._costs[start, k] + self._costs[k + 1, end], k) for k in range(start, end)]
        cost, cut = min(((before + self.product(start, k, end), k) for before, k in options), default=(0, start))
        self._costs[start, end], self._cuts[start, end] = cost, cut

    def product(self, start: int, cut: int, end: int) -> int:
        """Multiply-adds of the product of two parts."""
        constant = all(self._constant[start : end + 1])
        return 0 if constant else self._sizes[start] * self._sizes[cut + 1] * self._sizes[end + 1]

    @property
    def cost(self) -> int:
        return self._costs[0, len(self._constant) - 1]

    def build(self, op: Operators, factors: Sequence[ir.Value]) -> ir.Value:
        """The chain in the cheapest order."""

        def part(start: int, end: int) -> ir.Value:
            if start == end:
                return factors[start]
            cut = self._cuts[start, end]
            return op.MatMul(part(start, cut), part(cut + 1, end))

        return part(0, len(factors) - 1)


class ReorderProducts(Rule):
    """A₁ · A₂ · … · Aₙ in one order = in the order of the fewest operations

    for matrices (the first may have more axes) of known sizes, where that takes fewer operations. Products of constants are
    free, since they are folded.
    """

    family = "product"
    examples = (
        Example("float[64,64] a, float[64,64] b, float[64,2] c", "t = MatMul(a, b) y = MatMul(t, c)"),
        Example("float[2,64] a, float[64,64] b, float[64,64] c", "t = MatMul(b, c) y = MatMul(a, t)"),
        Example("float[9,6] x", "t = MatMul(x, v) y = MatMul(t, w)", {"v": (6, 6), "w": (6, 3)}),
        Example("float[N,5,6] x", "t = MatMul(x, v) y = MatMul(t, w)", {"v": (6, 6), "w": (6, 3)}),
        Example(
            "float[3,9] a, float[9,2] b, float[2,8] c, float[8,4] d",
            "s = MatMul(c, d) t = MatMul(b, s) y = MatMul(a, t)",
        ),
    )
    counterexamples = (
        Example("float[2,8] a, float[8,8] b, float[8,8] c", "t = MatMul(a, b) y = MatMul(t, c)", why="cheapest"),
        Example("float[3,8,8] a, float[3,8,8] b, float[3,8,2] c", "t = MatMul(a, b) y = MatMul(t, c)", why="no chain"),
        Example("float[9,6] x", "t = MatMul(x, v) y = MatMul(t, w)", {"v": (6, 2), "w": (2, 6)}, why="cheapest"),
        Example("float[8,8] a, float[8,M] b, float[M,2] c", "t = MatMul(a, b) y = MatMul(t, c)", why="not known"),
        examples[0].but("no chain", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [op.MatMul(a, b)]

    def rewrite(self, op: Operators, match: Match) -> Result:
        floating(match.root)
        factors = _factors(match.root, match.home)
        require(len(factors) > 2, "it is no chain of matrices")
        chain = _Chain(factors)
        require(chain.cost < self._present(match.root, factors, chain), "the order is the cheapest already")
        return chain.build(op, factors)

    @staticmethod
    def _present(root: ir.Value, factors: Sequence[ir.Value], chain: _Chain) -> int:
        """Multiply-adds of the chain in its present order."""
        total, place = 0, 0

        def visit(value: ir.Value) -> tuple[int, int]:
            nonlocal total, place
            if place < len(factors) and value is factors[place]:
                place += 1
                return place - 1, place - 1
            node = value.producer()
            assert node is not None and node.inputs[0] is not None and node.inputs[1] is not None
            (start, cut), (_, end) = visit(node.inputs[0]), visit(node.inputs[1])
            total += chain.product(start, cut, end)
            return start, end

        visit(root)
        return total


class MergeLinearLayers(Rule):
    """(x · V + p) · W + q = x · (V · W) + (p · W + q)

    for constant matrices V and W and constant vectors p and q (or no q), written with MatMul or with Gemm, where that takes fewer
    operations.
    """

    family = "product"
    examples = (
        Example(
            "float[2,5,6] x", "t = MatMul(x, v) u = Add(p, t) y = MatMul(u, w)", {"v": (6, 7), "p": (7,), "w": (7, 3)}
        ),
        Example(
            "float[5,6] x",
            "t = Gemm<transB=1>(x, v, p) y = Gemm(t, w, q)",
            {"v": (7, 6), "p": (7,), "w": (7, 3), "q": (3,)},
        ),
        Example("float[N,6] x", "t = Gemm(x, v, p) y = Gemm<transB=1>(t, w)", {"v": (6, 7), "p": (7,), "w": (3, 7)}),
    )
    counterexamples = (
        Example(
            "float[9,6] x",
            "t = Gemm(x, v, p) y = MatMul(t, w)",
            {"v": (6, 2), "p": (2,), "w": (2, 6)},
            why="not profitable",
        ),
        Example(
            "float[9,6] x, float[7] p",
            "t = Gemm(x, v, p) y = MatMul(t, w)",
            {"v": (6, 7), "w": (7, 3)},
            why="not a constant",
        ),
        examples[0].but("scales", "t = Gemm<alpha=2.0>(x, v, p) y = MatMul(t, w)", inputs="float[9,6] x"),
        examples[0].but("transposed", "t = Gemm<transA=1>(x, v, p) y = MatMul(t, w)", inputs="float[6,9] x"),
        Example(
            "float[9,6] x",
            "t = Gemm(x, v, p) y = MatMul(t, w)",
            {"v": (6, 7), "p": (9, 1), "w": (7, 3)},
            why="no vector",
        ),
        examples[0].but("not profitable", "t = Gemm(x, v, p) y = MatMul(t, w)", inputs="float[9,6] x", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        inner = Either(
            op.Add(op.MatMul(x, Weight("v")), Weight("p")), op.Gemm(x, Weight("v"), Weight("p"), name="inner")
        )
        return [op.MatMul(inner, Weight("w")), op.Gemm(inner, Weight("w"), AnyValue("q", optional=True), name="outer")]

    def check(self, match: Match) -> None:
        floating(match.root)
        for node in match.nodes.values():
            scales = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
            require(scales == [1.0, 1.0], "there are scales")
            require(not integer(node, "transA", 0), "the data are transposed")
        require(rank(match["v"]) == rank(match["w"]) == 2, "the weights are no matrices")
        require(rank(match["p"]) == 1, "the bias is no vector")

    def rewrite(self, op: Operators, match: Match) -> Result:
        first, second = self._weight(op, match, "v", "inner"), self._weight(op, match, "w", "outer")
        width = sizes(match["v"])[0 if self._is_transposed(match, "inner") else 1]
        bias = op.MatMul(op.Expand(match["p"], op.integers([width])), second)
        weight = op.MatMul(first, second)
        if "outer" not in match.nodes:
            return op.Add(op.MatMul(match["x"], weight), bias)
        last = match.get("q")
        return op.Gemm(match["x"], weight, bias if last is None else op.Add(bias, last))

    @staticmethod
    def _is_transposed(match: Match, name: str) -> bool:
        return name in match.nodes and bool(integer(match.node(name), "transB", 0))

    def _weight(self, op: Operators, match: Match, variable: str, name: str) -> ir.Value:
        return op.Transpose(match[variable]) if self._is_transposed(match, name) else match[variable]
