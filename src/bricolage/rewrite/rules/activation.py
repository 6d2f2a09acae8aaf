"""Activation functions that an export wrote out in elementary operators."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, ValuePattern, Weight, op
from bricolage.rewrite.predicates import floating, require, require_shape, scalar
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x = AnyValue("x")
_HALF, _ONE, _TWO = Number(0.5), Number(1.0), Number(2.0)


class _Activation(Rule):
    """Base of rules whose right side is one operator on x, of floating-point numbers, that has the shape of x (a constant
    of the left side does not broadcast it)."""

    family = "activation"

    def check(self, match: Match) -> None:
        floating(match["x"])
        require_shape(match.root, match["x"])


def _halved_product(gate: ValuePattern) -> list[Op]:
    """x · gate / 2 in every order of the three factors."""
    half_x = Either(op.Mul(x, _HALF), op.Div(x, _TWO))
    half_gate = Either(op.Mul(gate, _HALF), op.Div(gate, _TWO))
    return [op.Mul(op.Mul(x, gate), _HALF), op.Div(op.Mul(x, gate), _TWO), op.Mul(half_x, gate), op.Mul(x, half_gate)]


_ERF = {"r": math.sqrt(2), "i": math.sqrt(0.5), "h": 0.5, "one": 1.0, "two": 2.0}
_WIDER = {**_ERF, "h": [[[0.5]]]}


class RecogniseGelu(_Activation):
    """x · (1 + Erf(x / √2)) / 2 = Gelu(x)

    for x of floating-point numbers, where the constants do not broadcast x; from opset 20.
    """

    since = 20
    examples = (
        Example("float[2,3] x", "a = Div(x, r) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)", _ERF, opset=20),
        Example("float[2,3] x", "a = Mul(x, i) e = Erf(a) g = Add(one, e) p = Mul(h, x) y = Mul(p, g)", _ERF, opset=20),
        Example("float[N,3] x", "a = Mul(x, i) e = Erf(a) g = Add(e, one) p = Mul(g, h) y = Mul(x, p)", _ERF, opset=20),
        Example(
            "float[2,3] x", "a = Mul(x, i) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Div(p, two)", _ERF, opset=20
        ),
    )
    counterexamples = (
        Example("float[2,3] x", "a = Div(x, r) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)", _ERF, opset=18),
        Example(
            "float[2,3] x",
            "a = Mul(x, i) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)",
            {**_ERF, "i": 0.7},
            opset=20,
            why="not the constant",
        ),
        Example(
            "float[2,3] x, float[2,3] z",
            "a = Div(z, r) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)",
            _ERF,
            opset=20,
            why="another value",
        ),
        Example(
            "float[2,3] x",
            "a = Div(x, r) e = Erf(a) g = Add(e, one) p = Mul(x, g) y = Mul(p, h)",
            _WIDER,
            opset=20,
            why="has not the shape",
        ),
    )

    def patterns(self) -> list[Op]:
        scaled = Either(op.Div(x, Number(math.sqrt(2))), op.Mul(x, Number(math.sqrt(0.5))))
        return _halved_product(op.Add(op.Erf(scaled), _ONE))

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Gelu(match["x"])


_TANH = {"k": 0.044715, "q": math.sqrt(2 / math.pi), "t3": 3.0, "h": 0.5, "one": 1.0}


class RecogniseTanhGelu(_Activation):
    """x · (1 + Tanh(√(2/π) · (x + 0.044715 · x³))) / 2 = Gelu(x, tanh)

    for x of floating-point numbers, where the constants do not broadcast x; from opset 20.
    """

    since = 20
    examples = (
        Example(
            "float[2,3] x",
            "c = Pow(x, t3) m = Mul(c, k) s = Add(x, m) u = Mul(s, q) t = Tanh(u) g = Add(t, one) p = Mul(x, h) y = Mul(p, g)",
            _TANH,
            opset=20,
        ),
        Example(
            "float[2,3] x",
            "b = Mul(x, x) c = Mul(b, x) m = Mul(k, c) s = Add(m, x) u = Mul(q, s) t = Tanh(u) g = Add(one, t)"
            " p = Mul(x, g) y = Mul(p, h)",
            _TANH,
            opset=20,
        ),
    )
    counterexamples = (
        examples[0].but("not the constant", k=0.05),
        examples[0].but("has not the shape", k=[[[0.044715]]]),
    )

    def patterns(self) -> list[Op]:
        cube = Either(op.Pow(x, Number(3.0)), op.Mul(op.Mul(x, x), x), op.Mul(op.Pow(x, _TWO), x))
        argument = op.Mul(op.Add(x, op.Mul(cube, Number(0.044715))), Number(math.sqrt(2 / math.pi)))
        return _halved_product(op.Add(op.Tanh(argument), _ONE))

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Gelu(match["x"], approximate="tanh")


class RecogniseSwish(_Activation):
    """x · Sigmoid(x) = Swish(x)

    for x of floating-point numbers; from opset 24.
    """

    since = 24
    examples = (Example("float[2,3] x", "s = Sigmoid(x) y = Mul(x, s)", opset=24),)
    counterexamples = (
        Example("float[2,3] x, float[2,3] z", "s = Sigmoid(z) y = Mul(x, s)", opset=24, why="another value"),
        Example("float[2,3] x", "s = Sigmoid(x) y = Mul(x, s)", opset=23),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(x, op.Sigmoid(x))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Swish(match["x"])


class RecogniseMish(_Activation):
    """x · Tanh(Softplus(x)) = Mish(x)

    for x of floating-point numbers; from opset 18.
    """

    since = 18
    examples = (Example("float[2,3] x", "s = Softplus(x) t = Tanh(s) y = Mul(t, x)"),)
    counterexamples = (
        Example("float[2,3] x, float[2,3] z", "s = Softplus(z) t = Tanh(s) y = Mul(t, x)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        return [op.Mul(x, op.Tanh(op.Softplus(x)))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Mish(match["x"])


_SIX = {"three": 3.0, "zero": 0.0, "six": 6.0, "sixth": 1 / 6}


class RecogniseHardSigmoid(_Activation):
    """Clip(x + 3, 0, 6) / 6 = HardSigmoid(x, 1/6, 1/2)

    for x of floating-point numbers, where the constants do not broadcast x.
    """

    examples = (
        Example("float[2,3] x", "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)", _SIX),
        Example("float[2,3] x", "a = Add(x, three) c = Clip(a, zero, six) y = Mul(c, sixth)", _SIX),
    )
    counterexamples = (
        examples[0].but("not the constant", "a = Add(x, zero) c = Clip(a, zero, six) y = Div(c, six)"),
        Example(
            "float[2,3] x",
            "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, wide)",
            {**_SIX, "wide": [[[6.0]]]},
            why="has not the shape",
        ),
    )

    def patterns(self) -> list[Op]:
        clipped = op.Clip(op.Add(x, Number(3.0)), Number(0.0), Number(6.0))
        return [op.Div(clipped, Number(6.0)), op.Mul(clipped, Number(1 / 6))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.HardSigmoid(match["x"], alpha=1 / 6, beta=0.5)


class RecogniseHardSwish(_Activation):
    """x · HardSigmoid(x, 1/6, 1/2) = x · Clip(x + 3, 0, 6) / 6 = HardSwish(x)

    for x of floating-point numbers, where the constants do not broadcast x; from opset 14.
    """

    since = 14
    examples = (
        Example("float[2,3] x", "s = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, s)"),
        Example("float[2,3] x", "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)", _SIX),
    )
    counterexamples = (
        Example("float[2,3] x", "s = HardSigmoid(x) y = Mul(x, s)", why="other slopes"),
        Example(
            "float[2,3] x",
            "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, wide)",
            {**_SIX, "wide": [[[6.0]]]},
            why="has not the shape",
        ),
    )

    def patterns(self) -> list[Op]:
        product = op.Mul(x, op.Clip(op.Add(x, Number(3.0)), Number(0.0), Number(6.0)))
        return [op.Mul(x, op.HardSigmoid(x, name="gate")), op.Div(product, Number(6.0)), op.Mul(product, Number(1 / 6))]

    def check(self, match: Match) -> None:
        super().check(match)
        if "gate" in match.nodes:
            attributes = match.node("gate").attributes
            alpha, beta = attributes.get_float("alpha", 0.2), attributes.get_float("beta", 0.5)
            require(abs(alpha - 1 / 6) < 1e-7 and beta == 0.5, "the gate has other slopes")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.HardSwish(match["x"])


class RecogniseSigmoid(_Activation):
    """1 / (1 + Exp(-x)) = Sigmoid(x)

    for x of floating-point numbers, where the constants do not broadcast x.
    """

    examples = (
        Example("float[2,3] x", "n = Neg(x) e = Exp(n) d = Add(e, one) y = Div(one, d)", {"one": 1.0}),
        Example("float[2,3] x", "n = Neg(x) e = Exp(n) d = Add(one, e) y = Reciprocal(d)", {"one": 1.0}),
    )
    counterexamples = (
        examples[0].but("not computed by Neg", "e = Exp(x) d = Add(e, one) y = Reciprocal(d)"),
        Example(
            "float[2,3] x", "n = Neg(x) e = Exp(n) d = Add(e, c) y = Reciprocal(d)", {"c": 2.0}, why="not the constant"
        ),
        Example(
            "float[3] x",
            "n = Neg(x) e = Exp(n) d = Add(e, c) y = Reciprocal(d)",
            {"c": [[1.0]]},
            why="has not the shape",
        ),
    )

    def patterns(self) -> list[Op]:
        below = op.Add(op.Exp(op.Neg(x)), _ONE)
        return [op.Div(_ONE, below), op.Reciprocal(below)]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Sigmoid(match["x"])


class RecogniseSoftplus(_Activation):
    """Log(1 + Exp(x)) = Softplus(x)

    for x of floating-point numbers, where the constant does not broadcast x.
    """

    examples = (Example("float[2,3] x", "e = Exp(x) s = Add(e, one) y = Log(s)", {"one": 1.0}),)
    counterexamples = (
        Example("float[2,3] x", "e = Exp(x) s = Add(e, c) y = Log(s)", {"c": 2.0}, why="not the constant"),
        Example("float[3] x", "e = Exp(x) s = Add(e, c) y = Log(s)", {"c": [[1.0]]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        return [op.Log(op.Add(op.Exp(x), _ONE))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Softplus(match["x"])


class RecogniseRelu(_Activation):
    """Max(x, 0) = Relu(x)

    for x of floating-point numbers, where the constant does not broadcast x.
    """

    examples = (Example("float[2,3] x", "y = Max(x, zero)", {"zero": 0.0}),)
    counterexamples = (
        Example("float[2,3] x", "y = Max(x, c)", {"c": 0.1}, why="not the constant"),
        Example("float[3] x", "y = Max(x, c)", {"c": [[0.0]]}, why="has not the shape"),
        Example("int64[3] x", "y = Max(x, c)", {"c": 0}, why="floating-point"),
    )

    def patterns(self) -> list[Op]:
        return [op.Max(x, Number(0.0))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Relu(match["x"])


class RecogniseClip(Rule):
    """Min(Max(x, a), b) = Clip(x, a, b)

    for constants a and b of one element that do not broadcast x.
    """

    family = "activation"
    examples = (Example("float[2,3] x", "t = Max(x, a) y = Min(b, t)", {"a": -1.0, "b": 1.0}),)
    counterexamples = (
        Example("float[2,3] x", "t = Max(x, a) y = Min(t, b)", {"a": (3,), "b": 1.0}, why="one element"),
        Example("float[2,3] x, float b", "t = Max(x, a) y = Min(t, b)", {"a": -1.0}, why="not a constant"),
        Example("float x", "t = Max(x, a) y = Min(t, b)", {"a": [-1.0], "b": 1.0}, why="has not the shape"),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.Min(op.Max(x, Weight("a")), Weight("b"))]

    def check(self, match: Match) -> None:
        require(scalar(match["a"]) and scalar(match["b"]), "a limit has more than one element")
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        none = op.integers([])
        return op.Clip(match["x"], op.Reshape(match["a"], none), op.Reshape(match["b"], none))
