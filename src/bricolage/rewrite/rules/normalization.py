"""Normalisations, softmax and attention that an export wrote out in elementary operators."""

from __future__ import annotations

import math

import onnx_ir as ir

from bricolage.graph.folding import known
from bricolage.graph.graph import describe
from bricolage.rewrite.facts import axes, floating, integer, normalised, rank, require, require_shape, shape, sizes
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Either, Number, Op, Pattern, Weight, op
from bricolage.rewrite.rule import Example, Mismatch, Operators, Result, Rule

x = Any("x")


def _mean(source: Pattern, name: str) -> Op:
    return op.ReduceMean(source, Any(f"{name} axes", optional=True), name=name)


def _quotient(above: Pattern, square: Pattern) -> list[Op]:
    """above / √square, in every form of a root and of a reciprocal."""
    root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
    return [op.Div(above, root), op.Mul(above, _inverse_root(square))]


def _inverse_root(square: Pattern) -> Either:
    root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
    return Either(op.Reciprocal(root), op.Div(Number(1.0), root), op.Pow(square, Number(-0.5)))


def _square(source: Op | Any) -> Either:
    return Either(op.Pow(source, Number(2.0)), op.Mul(source, source))


def _reduced(node: ir.Node, of_rank: int) -> tuple[int, ...]:
    """Axes of a reduction that keeps them, normalised and sorted.

    Raises:
        Mismatch
    """
    require(bool(integer(node, "keepdims", 1)), f"'{node.name}' drops the axes that it reduces")
    found = normalised(axes(node), of_rank)
    if not found and not integer(node, "noop_with_empty_axes", 0):
        found = tuple(range(of_rank))
    return tuple(sorted(found))


def _trailing(match: Match, *means: str) -> int:
    """First of the axes, the last ones without a gap, over which all the reductions go.

    Raises:
        Mismatch
    """
    whole = rank(match["x"])
    found = {_reduced(match.node(name), whole) for name in means}
    require(len(found) == 1, "the means go over different axes")
    (over,) = found
    require(bool(over) and over == tuple(range(over[0], whole)), "the means do not go over the last axes")
    return over[0]


def _epsilon(match: Match) -> float:
    array = known(match["epsilon"])
    require(array is not None and array.size == 1, "epsilon is not a constant of one element")
    assert array is not None
    return float(array.reshape(()).astype(float))


def _single(value: ir.Value) -> None:
    floating(value)
    require(describe(value).dtype != ir.DataType.DOUBLE, "the operator computes in single precision at most")


def _ones(op: Operators, match: Match, axis: int) -> ir.Value:
    over = shape(match["x"])[axis:]
    if not all(isinstance(size, int) for size in over):
        raise Mismatch("a normalised axis has no fixed size")
    return op.Expand(op.number(1, match["x"]), op.integers([int(size) for size in over]))


_NORM = "m = ReduceMean(x, a) d = Sub(x, m) s = Mul(d, d) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) y = Div(d, r)"
_POW = (
    "m = ReduceMean(x, a) d = Sub(x, m) s = Pow(d, two) v = ReduceMean(s, a) w = Add(e, v) r = Sqrt(w) i = Reciprocal(r)"
    " y = Mul(d, i)"
)
_VALUES = {"a": [-1], "e": 1e-5, "two": 2.0}


class RecogniseLayerNormalization(Rule):
    """(x - μ) / √(mean((x - μ)²) + ε) = LayerNormalization(x, 1, ε) with μ = mean(x)

    for means over the same last axes, which they keep and whose sizes are fixed; x of at most single precision, ε a
    constant of one element that does not broadcast; from opset 17. Scale and bias follow by folding.
    """

    family = "normalization"
    since = 17
    examples = (
        Example("float[2,3,4] x", _NORM, _VALUES),
        Example("float[N,3,4] x", _POW, {**_VALUES, "a": [2, 1]}),
        Example("float[2,3,4] x", _POW.replace("i = Reciprocal(r) y = Mul(d, i)", "y = Div(d, r)"), _VALUES),
        Example("float[2,3,4] x", _POW.replace("Reciprocal(r)", "Div(one, r)"), {**_VALUES, "one": 1.0}),
        Example(
            "float[2,3,4] x", _POW.replace("r = Sqrt(w) i = Reciprocal(r)", "i = Pow(w, h)"), {**_VALUES, "h": -0.5}
        ),
        Example("float[2,3,4] x", _NORM.replace("Sqrt(w)", "Pow(w, h)"), {**_VALUES, "h": 0.5}),
    )
    counterexamples = (
        Example("float[2,3,4] x", _NORM, {**_VALUES, "a": [1]}, why="last axes"),
        Example(
            "float[2,3,4] x",
            _NORM.replace("ReduceMean(s, a)", "ReduceMean(s, b)"),
            {**_VALUES, "b": [1, 2]},
            why="different",
        ),
        Example(
            "float[3,3] x", _NORM.replace("ReduceMean(x, a)", "ReduceMean<keepdims=0>(x, a)"), _VALUES, why="drops"
        ),
        Example("float[2,3,4] x", _NORM, {**_VALUES, "e": (4,)}, why="epsilon"),
        Example("double[2,3,4] x, double e", _NORM, {"a": [-1]}, why="not a constant"),
        Example("float[2,3,N] x", _NORM, _VALUES, why="no fixed size"),
        Example("float[2,3,4] x", _POW, {**_VALUES, "two": 3.0}, why="not the constant"),
        Example("float[3,4] x", _NORM, {**_VALUES, "e": [[[1e-5]]]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        centred = op.Sub(x, _mean(x, "mean"), name="centred")
        return _quotient(centred, op.Add(_mean(_square(centred), "variance"), Weight("epsilon")))

    def check(self, match: Match) -> None:
        _single(match["x"])
        _trailing(match, "mean", "variance")
        _epsilon(match)
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        axis = _trailing(match, "mean", "variance")
        return op.LayerNormalization(match["x"], _ones(op, match, axis), axis=axis, epsilon=_epsilon(match))


_RMS = "s = Mul(x, x) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) y = Div(x, r)"


class RecogniseRMSNormalization(Rule):
    """x / √(mean(x²) + ε) = RMSNormalization(x, 1, ε)

    for a mean over the last axes, which it keeps and whose sizes are fixed; x of at most single precision, ε a constant of
    one element that does not broadcast; from opset 23. The scale follows by folding.
    """

    family = "normalization"
    since = 23
    examples = (
        Example("float[2,3,4] x", _RMS, _VALUES, opset=23),
        Example(
            "float[2,N,4] x",
            "s = Pow(x, two) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) i = Reciprocal(r) y = Mul(i, x)",
            _VALUES,
            opset=23,
        ),
        Example(
            "float[2,3,4] x",
            "s = Pow(x, two) v = ReduceMean(s, a) w = Add(v, e) i = Pow(w, h) y = Mul(x, i)",
            {**_VALUES, "h": -0.5},
            opset=23,
        ),
    )
    counterexamples = (
        Example("float[2,3,4] x", _RMS, {**_VALUES, "a": [0]}, opset=23, why="last axes"),
        Example("float[2,3,4] x", _RMS, {**_VALUES, "e": (4,)}, opset=23, why="epsilon"),
        Example("float[2,3,N] x", _RMS, _VALUES, opset=23, why="no fixed size"),
        Example("float[4,4] x", _RMS.replace("Mean(", "Mean<keepdims=0>("), _VALUES, opset=23, why="drops"),
        Example("float[3,4] x", _RMS, {**_VALUES, "e": [[[1e-5]]]}, opset=23, why="has not the shape"),
        Example("float[2,3,4] x", _RMS, _VALUES, opset=22),
    )

    def patterns(self) -> list[Op]:
        return _quotient(x, op.Add(_mean(_square(x), "mean"), Weight("epsilon")))

    def check(self, match: Match) -> None:
        _single(match["x"])
        _trailing(match, "mean")
        _epsilon(match)
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        axis = _trailing(match, "mean")
        return op.RMSNormalization(match["x"], _ones(op, match, axis), axis=axis, epsilon=_epsilon(match))


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
        return [op.Div(above, op.ReduceSum(above, Any("axes", optional=True), name="sum"))]

    def check(self, match: Match) -> None:
        floating(match["x"])
        require(len(_reduced(match.node("sum"), rank(match["x"]))) == 1, "the sum does not go over one axis")

    def rewrite(self, op: Operators, match: Match) -> Result:
        (axis,) = _reduced(match.node("sum"), rank(match["x"]))
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
        Example(
            "float[3,3] x", "m = ReduceMax<keepdims=0>(x, a) d = Sub(x, m) y = Softmax(d)", {"a": [1]}, why="drops"
        ),
    )

    def patterns(self) -> list[Op]:
        shifted = op.Sub(x, op.ReduceMax(x, Any("axes", optional=True), name="max"))
        return [op.one_of("Softmax", "LogSoftmax")(shifted, name="softmax")]

    def check(self, match: Match) -> None:
        whole = rank(match["x"])
        over = normalised([integer(match.node("softmax"), "axis", -1)], whole)
        require(_reduced(match.node("max"), whole) == over, "the maximum does not go over the axis of the softmax")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("softmax"), match["x"])


class RecogniseLogSoftmax(Rule):
    """Log(Softmax(x)) = LogSoftmax(x)"""

    family = "normalization"
    examples = (Example("float[2,3,4] x", "s = Softmax<axis=1>(x) y = Log(s)"),)
    counterexamples = (Example("float[2,3] x", "s = Softmax(x) y = Log(s)", outputs="y, s", why="no gain"),)

    def patterns(self) -> list[Op]:
        return [op.Log(op.Softmax(x, name="softmax"))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.LogSoftmax(match["x"], axis=integer(match.node("softmax"), "axis", -1))


_QKV = "float[2,3,5,4] q, float[2,3,4,6] k, float[2,3,6,7] v"
_PLAIN = "s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)"
_SCALED = "s = MatMul(q, k) c = Mul(s, f) b = Add(c, m) p = Softmax<axis=-1>(b) y = MatMul(p, v)"
_DIVIDED = "s = MatMul(q, k) c = Div(s, f) p = Softmax<axis=3>(c) y = MatMul(p, v)"


class RecogniseAttention(Rule):
    """MatMul(Softmax(MatMul(q, k) · c + mask), v) = Attention(q, kᵀ, v, mask, scale=c)

    for q, k, v of rank 4 with equal batches and heads, the softmax along the last axis, c a positive constant of one
    element (1 where there is none, or its reciprocal after /), and a mask (or none) that broadcasts to the scores, whose
    last two sizes are fixed where the mask has others; q of at most single precision; from opset 23.
    """

    family = "normalization"
    since = 23
    examples = (
        Example(_QKV, _PLAIN, opset=23),
        Example(f"{_QKV}, float[2,1,1,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(f"{_QKV}, float[5,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(_QKV, _DIVIDED, {"f": 2.0}, opset=23),
    )
    counterexamples = (
        Example(_QKV, _PLAIN.replace("Softmax", "Softmax<axis=2>"), opset=23, why="last axis"),
        Example(_QKV, _DIVIDED, {"f": -2.0}, opset=23, why="positive"),
        Example(_QKV, _DIVIDED, {"f": (6,)}, opset=23, why="one element"),
        Example("float[3,5,4] q, float[3,4,6] k, float[3,6,7] v", _PLAIN, opset=23, why="rank 4"),
        Example("float[2,3,5,4] q, float[2,1,4,6] k, float[2,3,6,7] v", _PLAIN, opset=23, why="batches and heads"),
        Example(f"{_QKV}, float[4,1,2,3,1,6] m", _SCALED, {"f": 0.5}, opset=23, why="rank"),
        Example(
            "float[2,3,N,4] q, float[2,3,4,6] k, float[2,3,6,7] v, float[2,1,1,6] m",
            _SCALED,
            {"f": 0.5},
            opset=23,
            why="not known",
        ),
        Example(_QKV, _PLAIN, opset=22),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(Any("q"), Any("k"))
        scores = Either(op.Mul(product, Weight("c"), name="mul"), op.Div(product, Weight("c"), name="div"), product)
        masked = Either(op.Add(scores, Any("mask"), name="masked"), scores)
        return [op.MatMul(op.Softmax(masked, name="softmax"), Any("v"))]

    def check(self, match: Match) -> None:
        _single(match["q"])
        ranks = [rank(match[name]) for name in "qkv"]
        require(ranks == [4, 4, 4], "q, k and v are not all of rank 4")
        batches = {shape(match[name])[:2] for name in "qkv"}
        require(len(batches) == 1 and "?" not in batches.pop(), "q, k and v have different batches and heads")
        require(integer(match.node("softmax"), "axis", -1) in (-1, 3), "the softmax is not along the last axis")
        if "mul" in match.nodes or "div" in match.nodes:
            self._scale(match)
        if "masked" in match.nodes:
            mask = match["mask"]
            require(describe(mask).dtype == describe(match["q"]).dtype, "the mask has another type")
            require(rank(mask) <= 4, "the mask has a higher rank than the scores")
            require(
                shape(match.node("masked").outputs[0]) == shape(match.node("softmax").outputs[0]), "the mask is larger"
            )

    @staticmethod
    def _scale(match: Match) -> float:
        if "mul" not in match.nodes and "div" not in match.nodes:
            return 1.0
        array = known(match["c"])
        require(array is not None and array.size == 1 and len(sizes(match["c"])) <= 4, "the scale has not one element")
        assert array is not None
        scale = float(array.reshape(()).astype(float))
        require(math.isfinite(scale) and scale > 0, "the scale is not positive")
        return 1 / scale if "div" in match.nodes else scale

    def rewrite(self, op: Operators, match: Match) -> Result:
        mask = match["mask"] if "masked" in match.nodes else None
        if mask is not None:
            if rank(mask) < 4:
                mask = op.Unsqueeze(mask, op.integers(list(range(4 - rank(mask)))))
            scores = shape(match.node("masked").outputs[0])
            if shape(mask)[2:] != scores[2:]:  # runtimes broadcast a mask over batches and heads only
                rows, columns = sizes(match.node("masked").outputs[0])[2:]
                mask = op.Expand(mask, op.integers([1, 1, rows, columns]))
        key = op.Transpose(match["k"], perm=[0, 1, 3, 2])
        return op.Attention(match["q"], key, match["v"], mask, scale=self._scale(match))
