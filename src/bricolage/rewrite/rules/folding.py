"""Normalisation, scales and biases folded into convolutions and matrix products."""

from __future__ import annotations

from bricolage.rewrite.analyses.linear import (
    CONVOLUTIONS,
    channels,
    flat,
    linear,
    normalised_channels,
    output_channels,
    read_joined_parts,
    require_per_channel,
    scaled_channels,
    shifted_channels,
)
from bricolage.rewrite.analyses.slices import keep
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import integer, rank, require, shape
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, c = AnyValue("x"), AnyValue("c")
_PARAMETERS = ("scale", "shift", "mean", "variance")
NORM = {"s": (4,), "h": (4,), "m": (4,), "v": (4,)}


class BatchNormalizationIntoLinear(Rule):
    """BatchNormalization(L(x, w, b), s, h, μ, v, ε) = L(x, w·f, (b - μ)·f + h) with f = s / √(v + ε)

    for L a Conv, ConvTranspose or Gemm with constant weight and bias (or none); in inference, with constant parameters.
    """

    family = "folding"
    examples = (
        Example(
            "float[1,3,5,5] x", "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)", {"w": (4, 3, 3, 3), **NORM}
        ),
        Example(
            "float[1,2,5] x",
            "t = Conv<group=2>(x, w, b) y = BatchNormalization<epsilon=0.1>(t, s, h, m, v)",
            {"w": (4, 1, 3), "b": (4,), **NORM},
        ),
        Example(
            "float[1,4,3,3] x",
            "t = ConvTranspose<group=2, strides=[2,2]>(x, w) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 2, 2, 2), **NORM},
        ),
        Example(
            "float[N,3] x",
            "t = Gemm<transB=1, beta=0.5>(x, w, b) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 3), "b": (4,), **NORM},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,5] x, float[4,3,3] w",
            "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)",
            NORM,
            why="constant",
        ),
        Example(
            "float[1,3,5] x, float[4] s",
            "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 3, 3), **{k: v for k, v in NORM.items() if k != "s"}},
            why="not a constant",
        ),
        Example(
            "float[1,3,5] x",
            "t = Conv(x, w) y, n, o = BatchNormalization<training_mode=1>(t, s, h, m, v)",
            {"w": (4, 3, 3), **NORM},
            why="training",
        ),
        examples[0].but("not profitable", inputs="float[1,3,5] x", outputs="y, t", w=(4, 3, 3)),
    )

    def patterns(self) -> list[Op]:
        parameters = map(Weight, _PARAMETERS)
        return [op.BatchNormalization(linear("Conv", "ConvTranspose", "Gemm"), *parameters, name="norm")]

    def check(self, match: Match) -> None:
        require(not integer(match.node("norm"), "training_mode", 0), "it is in training mode")
        channels(match.node("linear"), match["w"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        parameters = [match[name] for name in _PARAMETERS]
        return normalised_channels(op, match.node("linear"), match.node("norm"), *parameters)


class BiasIntoLinear(Rule):
    """L(x, w, b) + c = L(x, w, b + c), and with - for +

    for L a Conv, ConvTranspose or Gemm with constant bias (or none), and c a constant with one number for each output
    channel, or one for all.
    """

    family = "folding"
    examples = (
        Example("float[1,3,5,5] x", "t = Conv(x, w) y = Add(c, t)", {"w": (4, 3, 3, 3), "c": (1, 4, 1, 1)}),
        Example("float[1,3,5] x", "t = Conv(x, w, b) y = Sub(t, c)", {"w": (4, 3, 3), "b": (4,), "c": 2.0}),
        Example("float[1,3,5] x", "t = ConvTranspose(x, w) y = Sub(t, c)", {"w": (3, 4, 2), "c": 2.0}),
        Example("float[2,3] x", "t = Gemm<beta=0.5>(x, w, b) y = Add(t, c)", {"w": (3, 4), "b": (2, 4), "c": (4,)}),
    )
    counterexamples = (
        Example("float[1,3,5] x", "t = Conv(x, w) y = Add(t, c)", {"w": (4, 3, 3), "c": (3,)}, why="output channel"),
        Example("float[1,3,5] x", "t = Conv(x, w) y = Sub(c, t)", {"w": (4, 3, 3), "c": 2.0}, why="not computed by"),
        Example("float[1,3,5] x, float c", "t = Conv(x, w) y = Add(t, c)", {"w": (4, 3, 3)}, why="not a constant"),
        Example(
            "float[1,3,5] x", "t = Conv(x, w) y = Add(t, c)", {"w": (4, 3, 3), "c": (2, 4, 1)}, why="output channel"
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Add", "Sub")(linear(*CONVOLUTIONS, "Gemm"), Weight("c"), name="sum")]

    def check(self, match: Match) -> None:
        require_per_channel(match["c"], *output_channels(match))

    def rewrite(self, op: Operators, match: Match) -> Result:
        term = flat(op, match["c"])
        if match.node("sum").op_type == "Sub":
            term = op.Neg(term)
        return shifted_channels(op, match.node("linear"), term)


_JOINED = {"v": (2, 3, 1, 1), "w": (3, 3, 1, 1)}
_JOIN = "p = Conv(x, v) q = Conv(x, w) t = Concat<axis=1>(p, q)"
_NORM_5 = {"s": (5,), "h": (5,), "m": (5,), "u": (5,)}


class BatchNormalizationIntoJoined(Rule):
    """BatchNormalization(Concat(L₁(x₁), …, Lₙ(xₙ))) = Concat(BatchNormalization(L₁(x₁)), …), folded into each L

    for parts that are a Conv, ConvTranspose or Gemm each, with constant weight and bias (or none), joined along their channels;
    in inference, with constant parameters.
    """

    family = "folding"
    examples = (
        Example(
            "float[1,3,4,4] x", f"{_JOIN} y = BatchNormalization<epsilon=0.1>(t, s, h, m, u)", {**_JOINED, **_NORM_5}
        ),
        Example(
            "float[N,3,6] x, float[N,2,3] z",
            "p = Conv<strides=[2]>(x, v, b) q = ConvTranspose(z, w) t = Concat<axis=-2>(p, q)"
            " y = BatchNormalization(t, s, h, m, u)",
            {"v": (2, 3, 1), "b": (2,), "w": (2, 3, 1), **_NORM_5},
        ),
        Example(
            "float[2,3] x",
            "p = Gemm<transB=1, beta=0.5>(x, v, b) q = Gemm(x, w) t = Concat<axis=1>(p, q)"
            " y = BatchNormalization(t, s, h, m, u)",
            {"v": (2, 3), "b": (2,), "w": (3, 3), **_NORM_5},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,4,4] x, float[1,2,4,4] p",
            "q = Conv(x, w) t = Concat<axis=1>(p, q) y = BatchNormalization(t, s, h, m, u)",
            {**_JOINED, **_NORM_5},
            why="a part",
        ),
        Example(
            "float[1,3,4,4] x",
            "p = Conv(x, v) t = Concat<axis=0>(p, p) y = BatchNormalization(t, s, h, m, u)",
            {"v": (5, 3, 1, 1), **_NORM_5},
            why="along the channels",
        ),
        Example(
            "float[1,3,4,4] x, float[2,3,1,1] v",
            f"{_JOIN} y = BatchNormalization(t, s, h, m, u)",
            {"w": (3, 3, 1, 1), **_NORM_5},
            why="not a constant",
        ),
        Example(
            "float[1,3,4,4] x, float[2] b",
            "p = Conv(x, v, b) q = Conv(x, w) t = Concat<axis=1>(p, q) y = BatchNormalization(t, s, h, m, u)",
            {**_JOINED, **_NORM_5},
            why="not a constant",
        ),
        Example(
            "float[1,3,4,4] x, float[5] s",
            f"{_JOIN} y = BatchNormalization(t, s, h, m, u)",
            {**_JOINED, **{k: v for k, v in _NORM_5.items() if k != "s"}},
            why="not a constant",
        ),
        examples[0].but("training", f"{_JOIN} y, n, o = BatchNormalization<training_mode=1>(t, s, h, m, u)"),
        examples[0].but("not profitable", f"{_JOIN} y = BatchNormalization(t, s, h, m, u)", outputs="y, p"),
    )

    def patterns(self) -> list[Op]:
        return [op.BatchNormalization(op.variadic("Concat", name="concat"), *map(Weight, _PARAMETERS), name="norm")]

    def check(self, match: Match) -> None:
        require(not integer(match.node("norm"), "training_mode", 0), "it is in training mode")

    def rewrite(self, op: Operators, match: Match) -> Result:
        parts = [
            normalised_channels(
                op, node, match.node("norm"), *(keep(op, match[name], {0: positions}) for name in _PARAMETERS)
            )
            for node, positions in read_joined_parts(match)
        ]
        return op.copy(match.node("concat"), *parts)


class AffineIntoJoined(Rule):
    """Concat(L₁(x₁), …, Lₙ(xₙ)) · c = Concat(L₁(x₁) · c₁, …), folded into each L, and with /, + or - for ·

    for parts that are a Conv, ConvTranspose or Gemm each, with constant weight and bias (or none), joined along their channels,
    and c a constant with one number for each channel, or one for all.
    """

    family = "folding"
    examples = (
        Example("float[1,3,4,4] x", f"{_JOIN} y = Mul(c, t)", {**_JOINED, "c": (5, 1, 1)}),
        Example("float[N,3,4,4] x", f"{_JOIN} y = Add(t, c)", {**_JOINED, "c": (1, 5, 1, 1)}),
        Example("float[1,3,4,4] x", f"{_JOIN} y = Sub(t, c)", {**_JOINED, "c": 2.0}),
        Example(
            "float[2,3] x",
            "p = Gemm<beta=0.5>(x, v, b) q = Gemm(x, w) t = Concat<axis=-1>(p, q) y = Div(t, c)",
            {"v": (3, 2), "b": (2, 1), "w": (3, 3), "c": (5,)},
        ),
    )
    counterexamples = (
        Example("float[1,3,4,4] x", f"{_JOIN} y = Sub(c, t)", {**_JOINED, "c": 2.0}, why="not computed by"),
        Example("float[1,3,4,4] x, float c", f"{_JOIN} y = Mul(t, c)", _JOINED, why="not a constant"),
        Example("float[1,3,4,4] x", f"{_JOIN} y = Mul(t, c)", {**_JOINED, "c": (4,)}, why="output channel"),
        Example("float[1,3,4,4] x", f"{_JOIN} y = Mul(t, c)", {**_JOINED, "c": (2, 5, 1, 1)}, why="output channel"),
        Example(
            "float[1,3,4,4] x, float[1,2,4,4] p",
            "q = Conv(x, w) t = Concat<axis=1>(p, q) y = Add(t, c)",
            {**_JOINED, "c": 2.0},
            why="a part",
        ),
        Example(
            "float[1,3,4,4] x",
            "p = Conv(x, v) q = Conv(x, v) t = Concat<axis=-1>(p, q) y = Add(t, c)",
            {**_JOINED, "c": 2.0},
            why="along the channels",
        ),
        examples[0].but("not profitable", f"{_JOIN} y = Mul(t, c)", outputs="y, q", c=2.0),
    )

    def patterns(self) -> list[Op]:
        concat = op.variadic("Concat", name="concat")
        return [op.one_of("Mul", "Div", "Add", "Sub")(concat, Weight("c"), name="affine")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        nodes, kind, whole = read_joined_parts(match), match.node("affine").op_type, match.node("concat").outputs[0]
        require_per_channel(match["c"], rank(whole), 1, nodes[-1][1].stop)
        constant = flat(op, match["c"])
        if kind in ("Div", "Sub"):
            constant = op.Reciprocal(constant) if kind == "Div" else op.Neg(constant)
        fold = scaled_channels if kind in ("Mul", "Div") else shifted_channels
        single = shape(constant) == (1,)
        parts = [
            fold(op, node, constant if single else keep(op, constant, {0: positions})) for node, positions in nodes
        ]
        return op.copy(match.node("concat"), *parts)
