"""Associative, distributive and commutative laws, where they save operators or bytes.

The families of DNNFusion (Niu et al., PLDI 2021, table 4), with its printed errors corrected: the right side of
A⊙C + A⊙B is (B + C)⊙A. Reordered sums and products round differently; they are equal in exact arithmetic. Matching knows
that Add and Mul commute, so that the commutative law is no rule of its own.
"""

from __future__ import annotations

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.predicates import floating, require_nonnegative
from bricolage.rewrite.rule import Example, Operators, Result, Rule

a, b, c, x, z = AnyValue("a"), AnyValue("b"), AnyValue("c"), AnyValue("x"), AnyValue("z")
ABC = "float[4,8] a, float[4,8] b, float[4,8] c"


class AlgebraRule(Rule):
    """Base of laws of floating-point numbers: integers wrap around and divide otherwise."""

    family = "algebra"

    def check(self, match: Match) -> None:
        floating(match.root)


class MergeConstantTerms(AlgebraRule):
    """(x ± c) ± d = x ± (c ± d), (c - x) ± d = (c ± d) - x, d - (x ± c) = (d ∓ c) - x

    for constants c and d.
    """

    examples = (
        Example("float[2,3] x", "t = Add(x, c) y = Add(d, t)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Sub(x, c) y = Add(t, d)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Add(x, c) y = Sub(t, d)", {"c": (3,), "d": (2, 1)}),
        Example("float[2,3] x", "t = Sub(x, c) y = Sub(t, d)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Sub(c, x) y = Add(t, d)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Sub(c, x) y = Sub(t, d)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Add(x, c) y = Sub(d, t)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Sub(x, c) y = Sub(d, t)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Sub(c, x) y = Sub(d, t)", {"c": (3,), "d": 2.0}),
    )
    counterexamples = (
        Example("float[2,3] x, float d", "t = Add(x, c) y = Add(t, d)", {"c": (3,)}, why="not a constant"),
        Example("int64[3] x", "t = Add(x, c) y = Add(t, d)", {"c": 1, "d": 2}, why="floating-point"),
        examples[0].but("not profitable", "t = Add(x, c) y = Add(t, d)", outputs="y, t"),
        Example("float[2,1] x", "t = Add(x, c) y = Add(t, d)", {"c": (2, 1), "d": (64,)}, why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        first, second = Weight("c"), Weight("d")
        inner = Either(op.Add(x, first, name="x+c"), op.Sub(x, first, name="x-c"), op.Sub(first, x, name="c-x"))
        return [op.Add(inner, second), op.Sub(inner, second, name="-d"), op.Sub(second, inner, name="d-")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        value, first, second = match["x"], match["c"], match["d"]
        if "d-" in match.nodes:
            if "x+c" in match.nodes:
                return op.Sub(op.Sub(second, first), value)
            return (
                op.Sub(op.Add(second, first), value) if "x-c" in match.nodes else op.Add(value, op.Sub(second, first))
            )
        if "c-x" in match.nodes:
            return op.Sub(op.Sub(first, second) if "-d" in match.nodes else op.Add(first, second), value)
        if "x+c" in match.nodes:
            return op.Add(value, op.Sub(first, second) if "-d" in match.nodes else op.Add(first, second))
        if "-d" in match.nodes:
            return op.Sub(value, op.Add(first, second))
        return op.Add(value, op.Sub(second, first))


class MergeConstantFactors(AlgebraRule):
    """(x · c) · d = x · (c · d), and with / for each ·

    for constants c and d.
    """

    examples = (
        Example("float[2,3] x", "t = Mul(x, c) y = Mul(d, t)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Div(x, c) y = Mul(t, d)", {"c": (3,), "d": 2.0}),
        Example("float[2,3] x", "t = Mul(x, c) y = Div(t, d)", {"c": 2.0, "d": (3,)}),
        Example("float[2,3] x", "t = Div(x, c) y = Div(t, d)", {"c": 2.0, "d": (3,)}),
    )
    counterexamples = (
        Example("float[2,3] x, float d", "t = Mul(x, c) y = Mul(t, d)", {"c": (3,)}, why="not a constant"),
        Example("int64[3] x", "t = Mul(x, c) y = Div(t, d)", {"c": 1, "d": 2}, why="floating-point"),
        examples[0].but("not profitable", "t = Mul(x, c) y = Mul(t, d)", outputs="y, t"),
        Example("float[2,1] x", "t = Mul(x, c) y = Mul(t, d)", {"c": (2, 1), "d": (64,)}, why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        inner = Either(op.Mul(x, Weight("c"), name="x·c"), op.Div(x, Weight("c"), name="x/c"))
        return [op.Mul(inner, Weight("d")), op.Div(inner, Weight("d"), name="/d")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        value, first, second = match["x"], match["c"], match["d"]
        divided, last = "x/c" in match.nodes, "/d" in match.nodes
        if divided == last:
            product = op.Mul(first, second)
            return op.Div(value, product) if divided else op.Mul(value, product)
        return op.Mul(value, op.Div(second, first) if divided else op.Div(first, second))


class FactorOut(AlgebraRule):
    """A⊙C ± A⊙B = A⊙(C ± B), C/A ± B/A = (C ± B)/A

    where that is profitable (an operand that broadcasts may make it a loss). S⊙S - S⊙C = S⊙(S - C) is a case of it.
    """

    examples = (
        Example(ABC, "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)"),
        Example(ABC, "s = Mul(c, a) t = Mul(a, b) y = Sub(s, t)"),
        Example(ABC, "s = Div(c, a) t = Div(b, a) y = Sub(s, t)"),
        Example(ABC, "q = Add(a, b) s = Mul(q, q) t = Mul(q, c) y = Sub(s, t)"),
        Example("float[4,8] a, float[8] b, float[4,8] c", "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)"),
    )
    counterexamples = (
        Example(ABC, "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)", outputs="y, s, t", why="not profitable"),
        Example(
            "int64[3] a, int64[3] b, int64[3] c", "s = Div(c, a) t = Div(b, a) y = Sub(s, t)", why="floating-point"
        ),
        Example(ABC, "s = Div(a, c) t = Div(a, b) y = Sub(s, t)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        products = (op.Mul(a, c), op.Mul(a, b))
        quotients = (op.Div(c, a), op.Div(b, a))
        return [
            op.Add(*products, name="sum"),
            op.Sub(*products, name="sum"),
            op.Add(*quotients, name="sum quotients"),
            op.Sub(*quotients, name="sum quotients"),
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        quotients = "sum quotients" in match.nodes
        total = op.copy(match.node("sum quotients" if quotients else "sum"), match["c"], match["b"])
        return op.Div(total, match["a"]) if quotients else op.Mul(match["a"], total)


class FactorOutSquare(AlgebraRule):
    """S² - S⊙C = S⊙(S - C)

    where S is squared by Pow.
    """

    examples = (Example(ABC, "s = Add(a, b) q = Pow(s, two) p = Mul(s, c) y = Sub(q, p)", {"two": 2.0}),)
    counterexamples = (
        Example(ABC, "s = Add(a, b) q = Pow(s, e) p = Mul(s, c) y = Sub(q, p)", {"e": 3.0}, why="not the constant"),
        Example(ABC, "s = Add(a, b) q = Pow(s, e) p = Mul(s, c) y = Sub(q, p)", {"e": [[[2.0]]]}, why="shape"),
    )

    def patterns(self) -> list[Op]:
        return [op.Sub(op.Pow(x, Number(2.0)), op.Mul(x, c))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(match["x"], op.Sub(match["x"], match["c"]))


class FactorOutOne(AlgebraRule):
    """A ± A⊙B = A⊙(1 ± B)"""

    examples = (Example(ABC, "t = Mul(b, a) y = Add(a, t)"), Example(ABC, "t = Mul(a, b) y = Sub(a, t)"))
    counterexamples = (Example(ABC, "t = Mul(b, c) y = Add(a, t)", why="another value"),)

    def patterns(self) -> list[Op]:
        return [op.Add(a, op.Mul(a, b)), op.Sub(a, op.Mul(a, b), name="difference")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        unit = op.number(1, match["b"])
        function = op.Sub if "difference" in match.nodes else op.Add
        return op.Mul(match["a"], function(unit, match["b"]))


class ReciprocalsOfProduct(AlgebraRule):
    """Recip(A) ⊙ Recip(A ⊙ B) = Recip(A)² ⊙ Recip(B)"""

    examples = (Example(ABC, "p = Mul(a, b) q = Reciprocal(p) r = Reciprocal(a) y = Mul(r, q)"),)
    counterexamples = (
        Example(ABC, "p = Mul(c, b) q = Reciprocal(p) r = Reciprocal(a) y = Mul(r, q)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Reciprocal(a), op.Reciprocal(op.Mul(a, b)))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        reciprocal = op.Reciprocal(match["a"])
        return op.Mul(op.Mul(reciprocal, reciprocal), op.Reciprocal(match["b"]))


class ProductOfRoots(AlgebraRule):
    """(A ⊙ √B) ⊙ (√B ⊙ C) = A ⊙ B ⊙ C

    where B cannot be negative (for which the left side is not a number): an Abs, Exp, Relu, Sigmoid, Softmax, Softplus,
    Sqrt, square or norm, or a constant.
    """

    examples = (
        Example(ABC, "e = Exp(b) r = Sqrt(e) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)"),
        Example(ABC, "e = Mul(b, b) r = Sqrt(e) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)"),
        Example(
            "float[4,8] a, float[4,8] c",
            "r = Sqrt(b) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)",
            {"b": (4, 8)},
            nonnegative=("b",),
        ),
    )
    counterexamples = (
        Example(ABC, "r = Sqrt(b) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)", why="may be negative"),
        Example(
            ABC,
            "e = Exp(b) f = Exp(c) r = Sqrt(e) q = Sqrt(f) s = Mul(a, r) t = Mul(q, c) y = Mul(s, t)",
            why="another",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Mul(a, op.Sqrt(b)), op.Mul(op.Sqrt(b), c))]

    def check(self, match: Match) -> None:
        super().check(match)
        require_nonnegative(match["b"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(op.Mul(match["a"], match["b"]), match["c"])


class SquareSharedFactor(AlgebraRule):
    """(A ⊙ R) ⊙ (R ⊙ C) = (A ⊙ C) ⊙ (R ⊙ R)

    where that is profitable: R is read once, and may be smaller than A and C (a reduction that keeps its axes).
    """

    examples = (
        Example(
            "float[4,8] a, float[4,8] b, float[4,8] c",
            "r = ReduceSum(b, axes) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)",
            {"axes": [1]},
        ),
    )
    counterexamples = (
        Example(ABC, "s = Mul(a, b) t = Mul(b, c) y = Mul(s, t)", outputs="y, s, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Mul(a, b), op.Mul(b, c))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(op.Mul(match["a"], match["c"]), op.Mul(match["b"], match["b"]))


class ProductOfAbsolutes(AlgebraRule):
    """Abs(A) ⊙ Abs(C) = Abs(A ⊙ C), Abs(A) ⊙ B ⊙ Abs(C) = Abs(A ⊙ C) ⊙ B"""

    examples = (
        Example(ABC, "s = Abs(a) t = Abs(c) y = Mul(s, t)"),
        Example(ABC, "s = Abs(a) t = Abs(c) m = Mul(s, b) y = Mul(m, t)"),
    )
    counterexamples = (Example(ABC, "s = Abs(a) t = Abs(c) y = Mul(s, t)", outputs="y, s, t", why="not profitable"),)

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Abs(a), op.Abs(c)), op.Mul(op.Mul(op.Abs(a), b), op.Abs(c), name="three")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        product = op.Abs(op.Mul(match["a"], match["c"]))
        return op.Mul(product, match["b"]) if "three" in match.nodes else product
