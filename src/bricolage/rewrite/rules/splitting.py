"""Linear operators cut along their output channels or groups: what a slice leaves unused is never computed, a merged operator
comes apart again, groups are regrouped (TASO: Jia et al., SOSP 2019)."""

from __future__ import annotations

from itertools import pairwise

import onnx_ir as ir

from bricolage.rewrite.analyses.linear import CONVOLUTIONS, is_one_row, linear, output_channels
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import integer, integers, normalised, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")


def _part(op: Operators, match: Match, start: int, end: int) -> ir.Value:
    """The operator with just the output channels from `start` to `end`."""
    node, weight, bias = match.node("linear"), match["w"], match.get("b")
    over = 0 if node.op_type == "Conv" or integer(node, "transB", 0) else rank(weight) - 1
    first, last = op.integers([start]), op.integers([end])
    if bias is not None and shape(bias) and shape(bias)[-1] != 1:
        bias = op.Slice(bias, first, last, op.integers([rank(bias) - 1]))
    part = op.Slice(weight, first, last, op.integers([over]))
    if node.op_type == "MatMul" and bias is not None:
        return op.Add(op.copy(node, match["x"], part), bias)
    return op.copy(node, match["x"], part, bias)


def _require_whole(match: Match, axis: int) -> None:
    """The cut is along the output channels, and every channel needs all of the input."""
    node = match.node("linear")
    whole, channel, _ = output_channels(match)
    require(normalised([axis], whole) == (channel,), "the cut is not along the output channels")
    require(node.op_type not in CONVOLUTIONS or integer(node, "group", 1) == 1, "there is more than one group")
    if node.op_type == "MatMul" and (bias := match.get("b")) is not None:
        require(is_one_row(bias) and rank(bias) <= whole, "what is added is not one row")


def _cuttable() -> list[Op]:
    """A linear operator that can be cut, or a product and its bias."""
    return [linear("Conv", "MatMul", "Gemm"), op.Add(op.MatMul(AnyValue("x"), Weight("w"), name="linear"), Weight("b"))]


_PRODUCT = {"w": (3, 6), "b": (6,)}
_CUT = "t = MatMul(x, w) y = Slice(t, s, e, a)"
_CUT_SUM = "t = MatMul(x, w) u = Add(t, b) y = Slice(u, s, e, a)"
_APART = "t = MatMul(x, w) p, q = Split<axis=1, num_outputs=2>(t) y = Mul(p, q)"
_HALVES = {**_PRODUCT, "s": [3, 3]}
_ALIKE = {"w": (3, 6), "b": 2.0, "s": [3, 3]}
_ROWS = {"w": (3, 6), "b": (2, 6), "s": [3, 3]}


class SliceOfLinear(Rule):
    """Slice(L(x, w, b)) = L(x, Slice(w), Slice(b))

    along the output channels alone with step 1, for L a Conv of one group, MatMul or Gemm with constant weight and bias, or a
    MatMul and the sum with its bias, a constant row.
    """

    family = "splitting"
    examples = (
        Example("float[2,3] x", _CUT, {**_PRODUCT, "s": [1], "e": [4], "a": [-1]}),
        Example(
            "float[2,3] x",
            "t = Gemm<transB=1>(x, w, b) y = Slice(t, s, e, a)",
            {"w": (6, 3), "b": (6,), "s": [-2], "e": [2**31 - 1], "a": [1]},
        ),
        Example(
            "float[1,3,5] x",
            "t = Conv<pads=[1,1]>(x, w, b) y = Slice(t, s, e, a)",
            {"w": (6, 3, 3), "b": (6,), "s": [0], "e": [2], "a": [1]},
        ),
        Example("float[N,3] x", _CUT_SUM, {"w": (3, 6), "b": (1, 6), "s": [1], "e": [4], "a": [-1]}),
    )
    counterexamples = (
        Example("float[2,3] x", _CUT, {**_PRODUCT, "s": [3], "e": [3], "a": [1]}, why="nothing is kept"),
        examples[0].but("output channels", s=[0], e=[1], a=[0]),
        examples[0].but("step", _CUT.replace("a)", "a, d)"), s=[0], a=[1], d=[2]),
        examples[0].but("other axes", s=[0, 0], e=[1, 2], a=[0, 1]),
        Example(
            "float[1,4,5] x",
            _CUT.replace("MatMul", "Conv<group=2>"),
            {"w": (6, 2, 3), "s": [0], "e": [2], "a": [1]},
            why="group",
        ),
        examples[0].but("not profitable", outputs="y, t", s=[0], e=[1], a=[1]),
        Example("float[2,3] x", _CUT_SUM, {"w": (3, 6), "b": (2, 6), "s": [0], "e": [1], "a": [1]}, why="one row"),
    )

    def patterns(self) -> list[Op]:
        operands = [
            AnyValue("starts"),
            AnyValue("ends"),
            AnyValue("axes", optional=True),
            AnyValue("steps", optional=True),
        ]
        return [op.Slice(whole, *operands, name="slice") for whole in _cuttable()]

    def check(self, match: Match) -> None:
        axes = match.get("axes")
        over = integers(axes, "the axes") if axes is not None else (0,) * len(integers(match["starts"], "the start"))
        require(len(over) == 1, "other axes are cut too")
        _require_whole(match, over[0])
        steps = match.get("steps")
        require(steps is None or integers(steps, "the steps") == (1,), "the step is not 1")

    def rewrite(self, op: Operators, match: Match) -> Result:
        count = output_channels(match)[2]
        (start,), (end,) = integers(match["starts"], "the start"), integers(match["ends"], "the end")
        first, last = (min(max(cut + count if cut < 0 else cut, 0), count) for cut in (start, end))
        require(first < last, "nothing is kept")
        return _part(op, match, first, last)


class SplitOfLinear(Rule):
    """Split(L(x, w, b)) = L(x, w₁, b₁), …, L(x, wₙ, bₙ)

    along the output channels, for L a Conv of one group, MatMul or Gemm with constant weight and bias, or a MatMul and the sum
    with its bias, a constant row: one operator comes apart.
    """

    family = "splitting"
    cost_based = True
    examples = (
        Example(
            "float[2,3] x",
            "t = MatMul(x, w) p, q = Split<axis=-1>(t, s) r = Tanh(p) y = Add(q, r)",
            {**_PRODUCT, "s": [3, 3]},
        ),
        Example(
            "float[N,3] x",
            "t = Gemm(x, w, b) p, q, r = Split<axis=1, num_outputs=3>(t) y = Sum(p, q, r)",
            _PRODUCT,
        ),
        Example(
            "float[1,3,5] x",
            _APART.replace("MatMul(x, w)", "Conv(x, w, b)"),
            {"w": (6, 3, 3), "b": (6,)},
        ),
        Example("float[N,2,3] x", "t = MatMul(x, w) u = Add(b, t) p, q = Split<axis=2>(u, s) y = Mul(p, q)", _HALVES),
        Example("float[2,3] x", "t = MatMul(x, w) u = Add(t, b) p, q = Split<axis=1>(u, s) y = Sub(p, q)", _ALIKE),
    )
    counterexamples = (
        Example(
            "float[2,3] x", "t = MatMul(x, w) u = Add(t, b) p, q = Split<axis=1>(u, s) y = Sub(p, q)", _ROWS, why="row"
        ),
        examples[1].but("output channels", _APART.replace("axis=1", "axis=0"), inputs="float[2,3] x"),
        Example(
            "float[1,4,5] x",
            _APART.replace("MatMul", "Conv<group=2>"),
            {"w": (6, 2, 3)},
            why="group",
        ),
        Example(
            "float[2,3] x, float[3,6] w",
            _APART,
            why="not a constant",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.Split(whole, AnyValue("sizes", optional=True), name="split") for whole in _cuttable()]

    def check(self, match: Match) -> None:
        _require_whole(match, integer(match.node("split"), "axis", 0))

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, channel = match.node("split"), output_channels(match)[1]
        cuts = [0]
        for part in node.outputs:
            size = shape(part)[channel]
            if not isinstance(size, int):
                raise MatchFailure("the size of a part is not known")
            cuts.append(cuts[-1] + size)
        return tuple(_part(op, match, start, end) for start, end in pairwise(cuts))


class SplitGroups(Rule):
    """Conv(x, w, b, 2g groups) = Concat(Conv(x₁, w₁, b₁, g groups), Conv(x₂, w₂, b₂, g groups)), the halves of x, w and b

    for a constant weight and bias and an even number of groups. (TASO's result on ResNeXt, 32 groups as 4 convolutions of 8, is
    two steps.)
    """

    family = "splitting"
    cost_based = True
    examples = (
        Example("float[1,4,5] x", "y = Conv<group=2>(x, w)", {"w": (6, 2, 3)}),
        Example("float[N,8,5,5] x", "y = Conv<group=4, pads=[1,1,1,1]>(x, w, b)", {"w": (4, 2, 3, 3), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,6,5] x", "y = Conv<group=3>(x, w)", {"w": (6, 2, 3)}, why="even number"),
        Example("float[1,6,5] x", "y = Conv(x, w)", {"w": (6, 6, 3)}, why="even number"),
        Example("float[1,4,5] x, float[6,2,3] w", "y = Conv<group=2>(x, w)", why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [linear("Conv")]

    def check(self, match: Match) -> None:
        require(integer(match.node("linear"), "group", 1) % 2 == 0, "it has no even number of groups")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, weight, bias = match.node("linear"), match["w"], match.get("b")
        groups, outputs, inputs = integer(node, "group", 1), sizes(weight)[0], sizes(weight)[1]
        half = op.integers([outputs // 2] * 2)
        data = op.many("Split", 2, match["x"], op.integers([inputs * groups // 2] * 2), axis=1)
        weights = op.many("Split", 2, weight, half, axis=0)
        biases = (None, None) if bias is None else op.many("Split", 2, bias, half, axis=0)
        return op.Concat(
            *(op.copy(node, d, w, b, group=groups // 2) for d, w, b in zip(data, weights, biases, strict=True)), axis=1
        )


class HalveGroups(Rule):
    """Conv(x, w, b, 2g groups) = Conv(x, w', b, g groups), with w' the weight of two groups side by side and zeros between

    for a constant weight and an even number of groups.
    """

    family = "splitting"
    cost_based = True
    examples = (
        Example("float[1,4,5] x", "y = Conv<group=2>(x, w)", {"w": (6, 2, 3)}),
        Example("float[N,8,5,5] x", "y = Conv<group=4, strides=[2,2]>(x, w, b)", {"w": (4, 2, 3, 3), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,6,5] x", "y = Conv<group=3>(x, w)", {"w": (6, 2, 3)}, why="even number"),
        Example("float[1,4,5] x, float[6,2,3] w", "y = Conv<group=2>(x, w)", why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.Conv(x, Weight("w"), AnyValue("b", optional=True), name="linear")]

    def check(self, match: Match) -> None:
        require(integer(match.node("linear"), "group", 1) % 2 == 0, "it has no even number of groups")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("linear")
        groups = integer(node, "group", 1)
        outputs, inputs, *kernel = sizes(match["w"])
        pairs = op.Reshape(match["w"], op.integers([groups // 2, 2, outputs // groups, inputs, *kernel]))
        before, after = op.many("Split", 2, pairs, op.integers([1, 1]), axis=1)
        none, input_pads = [0, 0, 0, 0, *[0] * len(kernel)], [0, 0, 0, inputs, *[0] * len(kernel)]
        wide = op.Concat(
            op.Pad(before, op.integers([*none, *input_pads])), op.Pad(after, op.integers([*input_pads, *none])), axis=1
        )
        weight = op.Reshape(wide, op.integers([outputs, 2 * inputs, *kernel]))
        return op.copy(node, match["x"], weight, match.get("b"), group=groups // 2)
