"""Scales, constant factors before and behind convolutions and matrix products, folded into their weights, and before attention."""

from __future__ import annotations

import math

from bricolage.graph.constant_folding import constant_elements
from bricolage.rewrite.analyses.elementwise import doubled_gelu
from bricolage.rewrite.analyses.linear import (
    CONVOLUTIONS,
    flat,
    linear,
    output_channels,
    require_per_channel,
    scaled_channels,
)
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, Weight, op
from bricolage.rewrite.predicates import integer, rank, require, scalar, shape, sizes
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")


class ScaleIntoLinear(Rule):
    """L(x, w, b) · c = L(x, w·c, b·c), and with / for ·

    for L a Conv, ConvTranspose, MatMul or Gemm with constant weight and bias (or none), and c a constant with one number
    for each output channel, or one for all.
    """

    family = "scaling"
    examples = (
        Example("float[1,3,5,5] x", "t = Conv(x, w, b) y = Mul(t, c)", {"w": (4, 3, 3, 3), "b": (4,), "c": (4, 1, 1)}),
        Example("float[1,3,5] x", "t = Conv(x, w) y = Div(t, c)", {"w": (4, 3, 3), "c": 2.0}),
        Example("float[1,4,5] x", "t = ConvTranspose<group=2>(x, w) y = Mul(c, t)", {"w": (4, 3, 2), "c": (1, 6, 1)}),
        Example("float[2,N,3] x", "t = MatMul(x, w) y = Mul(t, c)", {"w": (3, 4), "c": (4,)}),
        Example(
            "float[2,3] x", "t = Gemm<transB=1,alpha=0.5>(x, w, b) y = Div(t, c)", {"w": (4, 3), "b": (2, 1), "c": (4,)}
        ),
    )
    counterexamples = (
        Example("float[1,3,5] x", "t = Conv(x, w) y = Mul(t, c)", {"w": (4, 3, 3), "c": (3,)}, why="output channel"),
        examples[1].but("output channel", "t = Conv(x, w) y = Mul(t, c)", c=(2, 4, 1)),
        Example("float[1,3,5] x", "t = Conv(x, w) y = Div(c, t)", {"w": (4, 3, 3), "c": 2.0}, why="not computed by"),
        Example("float[1,3,5] x, float c", "t = Conv(x, w) y = Mul(t, c)", {"w": (4, 3, 3)}, why="not a constant"),
        Example("float[2,3] x", "t = MatMul(x, w) y = Mul(t, c)", {"w": (3,), "c": 2.0}, why="vector"),
        Example(
            "float[2,3] x",
            "t = MatMul(x, w) y = Mul(t, c)",
            {"w": (3, 4), "c": 2.0},
            outputs="y, t",
            why="not profitable",
        ),
    )

    def patterns(self) -> list[Op]:
        anything = linear(*CONVOLUTIONS, "MatMul", "Gemm")
        return [op.one_of("Mul", "Div")(anything, Weight("c"), name="scale")]

    def check(self, match: Match) -> None:
        require_per_channel(match["c"], *output_channels(match))

    def rewrite(self, op: Operators, match: Match) -> Result:
        factor = flat(op, match["c"])
        if match.node("scale").op_type == "Div":
            factor = op.Reciprocal(factor)
        return scaled_channels(op, match.node("linear"), factor)


class ScaleBeforeLinear(Rule):
    """L(x · c, w, b) = L(x, w · c, b), and with / for ·

    for L a Conv, MatMul or Gemm with constant weight, and c a constant of one element; not the ½ of a GELU that is written out,
    which runtimes compute as one operator.
    """

    family = "scaling"
    examples = (
        Example("float[1,3,5] x", "t = Mul(x, c) y = Conv<pads=[1,1]>(t, w)", {"w": (4, 3, 3), "c": 2.0}),
        Example("float[2,5,3] x", "t = Div(x, c) y = MatMul(t, w)", {"w": (3, 4), "c": [2.0]}),
        Example("float[2,3] x, float[4] b", "t = Mul(c, x) y = Gemm(t, w, b)", {"w": (3, 4), "c": 2.0}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Mul(x, c) y = MatMul(t, w)", {"w": (3, 4), "c": (3,)}, why="one element"),
        Example("float[2,3] x, float[3,4] w", "t = Mul(x, c) y = MatMul(t, w)", {"c": 2.0}, why="not a constant"),
        Example("float[2,3] x", "t = Div(c, x) y = MatMul(t, w)", {"w": (3, 4), "c": 2.0}, why="not a constant"),
        Example("float[3] x", "t = Mul(x, c) y = MatMul(t, w)", {"w": (3, 4), "c": [[2.0]]}, why="one element"),
        Example(
            "float[2,3] x",
            "e = Erf(x) a = Add(e, one) p = Mul(x, a) t = Mul(p, c) y = MatMul(t, w)",
            {"w": (3, 4), "c": 0.5, "one": 1.0},
            why="GELU",
        ),
    )

    def patterns(self) -> list[Op]:
        source = op.one_of("Mul", "Div")(x, Weight("c"), name="scale")
        return [
            op.MatMul(source, Weight("w"), name="linear"),
            op.one_of("Conv", "Gemm")(source, Weight("w"), AnyValue("b", optional=True), name="linear"),
        ]

    def check(self, match: Match) -> None:
        require(sizes(match["c"]) in ((), (1,)), "the constant has not just one element")
        require(rank(match["x"]) > 0, "x has no axes")
        require(not doubled_gelu(match["x"]), "the factor belongs to a GELU")

    def rewrite(self, op: Operators, match: Match) -> Result:
        function = op.Div if match.node("scale").op_type == "Div" else op.Mul
        return op.copy(match.node("linear"), match["x"], function(match["w"], match["c"]), match.get("b"))


class ScoresScaleIntoProjection(Rule):
    """MatMul(Transpose(Reshape(MatMul(x, w) + b)), k) · c = MatMul(Transpose(Reshape(MatMul(x, w·c) + b·c)), k), and with /

    for a constant matrix w, a constant vector b (or none), and c a constant of one element: attention's scale, moved
    into the projection of the queries.
    """

    family = "scaling"
    examples = (
        Example(
            "float[2,5,6] x, float[2,3,4,7] k",
            "p = MatMul(x, w) q = Add(p, b) r = Reshape(q, s) t = Transpose<perm=[0,2,1,3]>(r) m = MatMul(t, k) y = Div(m, c)",
            {"w": (6, 12), "b": (12,), "s": [2, 5, 3, 4], "c": 2.0},
        ),
        Example(
            "float[2,5,6] x, float[2,3,4,7] k",
            "p = MatMul(x, w) r = Reshape(p, s) t = Transpose<perm=[0,2,1,3]>(r) m = MatMul(t, k) y = Mul(c, m)",
            {"w": (6, 12), "s": [0, 0, 3, 4], "c": [0.5]},
        ),
    )
    counterexamples = (
        examples[1].but("one element", c=(7,)),
        Example(
            "float[2,5,6] x, float[2,3,4,7] k, float[6,12] w",
            "p = MatMul(x, w) r = Reshape(p, s) t = Transpose<perm=[0,2,1,3]>(r) m = MatMul(t, k) y = Mul(c, m)",
            {"s": [0, 0, 3, 4], "c": 0.5},
            why="not a constant",
        ),
        examples[1].but("not profitable", outputs="y, t", c=0.5),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(x, Weight("w"))
        projection = Either(op.Add(product, Weight("b"), name="biased"), product)
        heads = op.Transpose(op.Reshape(projection, AnyValue("shape"), name="reshape"), name="transpose")
        scores = op.MatMul(heads, AnyValue("k"))
        return [op.one_of("Mul", "Div")(scores, Weight("c"), name="scale")]

    def check(self, match: Match) -> None:
        require(scalar(match["c"]), "the constant has not just one element")
        require(rank(match["w"]) == 2, "w is no matrix")
        require("biased" not in match.nodes or rank(match["b"]) == 1, "b is no vector")

    def rewrite(self, op: Operators, match: Match) -> Result:
        function = op.Div if match.node("scale").op_type == "Div" else op.Mul
        projection = op.MatMul(match["x"], function(match["w"], match["c"]))
        if "biased" in match.nodes:
            projection = op.Add(projection, function(match["b"], match["c"]))
        heads = op.copy(match.node("transpose"), op.copy(match.node("reshape"), projection, match["shape"]))
        return op.MatMul(heads, match["k"])


_QUERY = "float[2,3,5,4] q, float[2,3,6,4] k, float[2,3,6,7] v"


class ScaleIntoAttention(Rule):
    """Attention(q · a, k, v, scale=c) = Attention(q, k, v, scale=c · a), so for k, and with / for ·

    for a positive constant of one element; k without a past.
    """

    family = "scaling"
    since = 23
    examples = (
        Example(f"{_QUERY}, float[5,6] m", "t = Mul(q, a) y = Attention<scale=0.5>(t, k, v, m)", {"a": 0.5}, opset=23),
        Example(_QUERY, "t = Div(k, a) y = Attention(q, t, v)", {"a": [2.0]}, opset=23),
        Example(
            "float[2,5,12] q, float[2,6,12] k, float[2,6,12] v",
            "t = Mul(q, a) y = Attention<q_num_heads=3, kv_num_heads=3>(t, k, v)",
            {"a": 0.5},
            opset=23,
        ),
    )
    counterexamples = (
        Example(_QUERY, "t = Mul(q, a) y = Attention(t, k, v)", {"a": (4,)}, opset=23, why="one element"),
        Example(_QUERY, "t = Mul(q, a) y = Attention(t, k, v)", {"a": -1.0}, opset=23, why="positive"),
        Example(f"{_QUERY}, float a", "t = Mul(q, a) y = Attention(t, k, v)", opset=23, why="not a constant"),
        Example(
            f"{_QUERY}, float[2,3,2,4] p, float[2,3,2,7] o",
            "t = Mul(k, a) y, r, s = Attention(q, t, v, , p, o)",
            {"a": 2.0},
            opset=23,
            why="past",
        ),
        Example(
            "float[2,3,5,N] q, float[2,3,6,N] k, float[2,3,6,7] v",
            "t = Mul(q, a) y = Attention(t, k, v)",
            {"a": 0.5},
            opset=23,
            why="fixed size",
        ),
    )

    def patterns(self) -> list[Op]:
        rest = (
            AnyValue("mask", optional=True),
            AnyValue("past key", optional=True),
            AnyValue("past value", optional=True),
        )
        query, key = (op.one_of("Mul", "Div")(AnyValue(name), Weight("a"), name="scaling") for name in ("q", "k"))
        return [
            op.Attention(query, AnyValue("k"), AnyValue("v"), *rest, name="attention"),
            op.Attention(AnyValue("q"), key, AnyValue("v"), *rest, name="attention"),
        ]

    def check(self, match: Match) -> None:
        scaled_key = match.node("scaling").outputs[0] is match.node("attention").inputs[1]
        require(match.get("past key") is None or not scaled_key, "k has a past, which is not scaled")
        self._scale(match)

    @staticmethod
    def _scale(match: Match) -> float:
        """The new scale of the Attention."""
        node, query, array = match.node("attention"), match["q"], constant_elements(match["a"])
        require(scalar(match["a"]), "the constant has not one element")
        factor = 0.0 if array is None else float(array.reshape(()).astype(float))
        require(math.isfinite(factor) and factor > 0, "the factor is not positive")
        if match.node("scaling").op_type == "Div":
            factor = 1 / factor
        old_scale = node.attributes.get_float("scale", None)
        if old_scale is None:
            size = shape(query)[-1]
            if not isinstance(size, int):
                raise MatchFailure("the heads have no fixed size")
            old_scale = 1 / math.sqrt(size // (1 if rank(query) == 4 else integer(node, "q_num_heads", 1)))
        return float(old_scale) * factor

    def rewrite(self, op: Operators, match: Match) -> Result:
        rest = (match["v"], match.get("mask"), match.get("past key"), match.get("past value"))
        return op.copy(match.node("attention"), match["q"], match["k"], *rest, scale=self._scale(match))
