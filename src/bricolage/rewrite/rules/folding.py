"""Normalisation, scales and biases folded into convolutions and matrix products."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.linear import (
    CONVOLUTIONS,
    channels,
    flat,
    joined,
    linear,
    normalised_channels,
    output_channels,
    require_per_channel,
    scaled_channels,
    shifted_channels,
)
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import (
    integer,
    normalised,
    rank,
    require,
    shape,
    sizes,
)
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.slices import keep

x, c = AnyValue("x"), AnyValue("c")
_PARAMETERS = ("scale", "shift", "mean", "variance")
_NORM = {"s": (4,), "h": (4,), "m": (4,), "v": (4,)}


class BatchNormalizationIntoLinear(Rule):
    """BatchNormalization(L(x, w, b), s, h, μ, v, ε) = L(x, w·f, (b - μ)·f + h) with f = s / √(v + ε)

    for L a Conv, ConvTranspose or Gemm with constant weight and bias (or none); in inference, with constant parameters.
    """

    family = "folding"
    examples = (
        Example(
            "float[1,3,5,5] x", "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)", {"w": (4, 3, 3, 3), **_NORM}
        ),
        Example(
            "float[1,2,5] x",
            "t = Conv<group=2>(x, w, b) y = BatchNormalization<epsilon=0.1>(t, s, h, m, v)",
            {"w": (4, 1, 3), "b": (4,), **_NORM},
        ),
        Example(
            "float[1,4,3,3] x",
            "t = ConvTranspose<group=2, strides=[2,2]>(x, w) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 2, 2, 2), **_NORM},
        ),
        Example(
            "float[N,3] x",
            "t = Gemm<transB=1, beta=0.5>(x, w, b) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 3), "b": (4,), **_NORM},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,5] x, float[4,3,3] w",
            "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)",
            _NORM,
            why="constant",
        ),
        Example(
            "float[1,3,5] x, float[4] s",
            "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 3, 3), **{k: v for k, v in _NORM.items() if k != "s"}},
            why="not a constant",
        ),
        Example(
            "float[1,3,5] x",
            "t = Conv(x, w) y, n, o = BatchNormalization<training_mode=1>(t, s, h, m, v)",
            {"w": (4, 3, 3), **_NORM},
            why="training",
        ),
        Example(
            "float[1,3,5] x",
            "t = Conv(x, w) y = BatchNormalization(t, s, h, m, v)",
            {"w": (4, 3, 3), **_NORM},
            outputs="y, t",
            why="not profitable",
        ),
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
        Example(
            "float[1,3,4,4] x",
            f"{_JOIN} y, n, o = BatchNormalization<training_mode=1>(t, s, h, m, u)",
            {**_JOINED, **_NORM_5},
            why="training",
        ),
        Example(
            "float[1,3,4,4] x",
            f"{_JOIN} y = BatchNormalization(t, s, h, m, u)",
            {**_JOINED, **_NORM_5},
            outputs="y, p",
            why="not profitable",
        ),
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
            for node, positions in joined(match)
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
        Example(
            "float[1,3,4,4] x", f"{_JOIN} y = Mul(t, c)", {**_JOINED, "c": 2.0}, outputs="y, q", why="not profitable"
        ),
    )

    def patterns(self) -> list[Op]:
        concat = op.variadic("Concat", name="concat")
        return [op.one_of("Mul", "Div", "Add", "Sub")(concat, Weight("c"), name="affine")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        nodes, kind, whole = joined(match), match.node("affine").op_type, match.node("concat").outputs[0]
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


class AffineIntoNormalization(Rule):
    """Norm(x, s, b) · c = Norm(x, s·c, b·c), Norm(x, s, b) + c = Norm(x, s, b + c)

    for a LayerNormalization with constant parameters (no + for an RMSNormalization, which has no b), and c a constant that
    broadcasts to the normalised axes alone.
    """

    family = "folding"
    since = 17
    examples = (
        Example("float[2,3,4] x", "t = LayerNormalization(x, s) y = Mul(t, c)", {"s": (4,), "c": (4,)}),
        Example("float[2,3,4] x", "t = LayerNormalization(x, s, b) y = Mul(c, t)", {"s": (4,), "b": (4,), "c": (1, 4)}),
        Example("float[2,3,4] x", "t = LayerNormalization<axis=1>(x, s) y = Add(t, c)", {"s": (3, 4), "c": (3, 1)}),
        Example("float[2,3,4] x", "t = LayerNormalization(x, s, b) y = Add(t, c)", {"s": (4,), "b": (4,), "c": 1.0}),
        Example("float[2,3,4] x", "t = RMSNormalization(x, s) y = Mul(t, c)", {"s": (4,), "c": (4,)}, opset=23),
    )
    counterexamples = (
        Example("float[2,3,4] x", "t = LayerNormalization(x, s) y = Mul(t, c)", {"s": (4,), "c": (3, 1)}, why="alone"),
        Example(
            "float[2,3,4] x", "t = LayerNormalization(x, s) y = Add(t, c)", {"s": (4,), "c": (5, 1, 1, 4)}, why="alone"
        ),
        Example("float[2,4] x, float[4] s", "t = LayerNormalization(x, s) y = Mul(t, c)", {"c": (4,)}, why="constant"),
        Example(
            "float[2,4] x", "t = RMSNormalization(x, s) y = Add(t, c)", {"s": (4,), "c": (4,)}, opset=23, why="bias"
        ),
    )

    def patterns(self) -> list[Op]:
        norm = op.one_of("LayerNormalization", "RMSNormalization")(
            x, Weight("s"), Weight("b", optional=True), name="norm"
        )
        return [op.Mul(norm, Weight("c")), op.Add(norm, Weight("c"), name="sum")]

    def check(self, match: Match) -> None:
        node, own = match.node("norm"), shape(match["x"])
        (axis,) = normalised([integer(node, "axis", -1)], len(own))
        over, term = own[axis:], sizes(match["c"])
        while term and term[0] == 1 and len(term) > len(over):
            term = term[1:]
        aligned = (1,) * (len(over) - len(term)) + term
        fits = len(term) <= len(over) and all(size in (1, wide) for size, wide in zip(aligned, over, strict=True))
        require(fits and len(sizes(match["c"])) <= len(own), "c does not broadcast to the normalised axes alone")
        require("sum" not in match.nodes or node.op_type == "LayerNormalization", "RMSNormalization has no bias")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, bias = match.node("norm"), match.get("b")
        (axis,) = normalised([integer(node, "axis", -1)], rank(match["x"]))
        over = list(shape(match["x"])[axis:])
        term = op.Reshape(match["c"], op.integers([1, *sizes(match["c"])])) if rank(match["c"]) == 0 else match["c"]
        own = sizes(term)
        short = [*([1] * (len(over) - len(own))), *own][-len(over) :]
        term = op.Reshape(term, op.integers(short))
        if "sum" in match.nodes:
            shift = op.Expand(term, op.integers(sizes(match["s"]))) if bias is None else op.Add(bias, term)
            return op.copy(node, match["x"], match["s"], shift)
        return op.copy(node, match["x"], op.Mul(match["s"], term), None if bias is None else op.Mul(bias, term))


class AffineIntoBatchNormalization(Rule):
    """BatchNormalization(x, s, h, μ, v) · c = BatchNormalization(x, s·c, h·c, μ, v), and + c for h + c

    for constant parameters, and c a constant with one number for each channel, or one for all; in inference.
    """

    family = "folding"
    examples = (
        Example("float[1,4,5] x", "t = BatchNormalization(x, s, h, m, v) y = Mul(t, c)", {**_NORM, "c": (4, 1)}),
        Example("float[1,4,5] x", "t = BatchNormalization(x, s, h, m, v) y = Add(c, t)", {**_NORM, "c": (1, 4, 1)}),
        Example("float[N,4] x", "t = BatchNormalization(x, s, h, m, v) y = Add(c, t)", {**_NORM, "c": 2.0}),
    )
    counterexamples = (
        Example(
            "float[1,4,5] x", "t = BatchNormalization(x, s, h, m, v) y = Mul(t, c)", {**_NORM, "c": (5,)}, why="channel"
        ),
        Example(
            "float[1,4,5] x, float c", "t = BatchNormalization(x, s, h, m, v) y = Mul(t, c)", _NORM, why="constant"
        ),
        Example(
            "float[1,4,5] x",
            "t, n, o = BatchNormalization<training_mode=1>(x, s, h, m, v) y = Mul(t, c)",
            {**_NORM, "c": 2.0},
            why="training",
        ),
    )

    def patterns(self) -> list[Op]:
        norm = op.BatchNormalization(x, Weight("s"), Weight("h"), Weight("m"), Weight("v"), name="linear")
        return [op.Mul(norm, Weight("c")), op.Add(norm, Weight("c"), name="sum")]

    def check(self, match: Match) -> None:
        require(not integer(match.node("linear"), "training_mode", 0), "it is in training mode")
        require_per_channel(match["c"], rank(match["x"]), 1, sizes(match["s"])[0])

    def rewrite(self, op: Operators, match: Match) -> Result:
        scale, shift = _with_affine(op, match)
        return op.copy(match.node("linear"), match["x"], scale, shift, match["m"], match["v"])


class AffineIntoInstanceNormalization(Rule):
    """InstanceNormalization(x, s, h) · c = InstanceNormalization(x, s·c, h·c), and + c for h + c

    for constant s and h, and c a constant with one number for each channel, or one for all.
    """

    family = "folding"
    examples = (
        Example(
            "float[1,4,5] x", "t = InstanceNormalization(x, s, h) y = Mul(t, c)", {"s": (4,), "h": (4,), "c": (4, 1)}
        ),
        Example("float[N,4,5] x", "t = InstanceNormalization(x, s, h) y = Add(c, t)", {"s": (4,), "h": (4,), "c": 2.0}),
    )
    counterexamples = (
        Example(
            "float[1,4,5] x",
            "t = InstanceNormalization(x, s, h) y = Mul(t, c)",
            {"s": (4,), "h": (4,), "c": (5,)},
            why="channel",
        ),
        Example(
            "float[1,4,5] x, float[4] s",
            "t = InstanceNormalization(x, s, h) y = Mul(t, c)",
            {"h": (4,), "c": (4, 1)},
            why="constant",
        ),
    )

    def patterns(self) -> list[Op]:
        norm = op.InstanceNormalization(x, Weight("s"), Weight("h"), name="norm")
        return [op.Mul(norm, Weight("c")), op.Add(norm, Weight("c"), name="sum")]

    def check(self, match: Match) -> None:
        require_per_channel(match["c"], rank(match["x"]), 1, sizes(match["s"])[0])

    def rewrite(self, op: Operators, match: Match) -> Result:
        scale, shift = _with_affine(op, match)
        return op.copy(match.node("norm"), match["x"], scale, shift)


def _with_affine(op: Operators, match: Match) -> tuple[ir.Value, ir.Value]:
    """Scale and shift of a normalisation with the constant added, or multiplied by it."""
    constant, scale, shift = flat(op, match["c"]), match["s"], match["h"]
    if "sum" in match.nodes:
        return scale, op.Add(shift, constant)
    return op.Mul(scale, constant), op.Mul(shift, constant)
