"""Laws of single functions: extremes, choices, roots, exponentials, and affine maps in a row."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.analyses.elementwise import UNARY
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.predicates import floating, require, require_nonnegative, require_shape
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, a, b, c, z = AnyValue("x"), AnyValue("a"), AnyValue("b"), AnyValue("c"), AnyValue("z")
_AB = "float[3] a, float[3] b"
_ABZ = f"{_AB}, float[3] z"


class _FunctionLaw(Rule):
    """Base of laws of floating-point numbers."""

    family = "functions"

    def check(self, match: Match) -> None:
        floating(match.root)


class MergeAffine(_FunctionLaw):
    """((x·c) + d)·e = x·(c·e) + d·e, ((x + c)·d) + e = x·d + (c·d + e), and with - and / for + and ·

    for three operators with constants in a row of which the middle one differs in kind, that leave the shape of x.
    """

    examples = (
        Example("float[2,3] x", "s = Mul(x, c) t = Add(s, d) y = Mul(t, e)", {"c": (3,), "d": (3,), "e": 2.0}),
        Example("float[2,3] x", "s = Add(c, x) t = Mul(d, s) y = Sub(t, e)", {"c": (3,), "d": 2.0, "e": (2, 1)}),
        Example("float[2,3] x", "s = Sub(x, c) t = Div(s, d) y = Add(t, e)", {"c": (3,), "d": (3,), "e": (3,)}),
        Example("float[2,3] x", "s = Div(x, c) t = Sub(d, s) y = Div(t, e)", {"c": (3,), "d": (3,), "e": (3,)}),
    )
    counterexamples = (
        Example(
            "float[2,3] x, float d",
            "s = Mul(x, c) t = Add(s, d) y = Mul(t, e)",
            {"c": (3,), "e": 2.0},
            why="not a constant",
        ),
        examples[0].but("not computed by", "s = Mul(x, c) t = Mul(s, d) y = Add(t, e)"),
        examples[0].but("has not the shape", inputs="float[3] x", d=(2, 1)),
        examples[0].but("floating-point", inputs="int64[3] x", c=1, d=2, e=2),
        examples[0].but("not computed by", "s = Mul(x, c) t = Div(d, s) y = Mul(t, e)"),
        examples[0].but("not profitable", outputs="y, s"),
    )

    def patterns(self) -> list[Op]:
        roots = []
        for outer, other in (("Add", "Mul"), ("Mul", "Add")):
            inner = Either(*_affine(x, Weight("c"), outer, "inner"))
            roots += _affine(Either(*_affine(inner, Weight("d"), other, "middle")), Weight("e"), outer, "outer")
        return roots

    def check(self, match: Match) -> None:
        super().check(match)
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        scale: ir.Value | None = None
        shift: ir.Value | None = None
        for name, constant in (("inner", "c"), ("middle", "d"), ("outer", "e")):
            node, number = match.node(name), match[constant]
            if node.op_type in ("Mul", "Div"):
                scale = op.copy(node, scale if scale is not None else op.number(1, number), number)
                shift = None if shift is None else op.copy(node, shift, number)
            elif node.op_type == "Sub" and node.inputs[0] is number:
                scale = op.Neg(scale if scale is not None else op.number(1, number))
                shift = number if shift is None else op.Sub(number, shift)
            else:
                shift = op.copy(node, shift if shift is not None else op.number(0, number), number)
        assert scale is not None and shift is not None
        return op.Add(op.Mul(match["x"], scale), shift)


def _affine(source: AnyValue | Either, constant: Weight, kind: str, name: str) -> list[Op]:
    """A sum (or product) of `source` and a constant, however it is written."""
    if kind == "Mul":
        return [op.Mul(source, constant, name=name), op.Div(source, constant, name=name)]
    return [
        op.Add(source, constant, name=name),
        op.Sub(source, constant, name=name),
        op.Sub(constant, source, name=name),
    ]


class SelectBeforeFunction(_FunctionLaw):
    """Where(c, f(a), f(b)) = f(Where(c, a, b)), Where(c, g(a, z), g(b, z)) = g(Where(c, a, b), z)

    for element-wise f of one input, and for sums, differences, products and quotients g, in which the results have one shape.
    """

    examples = (
        Example(f"bool[3] c, {_AB}", "s = Tanh(a) t = Tanh(b) y = Where(c, s, t)"),
        Example(f"bool[3] c, {_ABZ}", "s = Add(a, z) t = Add(z, b) y = Where(c, s, t)"),
        Example(f"bool[3] c, {_ABZ}", "s = Div(a, z) t = Div(b, z) y = Where(c, s, t)"),
    )
    counterexamples = (
        Example(f"bool[3] c, {_AB}", "s = Tanh(a) t = Erf(b) y = Where(c, s, t)", why="two functions"),
        examples[0].but("two functions", "s = LeakyRelu<alpha=0.1>(a) t = LeakyRelu(b) y = Where(c, s, t)"),
        Example(f"bool[3] c, {_ABZ}", "s = Div(a, z) t = Div(z, b) y = Where(c, s, t)", why="another value"),
        examples[0].but("has not the shape", inputs="bool[3] c, float[3] a, float[1] b"),
        examples[0].but("not profitable", outputs="y, s"),
    )

    def patterns(self) -> list[Op]:
        unary, binary = op.one_of(*UNARY), op.one_of("Add", "Sub", "Mul", "Div")
        return [
            op.Where(c, unary(a, name="first"), unary(b, name="second")),
            op.Where(c, binary(a, z, name="first"), binary(b, z, name="second"), name="where z"),
        ]

    def check(self, match: Match) -> None:
        super().check(match)
        first, second = match.node("first"), match.node("second")
        same = first.op_type == second.op_type and _attributes(first) == _attributes(second)
        require(same, "they are two functions")
        require_shape(first.outputs[0], second.outputs[0])
        require_shape(match["a"], match["b"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        chosen = op.Where(match["c"], match["a"], match["b"])
        return op.copy(match.node("first"), chosen, *([match["z"]] if "where z" in match.nodes else []))


def _attributes(node: ir.Node) -> list[tuple[str, str]]:
    return sorted((name, str(attribute.value)) for name, attribute in node.attributes.items())


class ShiftOutOfExtreme(_FunctionLaw):
    """Max(a + z, b + z) = Max(a, b) + z, and Min

    where all three have one shape.
    """

    examples = (
        Example(_ABZ, "s = Add(a, z) t = Add(z, b) y = Max(s, t)"),
        Example(_ABZ, "s = Add(a, z) t = Add(b, z) y = Min(s, t)"),
    )
    counterexamples = (
        Example(
            "float[3] a, float[3] b, float[2,1] z", "s = Add(a, z) t = Add(b, z) y = Max(s, t)", why="has not the shape"
        ),
        Example(f"{_ABZ}, float[3] u", "s = Add(a, z) t = Add(b, u) y = Max(s, t)", why="another value"),
        Example(_ABZ, "s = Add(a, z) t = Add(b, z) y = Max(s, t)", outputs="y, s", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Max", "Min")(op.Add(a, z), op.Add(b, z), name="extreme")]

    def check(self, match: Match) -> None:
        super().check(match)
        require_shape(match["a"], match["z"])
        require_shape(match["b"], match["z"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Add(op.copy(match.node("extreme"), match["a"], match["b"]), match["z"])


class MergeConstantExtremes(_FunctionLaw):
    """Max(Max(x, c), d) = Max(x, max(c, d)), and Min

    for constants c and d.
    """

    examples = (
        Example("float[2] x", "t = Max(x, c) y = Max(d, t)", {"c": 1.0, "d": (2,)}),
        Example("float[2] x", "t = Min(x, c) y = Min(t, d)", {"c": 1.0, "d": 2.0}),
    )
    counterexamples = (
        Example("float[2] x", "t = Min(x, c) y = Max(t, d)", {"c": 1.0, "d": 2.0}, why="differ"),
        Example("float[2] x, float d", "t = Max(x, c) y = Max(t, d)", {"c": 1.0}, why="not a constant"),
        examples[0].but("not profitable", "t = Max(x, c) y = Max(t, d)", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        extreme = op.one_of("Max", "Min")
        return [extreme(extreme(x, Weight("c"), name="inner"), Weight("d"), name="outer")]

    def check(self, match: Match) -> None:
        super().check(match)
        require(match.node("inner").op_type == match.node("outer").op_type, "the two differ")

    def rewrite(self, op: Operators, match: Match) -> Result:
        outer = match.node("outer")
        return op.copy(outer, match["x"], op.copy(outer, match["c"], match["d"]))


class NegateExtreme(_FunctionLaw):
    """Max(-a, -b) = -Min(a, b), Min(-a, -b) = -Max(a, b)"""

    examples = (
        Example(_AB, "s = Neg(a) t = Neg(b) y = Max(s, t)"),
        Example(_AB, "s = Neg(a) t = Neg(b) y = Min(s, t)"),
    )
    counterexamples = (
        Example(_AB, "s = Neg(a) y = Max(s, b)", why="not computed by"),
        Example(_AB, "s = Neg(a) t = Neg(b) y = Max(s, t)", outputs="y, s", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Max", "Min")(op.Neg(a), op.Neg(b), name="extreme")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        function = op.Min if match.node("extreme").op_type == "Max" else op.Max
        return op.Neg(function(match["a"], match["b"]))


class NegationIntoConstant(_FunctionLaw):
    """(-x) · c = x · (-c), and with / for ·

    for a constant c.
    """

    examples = (
        Example("float[2,3] x", "t = Neg(x) y = Mul(c, t)", {"c": (3,)}),
        Example("float[2,3] x", "t = Neg(x) y = Div(t, c)", {"c": 2.0}),
        Example("float[2,3] x", "t = Neg(x) y = Div(c, t)", {"c": (3,)}),
    )
    counterexamples = (
        Example("float[2,3] x, float c", "t = Neg(x) y = Mul(t, c)", why="not a constant"),
        Example("int64[3] x", "t = Neg(x) y = Mul(t, c)", {"c": 2}, why="floating-point"),
        Example("float[3] x", "t = Neg(x) y = Mul(t, c)", {"c": (2, 1)}, outputs="y, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        constant = Weight("c")
        return [
            op.one_of("Mul", "Div")(op.Neg(x), constant, name="scale"),
            op.Div(constant, op.Neg(x), name="quotient"),
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "quotient" in match.nodes:
            return op.Div(op.Neg(match["c"]), match["x"])
        return op.copy(match.node("scale"), match["x"], op.Neg(match["c"]))


class SquareOfRoot(_FunctionLaw):
    """√x ⊙ √x = x

    where x cannot be negative (for which the left side is not a number).
    """

    examples = (
        Example("float[3] a", "x = Exp(a) r = Sqrt(x) y = Mul(r, r)"),
        Example("float[3] a", "x = Mul(a, a) r = Sqrt(x) y = Mul(r, r)"),
        Example("float[3] a", "r = Sqrt(x) t = Mul(r, r) y = Mul(a, t)", {"x": (3,)}, nonnegative=("x",)),
    )
    counterexamples = (Example("float[3] x", "r = Sqrt(x) y = Mul(r, r)", why="may be negative"),)

    def patterns(self) -> list[Op]:
        return [op.Mul(op.Sqrt(x), op.Sqrt(x))]

    def check(self, match: Match) -> None:
        super().check(match)
        require_nonnegative(match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match["x"]


class QuotientOfExponentials(_FunctionLaw):
    """Exp(a) / Exp(b) = Exp(a - b), 1 / Exp(a) = Recip(Exp(a)) = Exp(-a)

    where no intermediate result overflows.
    """

    cost_based = True
    examples = (
        Example(_AB, "s = Exp(a) t = Exp(b) y = Div(s, t)"),
        Example("float[3] a", "s = Exp(a) y = Reciprocal(s)"),
        Example("float[3] a", "s = Exp(a) y = Div(one, s)", {"one": 1.0}),
    )
    counterexamples = (
        Example(_AB, "s = Exp(a) t = Tanh(b) y = Div(s, t)", why="not computed by Exp"),
        Example("float[3] a", "s = Exp(a) y = Div(one, s)", {"one": [[1.0]]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        return [op.Div(op.Exp(a), op.Exp(b), name="quotient"), op.Reciprocal(op.Exp(a)), op.Div(Number(1.0), op.Exp(a))]

    def check(self, match: Match) -> None:
        super().check(match)
        if "quotient" not in match.nodes:
            require_shape(match.root, match["a"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "quotient" in match.nodes:
            return op.Exp(op.Sub(match["a"], match["b"]))
        return op.Exp(op.Neg(match["a"]))
