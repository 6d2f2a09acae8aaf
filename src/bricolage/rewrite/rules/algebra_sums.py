"""Sums of shifted and scaled terms, exponentials, signs and reciprocals."""

from __future__ import annotations

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.predicates import integer, require, require_shape, scalar, text
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.rules.algebra import ABC, AlgebraRule, a, b, x, z


class ShiftOutOfSum(Rule):
    """ReduceSum(BitShift(A, k)) = BitShift(ReduceSum(A), k)

    for a left shift by one element: exact modulo the range of unsigned integers.
    """

    family = "algebra"
    examples = (
        Example(
            "uint64[2,8] x",
            'k = Cast<to=13>(i) s = BitShift<direction="LEFT">(x, k) t = ReduceSum(s, axes) y = Cast<to=7>(t)',
            {"axes": [1], "i": 3},
        ),
    )
    counterexamples = (
        Example(
            "uint64[2,8] x, uint64 k",
            's = BitShift<direction="RIGHT">(x, k) t = ReduceSum(s, axes) y = Cast<to=7>(t)',
            {"axes": [1]},
            why="drops bits",
        ),
        Example(
            "uint64[2,8] x, uint64[8] k",
            's = BitShift<direction="LEFT">(x, k) t = ReduceSum(s, axes) y = Cast<to=7>(t)',
            {"axes": [1]},
            why="not one element",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.ReduceSum(op.BitShift(x, AnyValue("k"), name="shift"), AnyValue("axes", optional=True), name="sum")]

    def check(self, match: Match) -> None:
        require(text(match.node("shift"), "direction", "LEFT") == "LEFT", "a shift to the right drops bits")
        require(scalar(match["k"]), "the shift is not one element")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("shift"), op.copy(match.node("sum"), match["x"], match.get("axes")), match["k"])


class ScaleOutOfSum(AlgebraRule):
    """ReduceSum(x · c) = ReduceSum(x) · c, and ReduceMean; and with / for ·

    for a constant c of one element.
    """

    examples = (
        Example("float[4,8] x", "t = Mul(c, x) y = ReduceSum(t, axes)", {"c": 2.0, "axes": [1]}),
        Example("float[4,8] x", "t = Div(x, c) y = ReduceMean<keepdims=0>(t, axes)", {"c": 2.0, "axes": [1]}),
    )
    counterexamples = (
        Example("float[4,8] x", "t = Mul(c, x) y = ReduceSum(t, axes)", {"c": (8,), "axes": [1]}, why="one element"),
        Example("float[4,8] x", "t = Div(c, x) y = ReduceSum(t, axes)", {"c": 2.0, "axes": [1]}, why="not a constant"),
        Example("float x", "t = Mul(c, x) y = ReduceSum(t)", {"c": [2.0]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        source = op.one_of("Mul", "Div")(x, Weight("c"), name="scale")
        return [op.one_of("ReduceSum", "ReduceMean")(source, AnyValue("axes", optional=True), name="sum")]

    def check(self, match: Match) -> None:
        super().check(match)
        require(scalar(match["c"]), "the constant has more than one element")
        require_shape(match.node("scale").outputs[0], match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        total = op.copy(match.node("sum"), match["x"], match.get("axes"))
        constant = op.Reshape(match["c"], op.integers([]))
        return op.copy(match.node("scale"), total, constant)


class ProductOfExponentials(AlgebraRule):
    """ReduceProd(Exp(x)) = Exp(ReduceSum(x)), Exp(a) ⊙ Exp(b) = Exp(a + b)

    where no intermediate result overflows.
    """

    since = 18
    cost_based = True
    examples = (
        Example("float[4,8] x", "t = Exp(x) y = ReduceProd(t, axes)", {"axes": [1]}),
        Example(ABC, "s = Exp(a) t = Exp(b) y = Mul(s, t)"),
    )
    counterexamples = (Example(ABC, "s = Exp(a) t = Tanh(b) y = Mul(s, t)", why="not computed by Exp"),)

    def patterns(self) -> list[Op]:
        return [op.ReduceProd(op.Exp(x), AnyValue("axes", optional=True), name="product"), op.Mul(op.Exp(a), op.Exp(b))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "product" not in match.nodes:
            return op.Exp(op.Add(match["a"], match["b"]))
        node = match.node("product")
        total = op.ReduceSum(
            match["x"],
            match.get("axes"),
            keepdims=integer(node, "keepdims", 1),
            noop_with_empty_axes=integer(node, "noop_with_empty_axes", 0),
        )
        return op.Exp(total)


class AbsorbNegation(AlgebraRule):
    """x + (-z) = x - z, x - (-z) = x + z, -(x - z) = z - x, (-x) · (-z) = x · z"""

    examples = (
        Example("float[4,8] x, float[4,8] z", "t = Neg(z) y = Add(t, x)"),
        Example("float[4,8] x, float[4,8] z", "t = Neg(z) y = Sub(x, t)"),
        Example("float[4,8] x, float[4,8] z", "t = Sub(x, z) y = Neg(t)"),
        Example("float[4,8] x, float[4,8] z", "s = Neg(x) t = Neg(z) y = Mul(s, t)"),
    )
    counterexamples = (
        Example("float[4] x, float[4] z", "t = Sub(x, z) y = Neg(t)", outputs="y, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [
            op.Add(x, op.Neg(z), name="add"),
            op.Sub(x, op.Neg(z), name="sub"),
            op.Neg(op.Sub(x, z), name="neg"),
            op.Mul(op.Neg(x), op.Neg(z)),
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        left, right = match["x"], match["z"]
        if "add" in match.nodes:
            return op.Sub(left, right)
        if "sub" in match.nodes:
            return op.Add(left, right)
        return op.Sub(right, left) if "neg" in match.nodes else op.Mul(left, right)


class ReciprocalIntoDivision(AlgebraRule):
    """x · Recip(z) = x / z, x / Recip(z) = x · z, and with 1 / z for Recip(z)"""

    examples = (
        Example("float[4,8] x, float[4,8] z", "t = Reciprocal(z) y = Mul(t, x)"),
        Example("float[4,8] x, float[4,1] z", "t = Div(one, z) y = Mul(x, t)", {"one": 1.0}),
        Example("float[4,8] x, float[4,8] z", "t = Reciprocal(z) y = Div(x, t)"),
    )
    counterexamples = (
        Example("float[4] x, float[4] z", "t = Reciprocal(z) y = Mul(x, t)", outputs="y, t", why="not profitable"),
        Example("int64[4] x, int64[4] z", "t = Div(one, z) y = Mul(x, t)", {"one": 1}, why="floating-point"),
    )

    def patterns(self) -> list[Op]:
        reciprocal = Either(op.Reciprocal(z), op.Div(Number(1.0), z))
        return [op.Mul(x, reciprocal), op.Div(x, reciprocal, name="division")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(match["x"], match["z"]) if "division" in match.nodes else op.Div(match["x"], match["z"])
