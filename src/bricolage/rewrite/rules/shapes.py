"""Sizes computed at run time, as exporters write them for symbolic dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.analyses.slices import any_slice, kept_ranges
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import integer, integers, normalised, rank, require, shape
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")
Span = tuple[int, int]


def _span(node: ir.Node) -> Span:
    """First axis of a Shape, and the axis behind its last.

    Raises:
        MatchFailure: the rank of its input is not known.
    """
    value = node.inputs[0]
    assert value is not None
    whole = rank(value)
    start, end = normalised([integer(node, "start", 0), integer(node, "end", whole)], whole)
    start = min(max(start, 0), whole)
    return start, max(start, min(end, whole))


def _shape(op: Operators, value: ir.Value, span: Span) -> ir.Value:
    return op.Shape(value, start=span[0], end=span[1])


class PartOfShape(Rule):
    """Unsqueeze(Gather(Shape(x), i)) = Gather(Shape(x), [i]) = Shape(x, i, i + 1), Slice(Shape(x), i, j) = Shape(x, i, j)

    for constant i and j, and step 1.
    """

    family = "shapes"
    since = 15
    examples = (
        Example(
            "float[N,3,M] x",
            "s = Shape(x) g = Gather(s, i) u = Unsqueeze(g, zeros) y = Expand(c, u)",
            {"i": -1, "zeros": [0], "c": 1.0},
        ),
        Example("float[N,3,M] x", "s = Shape<start=1>(x) g = Gather(s, i) y = Expand(c, g)", {"i": [1], "c": 1.0}),
        Example(
            "float[N,3,M] x", "s = Shape(x) g = Slice(s, b, e) y = Expand(c, g)", {"b": [1], "e": [2**31 - 1], "c": 1.0}
        ),
    )
    counterexamples = (
        Example(
            "float[N,3,M] x, int64[1] i", "s = Shape(x) g = Gather(s, i) y = Expand(c, g)", {"c": 1.0}, why="constant"
        ),
        examples[1].but("one axis", "s = Shape(x) g = Gather(s, i) y = Expand(c, g)", i=[0, 2]),
        Example(
            "float[N,3,M] x",
            "s = Shape(x) g = Slice(s, b, e, a, t) y = Expand(c, g)",
            {"b": [0], "e": [3], "a": [0], "t": [2], "c": 1.0},
            why="step",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        source = op.Shape(x, name="shape")
        single = op.Gather(source, AnyValue("i"))
        return [op.Unsqueeze(single, AnyValue("axes"), name="unsqueeze"), single, any_slice(source, "slice")]

    def check(self, match: Match) -> None:
        self._find_kept_span(match)

    @staticmethod
    def _find_kept_span(match: Match) -> Span:
        start, end = _span(match.node("shape"))
        if "slice" in match.nodes:
            first, last = kept_ranges(match.node("slice"))[0]
            return start + first, start + last
        index = integers(match["i"], "the index")
        single = rank(match["i"]) == (0 if "unsqueeze" in match.nodes else 1)
        require(single and len(index) == 1, "the index is not one axis")
        (at,) = normalised(index, end - start)
        require(0 <= at < end - start, "the index is outside")
        return start + at, start + at + 1

    def rewrite(self, op: Operators, match: Match) -> Result:
        return _shape(op, match["x"], self._find_kept_span(match))


class JoinShapes(Rule):
    """Concat(Shape(x, i, j), Shape(x, j, k), …) = Shape(x, i, k)

    for all that is concatenated.
    """

    family = "shapes"
    since = 15
    examples = (
        Example(
            "float[N,M,3] x",
            "a = Shape<start=0,end=1>(x) b = Shape<start=1>(x) s = Concat<axis=0>(a, b) y = Expand(c, s)",
            {"c": 1.0},
        ),
    )
    counterexamples = (
        Example(
            "float[N,M,3] x",
            "a = Shape<start=0,end=1>(x) b = Shape<start=2>(x) s = Concat<axis=0>(a, b) y = Expand(c, s)",
            {"c": 1.0},
            why="follow",
        ),
        Example(
            "float[N,M] x, float[N,M] z",
            "a = Shape<start=0,end=1>(x) b = Shape<start=1>(z) s = Concat<axis=0>(a, b) y = Expand(c, s)",
            {"c": 1.0},
            why="one value",
        ),
        Example(
            "float[N,M] x",
            "a = Shape<start=0,end=1>(x) s = Concat<axis=0>(a, d) y = Expand(c, s)",
            {"c": 1.0, "d": [2]},
            why="Shape",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Concat", name="concat")]

    def check(self, match: Match) -> None:
        self._whole(match)

    @staticmethod
    def _whole(match: Match) -> tuple[ir.Value, Span]:
        parts = [value.producer() for value in match.node("concat").inputs if value is not None]
        shapes = [part for part in parts if part is not None and part.op_type == "Shape" and not part.domain]
        require(len(shapes) == len(parts) > 1, "not every part is a Shape")
        sources = {part.inputs[0] for part in shapes}
        require(len(sources) == 1, "they are not of one value")
        source = sources.pop()
        assert source is not None
        spans = [_span(part) for part in shapes]
        for before, after in pairwise(spans):
            require(before[1] == after[0], "they do not follow one another")
        return source, (spans[0][0], spans[-1][1])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return _shape(op, *self._whole(match))


class ShapeOfOperand(Rule):
    """Shape(f(z, …)) = Shape(z, i, j)

    for an operand z, no constant, with the same sizes, symbolic ones by name, at the axes from i to j. Step by step the inputs
    of the graph are asked, of which nothing need be computed; and all ask the same.
    """

    family = "shapes"
    since = 15
    enabling = True
    examples = (
        Example("float[N,3] z", "t = Relu(z) s = Shape(t) y = Expand(c, s)", {"c": 1.0}),
        Example(
            "float[K,N,3] z",
            "f = Shape<start=1>(z) r = ReduceSum<keepdims=0>(z, a) s = Shape<start=0,end=1>(r) p = Expand(c, s) q = Expand(c, f)",
            {"c": 1.0, "a": [0]},
            outputs="p, q",
        ),
    )
    counterexamples = (
        Example("float[N,3] z", "s = Shape(z) y = Expand(c, s)", {"c": 1.0}, why="nothing computes"),
        Example("float[N,M] z", "t = Transpose(z) s = Shape(t) y = Expand(c, s)", {"c": 1.0}, why="no operand"),
        Example("float[N,3] z", "t = NonZero(z) s = Shape(t) y = Expand(c, s)", {"c": 1.0}, why="no operand"),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.Shape(x, name="shape")]

    def check(self, match: Match) -> None:
        self._find_operand(match)

    @staticmethod
    def _find_operand(match: Match) -> tuple[ir.Value, Span]:
        start, end = _span(match.node("shape"))
        wanted, node = shape(match["x"])[start:end], match["x"].producer()
        if node is None:
            raise MatchFailure("nothing computes x")
        for value in node.inputs if wanted and "?" not in wanted else ():
            info = describe(value) if value is not None and not is_known(value) else None
            if value is None or info is None or info.shape is None or info.dtype is None:  # None: a sequence, say
                continue
            operand_shape = info.shape
            for first in range(len(operand_shape) - len(wanted) + 1):
                if operand_shape[first : first + len(wanted)] == wanted:
                    return value, (first, first + len(wanted))
        raise MatchFailure("no operand has these sizes side by side")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return _shape(op, *self._find_operand(match))
