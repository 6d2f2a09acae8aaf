"""Reductions: composed, named, and what can be done after them instead of before, on less data."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import (
    axes,
    floating,
    integer,
    normalised,
    rank,
    require,
    require_shape,
    scalar,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x, a, b, s = AnyValue("x"), AnyValue("a"), AnyValue("b"), AnyValue("s")
_AXES = AnyValue("axes", optional=True)


class _Reduction(Rule):
    """Base of laws of reductions of floating-point numbers, whose axes are an input."""

    family = "reduction"
    since = 18

    def check(self, match: Match) -> None:
        floating(match.root)


def _over(node: ir.Node, of: ir.Value) -> tuple[int, ...]:
    """The axes of a reduction, from the front; all where it names none.

    Raises:
        MatchFailure: it reduces nothing, or its axes are no constant.
    """
    named = axes(node)
    require(bool(named) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")
    return normalised(named, rank(of)) or tuple(range(rank(of)))


_NESTING = (
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSumExp",
)


class ComposeReductions(_Reduction):
    """R(R(x, a), b) = R(x, a and b), for R a sum, mean, product, maximum, minimum, norm or LogSumExp

    where both keep the reduced axes, or neither does, and the axes are constants.
    """

    examples = (
        Example("float[2,3,4] x", "t = ReduceSum(x, a) y = ReduceSum(t, b)", {"a": [2], "b": [1]}),
        Example("float[2,3,4,2] x", "t = ReduceMean<keepdims=0>(x, a) y = ReduceMean<keepdims=0>(t, a)", {"a": [1]}),
        Example("float[2,2] x", "t = ReduceMax<keepdims=0>(x, a) y = ReduceMax<keepdims=0>(t)", {"a": [-1]}),
        Example("float[N,2,2] x", "t = ReduceProd(x, a) y = ReduceProd(t, b)", {"a": [2], "b": [1, 2]}),
    )
    counterexamples = (
        Example(
            "float[2,3] x", "t = ReduceSum(x, a) y = ReduceSum<noop_with_empty_axes=1>(t)", {"a": [1]}, why="nothing"
        ),
        examples[0].but("another reduction", "t = ReduceSum(x, a) y = ReduceMax(t, b)"),
        examples[0].but("only one", "t = ReduceSum(x, a) y = ReduceSum<keepdims=0>(t, b)"),
        examples[1].but("not a constant", "t = ReduceSum(x, a) y = ReduceSum(t, b)", inputs="float[2,3] x, int64[1] b"),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        inner = op.one_of(*_NESTING)(x, AnyValue("first", optional=True), name="inner")
        return [op.one_of(*_NESTING)(inner, AnyValue("second", optional=True), name="outer")]

    def check(self, match: Match) -> None:
        super().check(match)
        inner, outer = match.node("inner"), match.node("outer")
        require(inner.op_type == outer.op_type, "they are not the same: another reduction follows")
        require(integer(inner, "keepdims", 1) == integer(outer, "keepdims", 1), "only one keeps the reduced axes")

    def rewrite(self, op: Operators, match: Match) -> Result:
        inner, outer, data = match.node("inner"), match.node("outer"), match["x"]
        first, second = _over(inner, data), _over(outer, inner.outputs[0])
        if not integer(inner, "keepdims", 1):
            left = [axis for axis in range(rank(data)) if axis not in first]
            second = tuple(left[axis] for axis in second)
        return op.copy(outer, data, op.integers(sorted({*first, *second})))


class RecogniseReduction(_Reduction):
    """Σ|x| = ReduceL1(x), Σx² = ReduceSumSquare(x), √Σx² = ReduceL2(x), Log(Σ Exp(x)) = ReduceLogSumExp(x)"""

    examples = (
        Example("float[2,3] x", "t = Abs(x) y = ReduceSum(t, a)", {"a": [1]}),
        Example("float[2,3] x", "t = Mul(x, x) y = ReduceSum<keepdims=0>(t, a)", {"a": [1]}),
        Example("float[2,3] x", "t = ReduceSumSquare(x, a) y = Sqrt(t)", {"a": [1]}),
        Example("float[2,3] x", "e = Exp(x) t = ReduceSum(e, a) y = Log(t)", {"a": [1]}),
    )
    counterexamples = (
        Example("float[2,3] x, float[2,3] z", "t = Mul(x, z) y = ReduceSum(t, a)", {"a": [1]}, why="another value"),
        Example("int64[2,3] x", "t = Abs(x) y = ReduceSum(t, a)", {"a": [1]}, why="floating-point"),
        Example("float[2,3] x", "t = Abs(x) y = ReduceSum<noop_with_empty_axes=1>(t)", why="reduces nothing"),
        Example("float[2,3] x", "t = Abs(x) y = ReduceSum(t, a)", {"a": [1]}, outputs="y, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [
            op.ReduceSum(op.Abs(x), _AXES, name="ReduceL1"),
            op.ReduceSum(op.Mul(x, x), _AXES, name="ReduceSumSquare"),
            op.Sqrt(op.ReduceSumSquare(x, _AXES, name="ReduceL2")),
            op.Log(op.ReduceSum(op.Exp(x), _AXES, name="ReduceLogSumExp")),
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        (name,) = match.nodes
        node = match.node(name)
        return op.many(
            name,
            1,
            match["x"],
            match.get("axes"),
            keepdims=integer(node, "keepdims", 1),
            noop_with_empty_axes=_noop(node),
        )


def _noop(node: ir.Node) -> int:
    """Without axes the squares of an element-wise reduction would be lost.

    Raises:
        MatchFailure: it reduces nothing.
    """
    require(bool(node.inputs[1:]) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")
    return 0


class SumIntoMean(_Reduction):
    """ReduceSum(x) / n = ReduceMean(x), with n the number of elements summed

    for a constant n of one element, as a divisor or its reciprocal as a factor, and reduced axes of known sizes.
    """

    examples = (
        Example("float[2,4] x", "t = ReduceSum(x, a) y = Div(t, n)", {"a": [1], "n": 4.0}),
        Example("float[2,4,2] x", "t = ReduceSum<keepdims=0>(x, a) y = Mul(n, t)", {"a": [1, 2], "n": 0.125}),
        Example("float[N,3] x", "t = ReduceSum(x, a) y = Div(t, n)", {"a": [1], "n": [3.0]}),
    )
    counterexamples = (
        Example("float[2,4] x", "t = ReduceSum(x, a) y = Div(t, n)", {"a": [1], "n": 5.0}, why="not the number"),
        Example("float[2,N] x", "t = ReduceSum(x, a) y = Div(t, n)", {"a": [1], "n": 5.0}, why="not known"),
        Example("float[2,4] x", "t = ReduceSum(x, a) y = Div(t, n)", {"a": [1], "n": [[[4.0]]]}, why="one element"),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        total = op.ReduceSum(x, _AXES, name="sum")
        return [op.Div(total, Weight("n"), name="quotient"), op.Mul(total, Weight("n"))]

    def check(self, match: Match) -> None:
        super().check(match)
        require(scalar(match["n"]), "n is not one element")
        require_shape(match.root, match.node("sum").outputs[0])
        data_shape, over = shape(match["x"]), _over(match.node("sum"), match["x"])
        count = 1
        for axis in over:
            size = data_shape[axis]
            if not isinstance(size, int):
                raise MatchFailure("a size is not known")
            count *= size
        tensor = match["n"].const_value
        assert tensor is not None
        number = float(tensor.numpy().reshape(()).astype(float))
        wanted = count if "quotient" in match.nodes else 1 / count
        require(abs(number - wanted) <= 2**-23 * abs(wanted), "it is not the number of elements summed")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("sum")
        return op.ReduceMean(match["x"], match.get("axes"), keepdims=integer(node, "keepdims", 1))


class FactorOutOfSum(_Reduction):
    """ReduceSum(A ⊙ s) = ReduceSum(A) ⊙ s, and ReduceMean; and with / for ⊙

    where s has size 1 along the reduced axes, and these are kept and constants.
    """

    examples = (
        Example("float[4,8] a, float[4,1] s", "t = Mul(a, s) y = ReduceSum(t, n)", {"n": [1]}),
        Example("float[2,4,8] a, float[1] s", "t = Div(a, s) y = ReduceMean(t, n)", {"n": [0, -1]}),
        Example("float[N,8] a, float[N,1] s", "t = Mul(s, a) y = ReduceMean(t, n)", {"n": [1]}),
    )
    counterexamples = (
        Example("float[4,8] a, float[1,8] s", "t = Mul(a, s) y = ReduceSum(t, n)", {"n": [1]}, why="size 1"),
        Example("float[4,8] a, float[4,1] s", "t = Mul(a, s) y = ReduceSum<keepdims=0>(t, n)", {"n": [1]}, why="kept"),
        Example("float[4,8] a, float[4,1] s", "t = Div(s, a) y = ReduceSum(t, n)", {"n": [1]}, why="has not the shape"),
        examples[0].but("has not the shape", inputs="float[4,8] a, float[3,4,1] s", n=[2]),
        examples[0].but("not profitable", inputs="float[4,1] a, float[4,1] s", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("ReduceSum", "ReduceMean")(op.one_of("Mul", "Div")(a, s, name="scale"), _AXES, name="sum")]

    def check(self, match: Match) -> None:
        super().check(match)
        scaled = match.node("scale").outputs[0]
        require_shape(scaled, match["a"])
        require(bool(integer(match.node("sum"), "keepdims", 1)), "the reduced axes are not kept")
        factor, whole = shape(match["s"]), rank(scaled)
        aligned = [*([1] * (whole - len(factor))), *factor]
        require(
            all(aligned[axis] == 1 for axis in _over(match.node("sum"), scaled)),
            "the factor has not size 1 along the reduced axes",
        )

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("scale"), op.copy(match.node("sum"), match["a"], match.get("axes")), match["s"])


_TURNED = {"ReduceSum": "ReduceSum", "ReduceMean": "ReduceMean", "ReduceMax": "ReduceMin", "ReduceMin": "ReduceMax"}


class NegationOutOfReduction(_Reduction):
    """Σ(-x) = -Σx, and the mean; max(-x) = -min(x), min(-x) = -max(x)"""

    examples = (
        Example("float[4,8] x", "t = Neg(x) y = ReduceSum(t, n)", {"n": [1]}),
        Example("float[2,2] x", "t = Neg(x) y = ReduceMax<keepdims=0>(t, n)", {"n": [1]}),
        Example("float[2,2] x", "t = Neg(x) y = ReduceMin(t)"),
    )
    counterexamples = (
        Example("int64[4,8] x", "t = Neg(x) y = ReduceSum(t, n)", {"n": [1]}, why="floating-point"),
        Example("float[4,8] x", "t = Neg(x) y = ReduceSum(t, n)", {"n": [1]}, outputs="y, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of(*_TURNED)(op.Neg(x), _AXES, name="reduce")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("reduce")
        reduced = op.many(
            _TURNED[node.op_type],
            1,
            match["x"],
            match.get("axes"),
            keepdims=integer(node, "keepdims", 1),
            noop_with_empty_axes=integer(node, "noop_with_empty_axes", 0),
        )
        return op.Neg(reduced[0])


_INCREASING = ("Relu", "Exp", "Sigmoid", "Tanh", "Erf", "Softplus", "Floor", "Ceil", "Round", "Softsign")


class FunctionAfterMaximum(_Reduction):
    """max(f(x)) = f(max(x)), and the minimum, for increasing f, over axes or of two values"""

    examples = (
        Example("float[2,2] x", "t = Relu(x) y = ReduceMax(t, n)", {"n": [1]}),
        Example("float[2] a, float[2] b", "s = Relu(a) t = Relu(b) y = Max(s, t)"),
        Example("float[2,4] x", "t = Tanh(x) y = ReduceMin<keepdims=0>(t, n)", {"n": [1]}),
    )
    counterexamples = (
        Example("float[2,2] x", "t = Abs(x) y = ReduceMax(t, n)", {"n": [1]}, why="not computed by"),
        Example("float[2] a, float[2] b", "s = Relu(a) t = Tanh(b) y = Max(s, t)", why="two functions"),
        examples[1].but("not profitable", outputs="y, s"),
    )

    def patterns(self) -> list[Op]:
        increasing = op.one_of(*_INCREASING)
        return [
            op.one_of("ReduceMax", "ReduceMin")(increasing(x, name="function"), _AXES, name="reduce"),
            op.one_of("Max", "Min")(increasing(a, name="function"), increasing(b, name="second"), name="pair"),
        ]

    def check(self, match: Match) -> None:
        super().check(match)
        if "pair" in match.nodes:
            require(match.node("function").op_type == match.node("second").op_type, "they are two functions")

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "pair" in match.nodes:
            return op.copy(match.node("function"), op.copy(match.node("pair"), match["a"], match["b"]))
        return op.copy(match.node("function"), op.copy(match.node("reduce"), match["x"], match.get("axes")))


class FunctionAfterPooling(_Reduction):
    """MaxPool(f(x)) = f(MaxPool(x)) for increasing f

    where the positions of the maxima are not asked for. A function that its producer would fuse may be dearer behind the pooling.
    """

    cost_based = True
    examples = (
        Example("float[1,1,3,3] x", "t = Relu(x) y = MaxPool<kernel_shape=[2,2], strides=[2,2], pads=[0,0,1,1]>(t)"),
        Example("float[1,2,4] x", "t = Sigmoid(x) y = MaxPool<kernel_shape=[2]>(t)"),
    )
    counterexamples = (
        Example("float[1,2,4] x", "t = Neg(x) y = MaxPool<kernel_shape=[2]>(t)", why="not computed by"),
        Example("float[1,2,4] x", "t = Relu(x) y, i = MaxPool<kernel_shape=[2]>(t)", outputs="y, i", why="in use"),
    )

    def patterns(self) -> list[Op]:
        return [op.MaxPool(op.one_of(*_INCREASING)(x, name="function"), name="pool")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("function"), op.copy(match.node("pool"), match["x"]))


class LogSumExpIntoLogSoftmax(_Reduction):
    """x - ReduceLogSumExp(x) = LogSoftmax(x)

    along one constant axis that is kept.
    """

    examples = (
        Example("float[2,3] x", "t = ReduceLogSumExp(x, n) y = Sub(x, t)", {"n": [1]}),
        Example("float[N,3,4] x", "t = ReduceLogSumExp(x, n) y = Sub(x, t)", {"n": [-2]}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = ReduceLogSumExp(x, n) y = Sub(x, t)", {"n": [0, 1]}, why="one axis"),
        Example("float[3,3] x", "t = ReduceLogSumExp<keepdims=0>(x, n) y = Sub(x, t)", {"n": [1]}, why="kept"),
        Example(
            "float[2,3] x, float[2,3] z", "t = ReduceLogSumExp(x, n) y = Sub(z, t)", {"n": [1]}, why="another value"
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.Sub(x, op.ReduceLogSumExp(x, _AXES, name="reduce"))]

    def check(self, match: Match) -> None:
        super().check(match)
        node = match.node("reduce")
        require(bool(integer(node, "keepdims", 1)), "the reduced axis is not kept")
        require(len(_over(node, match["x"])) == 1, "it is not over one axis")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.LogSoftmax(match["x"], axis=_over(match.node("reduce"), match["x"])[0])
