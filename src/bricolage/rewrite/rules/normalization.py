"""Layer and instance normalisation that an export wrote out in elementary operators."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.rewrite.analyses.linear import require_per_channel
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, ValuePattern, Weight, op
from bricolage.rewrite.predicates import (
    axes,
    floating,
    integer,
    normalised,
    rank,
    require,
    require_filled,
    require_shape,
    scalar,
    shape,
    single_precision,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")


def mean_of(source: ValuePattern, name: str) -> Op:
    """The mean of `source`; the variable of its axes begins with `name`."""
    return op.ReduceMean(source, AnyValue(f"{name} axes", optional=True), name=name)


def quotient_by(above: ValuePattern, square: ValuePattern) -> list[Op]:
    """above / √square, in every form of a root and of a reciprocal."""
    root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
    return [op.Div(above, root), op.Mul(above, inverse_root(square))]


def inverse_root(square: ValuePattern) -> Either:
    """1 / √square, in the ways in which exporters write it."""
    root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
    return Either(op.Reciprocal(root), op.Div(Number(1.0), root), op.Pow(square, Number(-0.5)))


def square_of(source: Op | AnyValue) -> Either:
    """source², as a power or as a product."""
    return Either(op.Pow(source, Number(2.0)), op.Mul(source, source))


_MEAN = mean_of(x, "mean")
_CENTRED = op.Sub(x, _MEAN, name="centred")


def _variance() -> Op:
    """The variance of x and ε: of what is centred for the numerator too, or centred once more, or by the mean of the squares."""
    again = op.Sub(x, mean_of(x, "mean again"), name="again")
    squares = Either(*square_of(_CENTRED).choices, *square_of(again).choices)
    plain = op.Sub(mean_of(square_of(x), "variance"), square_of(_MEAN))
    return op.Add(Either(mean_of(squares, "variance"), plain), Weight("epsilon"))


def reduced_axes(node: ir.Node, of_rank: int) -> tuple[int, ...]:
    """Axes of a reduction that keeps them, normalised and sorted.

    Raises:
        MatchFailure
    """
    require(bool(integer(node, "keepdims", 1)), f"'{node.name}' drops the axes that it reduces")
    reduction_axes = normalised(axes(node), of_rank)
    if not reduction_axes and not integer(node, "noop_with_empty_axes", 0):
        reduction_axes = tuple(range(of_rank))
    return tuple(sorted(reduction_axes))


def _trailing(match: Match) -> int:
    """First of the axes, the last ones without a gap, over which all the reductions go.

    Raises:
        MatchFailure
    """
    whole = rank(match["x"])
    means = [match.node(name) for name in ("mean", "mean again", "variance") if name in match.nodes]
    axis_sets = {reduced_axes(node, whole) for node in means}
    require(len(axis_sets) == 1, "the means go over different axes")
    (over,) = axis_sets
    require(bool(over) and over == tuple(range(over[0], whole)), "the means do not go over the last axes")
    return over[0]


def _epsilon(match: Match) -> float:
    array = constant_elements(match["epsilon"])
    require(array is not None and array.size == 1, "epsilon is not a constant of one element")
    assert array is not None
    return float(array.reshape(()).astype(float))


def _ones(op: Operators, match: Match, axis: int) -> ir.Value:
    over = shape(match["x"])[axis:]
    if not all(isinstance(size, int) for size in over):
        raise MatchFailure("a normalised axis has no fixed size")
    return op.Expand(op.number(1, match["x"]), op.integers([int(size) for size in over]))


_NORM = "m = ReduceMean(x, a) d = Sub(x, m) s = Mul(d, d) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) y = Div(d, r)"
_POW = (
    "m = ReduceMean(x, a) d = Sub(x, m) s = Pow(d, two) v = ReduceMean(s, a) w = Add(e, v) r = Sqrt(w) i = Reciprocal(r)"
    " y = Mul(d, i)"
)
VALUES = {"a": [-1], "e": 1e-5, "two": 2.0}
_CENTRED_TWICE = f"o = ReduceMean(x, b) c = Sub(x, o) {_NORM.replace('Mul(d, d)', 'Mul(c, c)')}"
_BY_SQUARES = (
    "m = ReduceMean(x, a) d = Sub(x, m) q = Mul(x, x) s = ReduceMean(q, a) n = Mul(m, m) v = Sub(s, n) w = Add(v, e)"
    " r = Sqrt(w) y = Div(d, r)"
)
_FACTOR = (
    "m = ReduceMean(x, a) d = Sub(x, m) s = Mul(d, d) v = ReduceMean(s, a) w = Add(v, e) r = Sqrt(w) i = Reciprocal(r)"
    " f = Mul(i, g)"
)
_SHIFTED = "o = Mul(x, f) p = Mul(m, f) q = Sub(b, p) y = Add(o, q)"


class RecogniseLayerNormalization(Rule):
    """(x - μ) / √(mean((x - μ)²) + ε) = LayerNormalization(x, 1, ε) with μ = mean(x)

    for means over the same last axes, which they keep and whose sizes are fixed; x of at most single precision, ε a
    constant of one element that does not broadcast; from opset 17. The variance may also be mean(x²) - μ². Scale and bias
    follow by folding.
    """

    family = "normalization"
    since = 17
    examples = (
        Example("float[2,3,4] x", _NORM, VALUES),
        Example("float[N,3,4] x", _POW, {**VALUES, "a": [2, 1]}),
        Example("float[2,3,4] x", _POW.replace("i = Reciprocal(r) y = Mul(d, i)", "y = Div(d, r)"), VALUES),
        Example("float[2,3,4] x", _POW.replace("Reciprocal(r)", "Div(one, r)"), {**VALUES, "one": 1.0}),
        Example(
            "float[2,3,4] x", _POW.replace("r = Sqrt(w) i = Reciprocal(r)", "i = Pow(w, h)"), {**VALUES, "h": -0.5}
        ),
        Example("float[2,3,4] x", _NORM.replace("Sqrt(w)", "Pow(w, h)"), {**VALUES, "h": 0.5}),
        Example("float[2,3,4] x", _CENTRED_TWICE, {**VALUES, "b": [2]}),
        Example("float[2,3,4] x", _BY_SQUARES, VALUES),
    )
    counterexamples = (
        Example("float[2,3,4] x", _NORM, {**VALUES, "a": [1]}, why="last axes"),
        examples[0].but("different", _NORM.replace("ReduceMean(s, a)", "ReduceMean(s, b)"), b=[1, 2]),
        Example("float[3,3] x", _NORM.replace("ReduceMean(x, a)", "ReduceMean<keepdims=0>(x, a)"), VALUES, why="drops"),
        Example("float[2,3,4] x", _NORM, {**VALUES, "e": (4,)}, why="epsilon"),
        Example("double[2,3,4] x, double e", _NORM, {"a": [-1]}, why="not a constant"),
        Example("float[2,3,N] x", _NORM, VALUES, why="no fixed size"),
        Example("float[2,3,4] x", _POW, {**VALUES, "two": 3.0}, why="not the constant"),
        Example("float[2,3,4] x", _CENTRED_TWICE, {**VALUES, "b": [1, 2]}, why="different"),
        Example("float[3,4] x", _NORM, {**VALUES, "e": [[[1e-5]]]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        return quotient_by(_CENTRED, _variance())

    def check(self, match: Match) -> None:
        single_precision(match["x"])
        _trailing(match)
        _epsilon(match)
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        axis = _trailing(match)
        return op.LayerNormalization(match["x"], _ones(op, match, axis), axis=axis, epsilon=_epsilon(match))


class ScaledNormalizationRule(Rule):
    """Base of rules about a normalisation over the last axes, written out, which may have its scale inside."""

    family = "normalization"
    operator: ClassVar[str]
    """The ONNX operator that normalises."""

    def check(self, match: Match) -> None:
        single_precision(match["x"])
        _trailing(match)
        _epsilon(match)
        require(rank(match["epsilon"]) <= rank(match["x"]), "epsilon is of higher rank than x")

    def unscaled(self, op: Operators, match: Match) -> ir.Value:
        """x normalised, with a scale of ones."""
        axis, normalise = _trailing(match), getattr(op, self.operator)
        normalization: ir.Value = normalise(match["x"], _ones(op, match, axis), axis=axis, epsilon=_epsilon(match))
        return normalization


class FactorOutOfLayerNormalization(ScaledNormalizationRule):
    """x · i + (β - μ · i) = LayerNormalization(x, 1, ε) · γ + β, and (x - μ) · i, with i = γ / √(mean((x - μ)²) + ε)

    under the conditions of recognise-layer-normalization; also ((x - μ) · γ) / √(…). TensorFlow's exports have the first form.
    Scale and bias follow by folding.
    """

    operator = "LayerNormalization"
    since = 17
    examples = (
        Example("float[2,3,4] x", f"{_FACTOR} {_SHIFTED}", {**VALUES, "g": (4,), "b": (4,)}),
        Example(
            "float[N,3,4] x, float[3,4] g, float[4] b",
            f"{_FACTOR.replace('i = Reciprocal(r) f = Mul(i, g)', 'f = Div(g, r)')} {_SHIFTED}",
            {**VALUES, "a": [1, 2]},
        ),
        Example("float[2,3,4] x", f"{_FACTOR} y = Mul(f, d)", {**VALUES, "g": (4,)}),
        Example(
            "float[2,3,4] x",
            _NORM.replace("y = Div(d, r)", "n = Mul(g, d) y = Div(n, r)"),
            {**VALUES, "g": (4,)},
        ),
    )
    counterexamples = (
        Example("float[2,3,4] x", f"{_FACTOR} {_SHIFTED}", {**VALUES, "a": [1], "g": (4,), "b": (4,)}, why="last axes"),
        Example(
            "float[2,3,4] x",
            f"{_FACTOR.replace('ReduceMean(s, a)', 'ReduceMean(s, c)')} {_SHIFTED}",
            {**VALUES, "c": [1, 2], "g": (4,), "b": (4,)},
            why="different",
        ),
        Example("float[2,3,4] x", f"{_FACTOR} y = Mul(f, d)", {**VALUES, "e": (4,), "g": (4,)}, why="epsilon"),
        Example("float[2,3,N] x, float[N] g", f"{_FACTOR} y = Mul(f, d)", VALUES, why="no fixed size"),
        Example(
            "double[2,3,4] x, double[4] g, double e", f"{_FACTOR} y = Mul(f, d)", {"a": [-1]}, why="not a constant"
        ),
        Example(
            "float[3,4] x",
            f"{_FACTOR} y = Mul(f, d)",
            {**VALUES, "e": [[[1e-5]]], "g": (4,)},
            why="higher rank",
        ),
        Example(
            "float[2,3,4] x",
            f"{_FACTOR} {_SHIFTED.replace('Mul(m, f)', 'Mul(m, h)')}",
            {**VALUES, "g": (4,), "h": (4,), "b": (4,)},
        ),
    )

    def patterns(self) -> list[Op]:
        square, scale, shift = _variance(), AnyValue("scale"), AnyValue("shift")
        root = Either(op.Sqrt(square), op.Pow(square, Number(0.5)))
        roots = quotient_by(op.Mul(_CENTRED, scale), square)
        for factor in (op.Mul(inverse_root(square), scale, name="factor"), op.Div(scale, root, name="factor")):
            # A centred factor stands first: it is what tells this from other products.
            roots.append(op.Mul(_CENTRED, factor))
            roots.append(op.Add(op.Mul(x, factor), op.Sub(shift, op.Mul(_MEAN, factor)), name="shifted"))
        return roots

    def rewrite(self, op: Operators, match: Match) -> Result:
        scaled = op.Mul(self.unscaled(op, match), match["scale"])
        return op.Add(scaled, match["shift"]) if "shifted" in match.nodes else scaled


_IMAGE = {**VALUES, "a": [2, 3]}


class RecogniseInstanceNormalization(Rule):
    """(x - μ) / √(mean((x - μ)²) + ε) = InstanceNormalization(x, 1, 0, ε) with μ = mean(x)

    for means over all axes from the third on, which they keep, where a LayerNormalization needs their sizes to be fixed; a
    fixed number of channels, ε a constant of one element that does not broadcast. Scale and bias follow by folding.
    """

    family = "normalization"
    examples = (
        Example("float[2,3,H,W] x", _NORM, _IMAGE),
        Example("float[N,3,L] x", _POW, {**VALUES, "a": [-1]}),
    )
    counterexamples = (
        Example("float[2,C,H,W] x", _NORM, _IMAGE, why="channels"),
        Example("float[2,3,H,W] x", _NORM, {**_IMAGE, "a": [3]}, why="from the third on"),
        Example("float[2,H] x", _NORM, {**VALUES, "a": [1]}, why="from the third on"),
        Example("float[2,3,H] x", _NORM, {**VALUES, "a": [2], "e": (3, 1)}, why="epsilon"),
    )

    def patterns(self) -> list[Op]:
        return RecogniseLayerNormalization().patterns()

    def check(self, match: Match) -> None:
        floating(match["x"])
        require(_trailing(match) == 2, "the means do not go over all axes from the third on")
        _epsilon(match)
        _channels(match["x"])
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        ones, zero = _vectors(op, match["x"])
        return op.InstanceNormalization(match["x"], ones, zero, epsilon=_epsilon(match))


def _channels(value: ir.Value) -> int:
    channels = shape(value)[1]
    if not isinstance(channels, int):
        raise MatchFailure("the number of channels is not fixed")
    return channels


def _vectors(op: Operators, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """1 and 0 for every channel."""
    count = op.integers([_channels(value)])
    return op.Expand(op.number(1, value), count), op.Expand(op.number(0, value), count)


class ChannelsOfLayerNormalization(Rule):
    """LayerNormalization(x, 1) · c = InstanceNormalization(x, c, 0), LayerNormalization(x, 1) + c = InstanceNormalization(x, 1, c)

    for all axes from the third on, and c a constant with one number for each channel.
    """

    family = "normalization"
    since = 17
    examples = (
        Example(
            "float[2,3,4,5] x",
            "t = LayerNormalization<axis=2>(x, one) y = Mul(t, c)",
            {"one": np.ones((4, 5)), "c": (3, 1, 1)},
        ),
        Example("float[N,3,4] x", "t = LayerNormalization(x, one) y = Add(c, t)", {"one": np.ones(4), "c": (1, 3, 1)}),
    )
    counterexamples = (
        Example("float[2,3,4] x", "t = LayerNormalization(x, s) y = Mul(t, c)", {"s": (4,), "c": (3, 1)}, why="not 1"),
        Example(
            "float[2,3,4] x",
            "t = LayerNormalization(x, one) y = Mul(t, c)",
            {"one": np.ones(4), "c": (3, 4)},
            why="channel",
        ),
        Example(
            "float[2,3,4] x",
            "t = LayerNormalization(x, one, b) y = Mul(t, c)",
            {"one": np.ones(4), "b": (4,), "c": (3, 1)},
            why="more than 2 inputs",
        ),
        examples[0].but("from the third on", "t = LayerNormalization(x, one) y = Mul(t, c)", one=np.ones(5)),
    )

    def patterns(self) -> list[Op]:
        norm = op.LayerNormalization(x, Weight("one"), name="norm")
        return [op.Mul(norm, Weight("c"), name="product"), op.Add(norm, Weight("c"))]

    def check(self, match: Match) -> None:
        whole = rank(match["x"])
        over = normalised([integer(match.node("norm"), "axis", -1)], whole)
        require(over == (2,), "it does not go over all axes from the third on")
        require_filled(match["one"], 1)
        require_per_channel(match["c"], whole, 1, _channels(match["x"]))
        require(not scalar(match["c"]), "the constant is one for all, not one for each channel")

    def rewrite(self, op: Operators, match: Match) -> Result:
        ones, zero = _vectors(op, match["x"])
        constant = op.Expand(op.Reshape(match["c"], op.integers([-1])), op.integers([_channels(match["x"])]))
        scale, shift = (constant, zero) if "product" in match.nodes else (ones, constant)
        epsilon = match.node("norm").attributes.get_float("epsilon", 1e-5)
        return op.InstanceNormalization(match["x"], scale, shift, epsilon=epsilon)
