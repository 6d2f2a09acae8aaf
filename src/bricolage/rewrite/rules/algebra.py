"""Associative, distributive and commutative laws, where they save operators or bytes.

The families of DNNFusion (Niu et al., PLDI 2021, table 4), with its printed errors corrected: the right side of
A⊙C + A⊙B is (B + C)⊙A. Reordered sums and products round differently; they are equal in exact arithmetic. Matching knows
that Add and Mul commute, so that the commutative law is no rule of its own.
"""

from __future__ import annotations

from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.predicates import floating, integer, require, require_nonnegative, require_shape, scalar, text
from bricolage.rewrite.rule import Example, Operators, Result, Rule

a, b, c, x, z = AnyValue("a"), AnyValue("b"), AnyValue("c"), AnyValue("x"), AnyValue("z")
_ABC = "float[4,8] a, float[4,8] b, float[4,8] c"


class _Algebra(Rule):
    """Base of laws of floating-point numbers: integers wrap around and divide otherwise."""

    family = "algebra"

    def check(self, match: Match) -> None:
        floating(match.root)


class MergeConstantTerms(_Algebra):
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
        Example(
            "float[2,3] x", "t = Add(x, c) y = Add(t, d)", {"c": (3,), "d": 2.0}, outputs="y, t", why="not profitable"
        ),
        Example("float[2,1] x", "t = Add(x, c) y = Add(t, d)", {"c": (2, 1), "d": (64,)}, why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        first, second = Weight("c"), Weight("d")
        inner = Either(
            op.Add(x, first, name="x+c"),
            op.Sub(x, first, name="x-c"),
            op.Sub(first, x, name="c-x"),
        )
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


class MergeConstantFactors(_Algebra):
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
        Example(
            "float[2,3] x", "t = Mul(x, c) y = Mul(t, d)", {"c": (3,), "d": 2.0}, outputs="y, t", why="not profitable"
        ),
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


class FactorOut(_Algebra):
    """A⊙C ± A⊙B = A⊙(C ± B), C/A ± B/A = (C ± B)/A

    where that is profitable (an operand that broadcasts may make it a loss). S⊙S - S⊙C = S⊙(S - C) is a case of it.
    """

    examples = (
        Example(_ABC, "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)"),
        Example(_ABC, "s = Mul(c, a) t = Mul(a, b) y = Sub(s, t)"),
        Example(_ABC, "s = Div(c, a) t = Div(b, a) y = Sub(s, t)"),
        Example(_ABC, "q = Add(a, b) s = Mul(q, q) t = Mul(q, c) y = Sub(s, t)"),
        Example("float[4,8] a, float[8] b, float[4,8] c", "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)"),
    )
    counterexamples = (
        Example(_ABC, "s = Mul(a, c) t = Mul(a, b) y = Add(s, t)", outputs="y, s, t", why="not profitable"),
        Example(
            "int64[3] a, int64[3] b, int64[3] c", "s = Div(c, a) t = Div(b, a) y = Sub(s, t)", why="floating-point"
        ),
        Example(_ABC, "s = Div(a, c) t = Div(a, b) y = Sub(s, t)", why="another value"),
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


class FactorOutSquare(_Algebra):
    """S² - S⊙C = S⊙(S - C)

    where S is squared by Pow.
    """

    examples = (Example(_ABC, "s = Add(a, b) q = Pow(s, two) p = Mul(s, c) y = Sub(q, p)", {"two": 2.0}),)
    counterexamples = (
        Example(_ABC, "s = Add(a, b) q = Pow(s, e) p = Mul(s, c) y = Sub(q, p)", {"e": 3.0}, why="not the constant"),
        Example(_ABC, "s = Add(a, b) q = Pow(s, e) p = Mul(s, c) y = Sub(q, p)", {"e": [[[2.0]]]}, why="shape"),
    )

    def patterns(self) -> list[Op]:
        return [op.Sub(op.Pow(x, Number(2.0)), op.Mul(x, c))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(match["x"], op.Sub(match["x"], match["c"]))


class FactorOutOne(_Algebra):
    """A ± A⊙B = A⊙(1 ± B)"""

    examples = (
        Example(_ABC, "t = Mul(b, a) y = Add(a, t)"),
        Example(_ABC, "t = Mul(a, b) y = Sub(a, t)"),
    )
    counterexamples = (Example(_ABC, "t = Mul(b, c) y = Add(a, t)", why="another value"),)

    def patterns(self) -> list[Op]:
        return [op.Add(a, op.Mul(a, b)), op.Sub(a, op.Mul(a, b), name="difference")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        one = op.number(1, match["b"])
        function = op.Sub if "difference" in match.nodes else op.Add
        return op.Mul(match["a"], function(one, match["b"]))


class ReciprocalsOfProduct(_Algebra):
    """Recip(A) ⊙ Recip(A ⊙ B) = Recip(A)² ⊙ Recip(B)"""

    examples = (Example(_ABC, "p = Mul(a, b) q = Reciprocal(p) r = Reciprocal(a) y = Mul(r, q)"),)
    counterexamples = (
        Example(_ABC, "p = Mul(c, b) q = Reciprocal(p) r = Reciprocal(a) y = Mul(r, q)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Reciprocal(a), op.Reciprocal(op.Mul(a, b)))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        reciprocal = op.Reciprocal(match["a"])
        return op.Mul(op.Mul(reciprocal, reciprocal), op.Reciprocal(match["b"]))


class ProductOfRoots(_Algebra):
    """(A ⊙ √B) ⊙ (√B ⊙ C) = A ⊙ B ⊙ C

    where B cannot be negative (for which the left side is not a number): an Abs, Exp, Relu, Sigmoid, Softmax, Softplus,
    Sqrt, square or norm, or a constant.
    """

    examples = (
        Example(_ABC, "e = Exp(b) r = Sqrt(e) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)"),
        Example(_ABC, "e = Mul(b, b) r = Sqrt(e) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)"),
        Example(
            "float[4,8] a, float[4,8] c",
            "r = Sqrt(b) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)",
            {"b": (4, 8)},
            nonnegative=("b",),
        ),
    )
    counterexamples = (
        Example(_ABC, "r = Sqrt(b) s = Mul(a, r) t = Mul(r, c) y = Mul(s, t)", why="may be negative"),
        Example(
            _ABC,
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


class SquareSharedFactor(_Algebra):
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
        Example(_ABC, "s = Mul(a, b) t = Mul(b, c) y = Mul(s, t)", outputs="y, s, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Mul(a, b), op.Mul(b, c))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mul(op.Mul(match["a"], match["c"]), op.Mul(match["b"], match["b"]))


class ProductOfAbsolutes(_Algebra):
    """Abs(A) ⊙ Abs(C) = Abs(A ⊙ C), Abs(A) ⊙ B ⊙ Abs(C) = Abs(A ⊙ C) ⊙ B"""

    examples = (
        Example(_ABC, "s = Abs(a) t = Abs(c) y = Mul(s, t)"),
        Example(_ABC, "s = Abs(a) t = Abs(c) m = Mul(s, b) y = Mul(m, t)"),
    )
    counterexamples = (Example(_ABC, "s = Abs(a) t = Abs(c) y = Mul(s, t)", outputs="y, s, t", why="not profitable"),)

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Abs(a), op.Abs(c)), op.Mul(op.Mul(op.Abs(a), b), op.Abs(c), name="three")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        product = op.Abs(op.Mul(match["a"], match["c"]))
        return op.Mul(product, match["b"]) if "three" in match.nodes else product


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


class ScaleOutOfSum(_Algebra):
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


class ProductOfExponentials(_Algebra):
    """ReduceProd(Exp(x)) = Exp(ReduceSum(x)), Exp(a) ⊙ Exp(b) = Exp(a + b)

    where no intermediate result overflows.
    """

    since = 18
    cost_based = True
    examples = (
        Example("float[4,8] x", "t = Exp(x) y = ReduceProd(t, axes)", {"axes": [1]}),
        Example(_ABC, "s = Exp(a) t = Exp(b) y = Mul(s, t)"),
    )
    counterexamples = (Example(_ABC, "s = Exp(a) t = Tanh(b) y = Mul(s, t)", why="not computed by Exp"),)

    def patterns(self) -> list[Op]:
        return [
            op.ReduceProd(op.Exp(x), AnyValue("axes", optional=True), name="product"),
            op.Mul(op.Exp(a), op.Exp(b)),
        ]

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


class AbsorbNegation(_Algebra):
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


class ReciprocalIntoDivision(_Algebra):
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
