"""Root-mean-square normalisation, recognised."""

from __future__ import annotations

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, Weight, op
from bricolage.rewrite.rule import Example, Operators, Result
from bricolage.rewrite.rules.normalization import (
    VALUES,
    ScaledNormalizationRule,
    inverse_root,
    mean_of,
    quotient_by,
    square_of,
    x,
)

_RMS = "s = Mul(x, x) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) y = Div(x, r)"


class RecogniseRMSNormalization(ScaledNormalizationRule):
    """x / √(mean(x²) + ε) = RMSNormalization(x, 1, ε)

    for a mean over the last axes, which it keeps and whose sizes are fixed; x of at most single precision, ε a constant of
    one element that does not broadcast; from opset 23. A scale may stand at x or at the root; it follows by folding.
    """

    operator = "RMSNormalization"
    since = 23
    examples = (
        Example("float[2,3,4] x", _RMS, VALUES, opset=23),
        Example(
            "float[2,N,4] x",
            "s = Pow(x, two) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) i = Reciprocal(r) y = Mul(i, x)",
            VALUES,
            opset=23,
        ),
        Example(
            "float[2,3,4] x",
            "s = Pow(x, two) v = ReduceMean(s, a) w = Add(v, e) i = Pow(w, h) y = Mul(x, i)",
            {**VALUES, "h": -0.5},
            opset=23,
        ),
        Example(
            "float[2,3,4] x, float[4] g", _RMS.replace("y = Div(x, r)", "f = Div(g, r) y = Mul(x, f)"), VALUES, opset=23
        ),
        Example(
            "float[2,3,4] x",
            _RMS.replace("y = Div(x, r)", "i = Reciprocal(r) f = Mul(i, g) y = Mul(f, x)"),
            {**VALUES, "g": (4,)},
            opset=23,
        ),
        Example(
            "float[2,3,4] x",
            _RMS.replace("y = Div(x, r)", "f = Mul(x, g) y = Div(f, r)"),
            {**VALUES, "g": (4,)},
            opset=23,
        ),
    )
    counterexamples = (
        Example("float[2,3,4] x", _RMS, {**VALUES, "a": [0]}, opset=23, why="last axes"),
        Example("float[2,3,4] x", _RMS, {**VALUES, "e": (4,)}, opset=23, why="epsilon"),
        Example("float[2,3,N] x", _RMS, VALUES, opset=23, why="no fixed size"),
        Example("float[4,4] x", _RMS.replace("Mean(", "Mean<keepdims=0>("), VALUES, opset=23, why="drops"),
        Example("float[3,4] x", _RMS, {**VALUES, "e": [[[1e-5]]]}, opset=23, why="higher rank"),
        Example("float[2,3,4] x", _RMS, VALUES, opset=22),
    )

    def patterns(self) -> list[Op]:
        square, scale = op.Add(mean_of(square_of(x), "mean"), Weight("epsilon")), AnyValue("scale")
        root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
        factors = [op.Mul(inverse_root(square), scale, name="factor"), op.Div(scale, root, name="factor")]
        return [
            *quotient_by(x, square),
            *(op.Mul(x, factor) for factor in factors),
            *quotient_by(op.Mul(x, scale, name="factor"), square),
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        normal = self.unscaled(op, match)
        return op.Mul(normal, match["scale"]) if "factor" in match.nodes else normal
