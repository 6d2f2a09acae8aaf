"""Softmax and its logarithm, recognised and freed of shifts."""

from __future__ import annotations

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    floating,
    integer,
    normalised,
    rank,
    require,
)
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.rules.normalization import reduced_axes, x


class RecogniseSoftmax(Rule):
    """Exp(x) / ΣExp(x) = Softmax(x)

    for a sum over one axis, which it keeps; x of floating-point numbers.
    """

    family = "normalization"
    examples = (
        Example("float[2,3,4] x", "e = Exp(x) s = ReduceSum(e, a) y = Div(e, s)", {"a": [1]}),
        Example("float[2,N] x", "e = Exp(x) s = ReduceSum(e, a) y = Div(e, s)", {"a": [-1]}),
    )
    counterexamples = (
        Example("float[2,3,4] x", "e = Exp(x) s = ReduceSum(e, a) y = Div(e, s)", {"a": [1, 2]}, why="one axis"),
        Example("float[3,3] x", "e = Exp(x) s = ReduceSum<keepdims=0>(e, a) y = Div(e, s)", {"a": [1]}, why="drops"),
    )

    def patterns(self) -> list[Op]:
        above = op.Exp(x, name="exp")
        return [op.Div(above, op.ReduceSum(above, AnyValue("axes", optional=True), name="sum"))]

    def check(self, match: Match) -> None:
        floating(match["x"])
        require(len(reduced_axes(match.node("sum"), rank(match["x"]))) == 1, "the sum does not go over one axis")

    def rewrite(self, op: Operators, match: Match) -> Result:
        (axis,) = reduced_axes(match.node("sum"), rank(match["x"]))
        return op.Softmax(match["x"], axis=axis)


class RemoveSoftmaxShift(Rule):
    """Softmax(x - max(x)) = Softmax(x), and LogSoftmax

    for a maximum over the axis of the softmax, which it keeps.
    """

    family = "normalization"
    since = 18
    examples = (
        Example("float[2,3,4] x", "m = ReduceMax(x, a) d = Sub(x, m) y = Softmax<axis=1>(d)", {"a": [1]}),
        Example("float[2,3,4] x", "m = ReduceMax(x, a) d = Sub(x, m) y = LogSoftmax(d)", {"a": [2]}),
    )
    counterexamples = (
        Example("float[2,3,4] x", "m = ReduceMax(x, a) d = Sub(x, m) y = Softmax<axis=1>(d)", {"a": [2]}, why="axis"),
        examples[0].but("drops", "m = ReduceMax<keepdims=0>(x, a) d = Sub(x, m) y = Softmax(d)", inputs="float[3,3] x"),
    )

    def patterns(self) -> list[Op]:
        shifted = op.Sub(x, op.ReduceMax(x, AnyValue("axes", optional=True), name="max"))
        return [op.one_of("Softmax", "LogSoftmax")(shifted, name="softmax")]

    def check(self, match: Match) -> None:
        whole = rank(match["x"])
        over = normalised([integer(match.node("softmax"), "axis", -1)], whole)
        require(reduced_axes(match.node("max"), whole) == over, "the maximum does not go over the axis of the softmax")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("softmax"), match["x"])


class RecogniseLogSoftmax(Rule):
    """Log(Softmax(x)) = LogSoftmax(x)"""

    family = "normalization"
    examples = (Example("float[2,3,4] x", "s = Softmax<axis=1>(x) y = Log(s)"),)
    counterexamples = (Example("float[2,3] x", "s = Softmax(x) y = Log(s)", outputs="y, s", why="not profitable"),)

    def patterns(self) -> list[Op]:
        return [op.Log(op.Softmax(x, name="softmax"))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.LogSoftmax(match["x"], axis=integer(match.node("softmax"), "axis", -1))
