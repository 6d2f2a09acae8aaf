"""Scale and shift behind a normalisation, folded into its parameters."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.analyses.linear import flat, require_per_channel
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Op, Weight, op
from bricolage.rewrite.predicates import (
    integer,
    normalised,
    rank,
    require,
    shape,
    sizes,
)
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.rules.folding import NORM, x


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
        examples[0].but("alone", "t = LayerNormalization(x, s) y = Add(t, c)", c=(5, 1, 1, 4)),
        Example("float[2,4] x, float[4] s", "t = LayerNormalization(x, s) y = Mul(t, c)", {"c": (4,)}, why="constant"),
        examples[0].but("bias", "t = RMSNormalization(x, s) y = Add(t, c)", inputs="float[2,4] x", opset=23),
    )

    def patterns(self) -> list[Op]:
        norm = op.one_of("LayerNormalization", "RMSNormalization")(
            x, Weight("s"), Weight("b", optional=True), name="norm"
        )
        return [op.Mul(norm, Weight("c")), op.Add(norm, Weight("c"), name="sum")]

    def check(self, match: Match) -> None:
        node, data_shape = match.node("norm"), shape(match["x"])
        (axis,) = normalised([integer(node, "axis", -1)], len(data_shape))
        over, term = data_shape[axis:], sizes(match["c"])
        while term and term[0] == 1 and len(term) > len(over):
            term = term[1:]
        aligned = (1,) * (len(over) - len(term)) + term
        fits = len(term) <= len(over) and all(size in (1, wide) for size, wide in zip(aligned, over, strict=True))
        require(fits and len(sizes(match["c"])) <= len(data_shape), "c does not broadcast to the normalised axes alone")
        require("sum" not in match.nodes or node.op_type == "LayerNormalization", "RMSNormalization has no bias")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, bias = match.node("norm"), match.get("b")
        (axis,) = normalised([integer(node, "axis", -1)], rank(match["x"]))
        over = list(shape(match["x"])[axis:])
        term = op.Reshape(match["c"], op.integers([1, *sizes(match["c"])])) if rank(match["c"]) == 0 else match["c"]
        term_sizes = sizes(term)
        short = [*([1] * (len(over) - len(term_sizes))), *term_sizes][-len(over) :]
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
        Example("float[1,4,5] x", "t = BatchNormalization(x, s, h, m, v) y = Mul(t, c)", {**NORM, "c": (4, 1)}),
        Example("float[1,4,5] x", "t = BatchNormalization(x, s, h, m, v) y = Add(c, t)", {**NORM, "c": (1, 4, 1)}),
        Example("float[N,4] x", "t = BatchNormalization(x, s, h, m, v) y = Add(c, t)", {**NORM, "c": 2.0}),
    )
    counterexamples = (
        examples[0].but("channel", c=(5,)),
        Example("float[1,4,5] x, float c", "t = BatchNormalization(x, s, h, m, v) y = Mul(t, c)", NORM, why="constant"),
        Example(
            "float[1,4,5] x",
            "t, n, o = BatchNormalization<training_mode=1>(x, s, h, m, v) y = Mul(t, c)",
            {**NORM, "c": 2.0},
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
        examples[0].but("channel", c=(5,)),
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
