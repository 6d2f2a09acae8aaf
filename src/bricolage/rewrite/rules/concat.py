"""Concat, Split and Slice: cancelled and composed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir

from bricolage.rewrite.analyses.slices import any_slice, keep, kept_positions, kept_ranges, slice_operands
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import integer, normalised, rank, require, shape
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")
_MANY = 2**31 - 1  # exporters write such ends for "to the end"


def _axis(node: ir.Node, of: ir.Value) -> int:
    """The axis of a Concat or Split, from the front."""
    return normalised([integer(node, "axis", 0)], rank(of))[0]


def _made_by(value: ir.Value | None, op_type: str, home: object) -> ir.Node | None:
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type == op_type and not node.domain and node.graph is home else None


def _parts(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


class FlattenConcat(Rule):
    """Concat(…, Concat(x…), …) = Concat(…, x…, …)

    for equal axes.
    """

    family = "concat"
    examples = (
        Example("float[2,3] x, float[2,1] z", "t = Concat<axis=1>(x, z) y = Concat<axis=-1>(z, t, x)"),
        Example("float[2,3] x", "t = Concat<axis=1>(x, x) y = Concat<axis=1>(t, t)"),
    )
    counterexamples = (
        Example("float[2,2] x", "t = Concat<axis=1>(x, x) y = Concat<axis=0>(t, t)", why="same axis"),
        Example(
            "float[2,2] x, float[2,2] z, float[2,2] w",
            "t = Concat<axis=1>(x, z) y = Concat<axis=1>(t, w)",
            outputs="y, t",
            why="not profitable",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Concat", name="concat")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("concat")
        axis = _axis(node, match.root)
        parts: list[ir.Value] = []
        for value in _parts(node):
            inner = _made_by(value, "Concat", match.home)
            same = inner is not None and _axis(inner, value) == axis
            parts += _parts(inner) if inner is not None and same else [value]
        require(len(parts) > len(node.inputs), "no part is a Concat along the same axis")
        return op.Concat(*parts, axis=axis)


class RemoveSplitConcat(Rule):
    """Concat(Split(x)) = x

    for equal axes, where all parts are joined in their order.
    """

    family = "concat"
    examples = (
        Example("float[2,6] x", "a, b, c = Split<axis=1, num_outputs=3>(x) t = Concat<axis=-1>(a, b, c) y = Relu(t)"),
    )
    counterexamples = (
        examples[0].but("order", "a, b = Split<axis=1, num_outputs=2>(x) t = Concat<axis=1>(b, a) y = Relu(t)"),
        examples[0].but("axes", "a, b = Split<axis=1, num_outputs=2>(x) t = Concat<axis=0>(a, b) y = Relu(t)"),
        examples[0].but("all parts", "a, b, c = Split<axis=1, num_outputs=3>(x) t = Concat<axis=1>(a, b) y = Relu(t)"),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Concat", name="concat")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("concat")
        split = _made_by(node.inputs[0], "Split", match.home)
        if split is None or split.inputs[0] is None:
            raise MatchFailure("the parts are not computed by Split")
        require(tuple(node.inputs) == tuple(split.outputs), "not all parts are joined, or in another order")
        require(_axis(node, match.root) == _axis(split, split.inputs[0]), "the axes differ")
        return split.inputs[0]


class RemoveConcatSplit(Rule):
    """Split(Concat(x₁, …, xₙ)) = x₁, …, xₙ

    for equal axes, where the parts have the sizes that were joined.
    """

    family = "concat"
    examples = (
        Example(
            "float[2,3] x, float[2,1] z",
            "t = Concat<axis=1>(x, z) a, b = Split<axis=-1>(t, s) c = Relu(a) y = Add(c, b)",
            {"s": [3, 1]},
        ),
    )
    counterexamples = (
        examples[0].but("sizes", "t = Concat<axis=1>(x, z) a, b = Split<axis=1>(t, s) y = Add(a, b)", s=[2, 2]),
        Example(
            "float[2,2] x, float[2,2] z",
            "t = Concat<axis=1>(x, z) a, b = Split<axis=0>(t, s) y = Add(a, b)",
            {"s": [1, 1]},
            why="axes",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.Split(op.variadic("Concat", name="concat"), AnyValue("sizes", optional=True), name="split")]

    def check(self, match: Match) -> None:
        concat, split = match.node("concat"), match.node("split")
        axis = _axis(concat, concat.outputs[0])
        require(_axis(split, concat.outputs[0]) == axis, "the axes differ")
        joined = [shape(value)[axis] for value in _parts(concat)]
        split_sizes = [shape(value)[axis] for value in split.outputs]
        require(all(isinstance(size, int) for size in joined) and joined == split_sizes, "the sizes differ")

    def rewrite(self, op: Operators, match: Match) -> Result:
        parts = tuple(_parts(match.node("concat")))
        return parts if len(parts) > 1 else parts[0]


_SLICED = {"a": [1], "b": [5], "c": [1], "d": [1], "e": [_MANY]}


class ComposeSlices(Rule):
    """Slice(Slice(x)) = Slice(x)

    for constant ranges with positive steps on axes of fixed size.
    """

    family = "concat"
    examples = (
        Example("float[2,6] x", "t = Slice(x, a, b, c) y = Slice(t, d, e, c)", _SLICED),
        Example("float[2,6] x", "t = Slice(x, a, b, c, s) y = Slice(t, d, e, c)", {**_SLICED, "s": [2]}),
        Example("float[2,16] x", "t = Slice(x, d, e, c, s) y = Slice(t, d, e, c, s)", {**_SLICED, "s": [3]}),
        Example("float[3,6] x", "t = Slice(x, a, b, c) y = Slice(t, d, e, f)", {**_SLICED, "f": [0]}),
    )
    counterexamples = (
        Example("float[2,6] x", "t = Slice(x, b, a, c, s) y = Slice(t, d, e, c)", {**_SLICED, "s": [-1]}, why="step"),
        Example("float[2,N] x", "t = Slice(x, a, b, c) y = Slice(t, d, e, c)", _SLICED, why="fixed size"),
        Example(
            "float[2,6] x, int64[1] a",
            "t = Slice(x, a, b, c) y = Slice(t, d, e, c)",
            {"b": [5], "c": [1], "d": [1], "e": [9]},
            why="constant",
        ),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.Slice(any_slice(x, "inner"), *slice_operands("outer"), name="outer")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        positions = kept_positions(match.node("inner"))
        for axis, kept in kept_positions(match.node("outer")).items():
            positions[axis] = positions.get(axis, range(kept.stop))[kept.start : kept.stop : kept.step]
        return keep(op, match["x"], positions)


class SliceOfConcat(Rule):
    """Slice(Concat(…, x, …)) = Slice(x), or x

    where the slice lies within one part, for constant ranges with positive steps on axes of fixed size.
    """

    family = "concat"
    examples = (
        Example(
            "float[2,3] x, float[2,4] z",
            "t = Concat<axis=1>(x, z) y = Slice(t, a, b, c)",
            {"a": [4], "b": [6], "c": [1]},
        ),
        Example(
            "float[2,3] x, float[2,4] z",
            "t = Concat<axis=1>(x, z) u = Slice(t, a, b, c) y = Relu(u)",
            {"a": [0], "b": [3], "c": [1]},
        ),
        Example(
            "float[N,3] x, float[N,4] z",
            "t = Concat<axis=1>(x, z) y = Slice(t, a, b, c)",
            {"a": [-3], "b": [-1], "c": [1]},
        ),
        Example(
            "float[2,3] x, float[2,6] z",
            "t = Concat<axis=1>(x, z) y = Slice(t, a, b, c, s)",
            {"a": [4], "b": [9], "c": [1], "s": [2]},
        ),
    )
    counterexamples = (
        examples[0].but("one part", a=[2]),
        examples[0].but("one part", a=[0], b=[1], c=[0]),
        examples[0].but("step", "t = Concat<axis=1>(x, z) y = Slice(t, b, a, c, s)", s=[-1]),
        examples[0].but("fixed size", inputs="float[2,N] x, float[2,4] z", a=[0], b=[1]),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.Slice(op.variadic("Concat", name="concat"), *slice_operands("slice"), name="slice")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        concat = match.node("concat")
        axis = _axis(concat, concat.outputs[0])
        positions = kept_positions(match.node("slice"))
        kept = positions.get(axis, range(0))
        begin = 0
        for part in _parts(concat):
            size = shape(part)[axis]
            if not isinstance(size, int):
                raise MatchFailure("a part has no fixed size")
            if kept and begin <= kept[0] and kept[-1] < begin + size:
                return keep(op, part, {**positions, axis: range(kept.start - begin, kept.stop - begin, kept.step)})
            begin += size
        raise MatchFailure("the slice does not lie within one part")


class JoinSlices(Rule):
    """Concat(Slice(x, i, j), Slice(x, j, k), …) = Slice(x, i, k), or x

    for slices of the concatenated axis alone, with constant ranges and step 1, that follow one another without a gap.
    """

    family = "concat"
    examples = (
        Example(
            "float[2,6] x",
            "p = Slice(x, a, b, c) q = Slice(x, b, d, c) t = Concat<axis=1>(p, q) y = Relu(t)",
            {"a": [0], "b": [2], "c": [1], "d": [6]},
        ),
        Example(
            "float[2,6] x",
            "p = Slice(x, a, b, c) q = Slice(x, b, d, c) y = Concat<axis=1>(p, q)",
            {"a": [1], "b": [2], "c": [1], "d": [5]},
        ),
    )
    counterexamples = (
        examples[0].but("follow", "p = Slice(x, a, b, c) q = Slice(x, b, d, c) y = Concat<axis=1>(q, p)"),
        Example(
            "float[6,6] x",
            "p = Slice(x, a, b, c) q = Slice(x, b, d, c) y = Concat<axis=0>(p, q)",
            {"a": [0], "b": [3], "c": [1], "d": [6]},
            why="other axes",
        ),
        Example(
            "float[2,6] x, float[2,6] z",
            "p = Slice(x, a, b, c) q = Slice(z, b, d, c) y = Concat<axis=1>(p, q)",
            {"a": [0], "b": [2], "c": [1], "d": [6]},
            why="one value",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Concat", name="concat")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("concat")
        axis = _axis(node, match.root)
        cuts = [cut for value in node.inputs if (cut := _made_by(value, "Slice", match.home)) is not None]
        sources = {cut.inputs[0] for cut in cuts}
        require(len(cuts) == len(node.inputs) > 1 and len(sources) == 1, "the parts are not slices of one value")
        spans: list[tuple[int, int]] = []
        for cut in cuts:
            ranges = kept_ranges(cut)
            require(set(ranges) == {axis}, "other axes are sliced too")
            spans.append(ranges[axis])
        require(all(a[1] == b[0] for a, b in pairwise(spans)), "the slices do not follow one another")
        (source,) = sources
        assert source is not None
        return keep(op, source, {axis: range(spans[0][0], spans[-1][1])})
