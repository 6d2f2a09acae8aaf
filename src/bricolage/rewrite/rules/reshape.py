"""Reshape, Flatten, Squeeze and Unsqueeze (here: views), which keep the elements in their order; and Expand."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.rewrite.analyses.elementwise import BINARY, UNARY
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, op
from bricolage.rewrite.predicates import (
    integer,
    normalised,
    permutation,
    require,
    require_shape,
    scalar,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x, z = AnyValue("x"), AnyValue("z")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def any_view(source: Op | AnyValue, name: str) -> Either:
    """Any view of `source`: with a shape or axes, or without."""
    operands = AnyValue(f"{name} operand", optional=True)
    return Either(op.one_of(*VIEWS)(source, operands, name=name))


def root_view(source: Op | Either | AnyValue, name: str) -> Op:
    """A view of `source` that is to be replaced."""
    return op.one_of(*VIEWS)(source, AnyValue(f"{name} operand", optional=True), name=name)


def _target(source: ir.Value, value: ir.Value) -> list[int]:
    """Operand of a Reshape of `source` to the shape of `value`: a size, 0 for a symbolic dimension that `source` has at the
    same place, or -1 for one that is left.

    Raises:
        MatchFailure: more than one symbolic dimension is left, or one is left and another may be zero: nothing follows from a
            tensor without elements. Or a size is zero.
    """
    wanted, source_shape = shape(value), shape(source)
    require(0 not in wanted, "a dimension of the result is zero")
    target = [
        d if isinstance(d, int) else 0 if d != "?" and i < len(source_shape) and source_shape[i] == d else -1
        for i, d in enumerate(wanted)
    ]
    require(target.count(-1) < 2, "several dimensions of the result are not known")
    require(not {0, -1} <= set(target), "a dimension is left to be computed together with one that may be zero")
    return target


class RemoveReshape(Rule):
    """view(x) = x

    where the result has the shape of x.
    """

    family = "reshape"
    examples = (
        Example("float[2,3] x", "t = Reshape(x, s) y = Relu(t)", {"s": [2, 3]}),
        Example("float[2,3] x", "t = Flatten(x) y = Relu(t)"),
        Example("float[N,3] x", "t = Flatten(x) y = Relu(t)"),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Reshape(x, s) y = Relu(t)", {"s": [3, 2]}, why="has not the shape"),
        Example("float[N,M] x, int64[2] s", "t = Reshape(x, s) y = Relu(t)", why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        return [root_view(x, "view")]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match.root)

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match["x"]


class ComposeReshapes(Rule):
    """view(view(x)) = Reshape(x), or x where it has the shape of the result

    where every symbolic dimension of the result is that of x at the same place, or there is but one, and none is zero.
    """

    family = "reshape"
    examples = (
        Example("float[2,3,4] x", "t = Reshape(x, s) y = Flatten<axis=2>(t)", {"s": [4, 3, 2]}),
        Example("float[2,3] x", "t = Unsqueeze(x, a) u = Squeeze(t, a) y = Relu(u)", {"a": [1]}),
        Example("float[N,3,4] x", "t = Reshape(x, s) y = Unsqueeze(t, a)", {"s": [0, 12], "a": [0]}),
        Example("float[1,3,1] x", "t = Squeeze(x) y = Unsqueeze(t, a)", {"a": [0]}),
    )
    counterexamples = (
        Example(
            "float[N,M,4] x", "t = Unsqueeze(x, a) y = Reshape(t, s)", {"a": [0], "s": [0, 0, -1, 2]}, why="several"
        ),
        Example("float[0,3] x", "t = Unsqueeze(x, a) y = Reshape(t, s)", {"a": [0], "s": [3, 0]}, why="zero"),
        Example(
            "float[2,3] x", "t = Reshape(x, s) y = Flatten(t)", {"s": [3, 2, 1]}, outputs="y, t", why="not profitable"
        ),
    )

    def patterns(self) -> list[Op]:
        return [root_view(any_view(x, "inner"), "outer")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        if shape(match["x"]) == shape(match.root) and "?" not in shape(match.root):
            return match["x"]
        return op.Reshape(match["x"], op.integers(_target(match["x"], match.root)))


class FixReshape(Rule):
    """Reshape(x, s) = Reshape(x, c)

    for s that is computed, where shape inference knows the result: every dimension is a size or that of x at the same
    place, or all but one are sizes, and none is zero. What computed s is then unused, once its last reader is fixed.
    """

    family = "reshape"
    enabling = True
    examples = (
        Example(
            "float[N,M,6] x",
            "h = Shape(x) n = Gather(h, zero) m = Gather(h, one) p = Unsqueeze(n, zeros) q = Unsqueeze(m, zeros)"
            " s = Concat<axis=0>(p, q, r) y = Reshape(x, s)",
            {"zero": 0, "one": 1, "zeros": [0], "r": [2, 3]},
        ),
        Example(
            "float[N,2,6] x",
            "h = Shape<start=0, end=1>(x) s = Concat<axis=0>(h, r) y = Reshape(x, s)",
            {"r": [12]},
        ),
    )
    counterexamples = (
        Example("float[2,6] x, int64[2] s", "y = Reshape(x, s)", why="several dimensions"),
        Example(
            "float[N,M,6] x",
            "h = Shape<end=1>(x) s = Concat<axis=0>(h, r) y = Reshape(x, s)",
            {"r": [-1, 2]},
            why="may be zero",
        ),
        Example("float[2,6] x", "y = Reshape(x, s)", {"s": [3, 4]}, why="a constant already"),
    )

    def patterns(self) -> list[Op]:
        return [op.Reshape(x, AnyValue("s"))]

    def check(self, match: Match) -> None:
        require(not is_known(match["s"]), "the shape is a constant already")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Reshape(match["x"], op.integers(_target(match["x"], match.root)))


class ViewAroundSoftmax(Rule):
    """view(Softmax(view(x))) = Softmax(x), and LogSoftmax

    along the last axis, which the views keep, where the result has the shape of x.
    """

    family = "reshape"
    examples = (
        Example("float[2,3,4] x", "f = Flatten<axis=2>(x) t = Softmax(f) y = Reshape(t, s)", {"s": [2, 3, 4]}),
        Example("float[N,M,K] x", "s = Shape(x) f = Flatten<axis=2>(x) t = LogSoftmax<axis=1>(f) y = Reshape(t, s)"),
    )
    counterexamples = (
        examples[0].but("last axis", "f = Flatten<axis=1>(x) t = Softmax(f) y = Reshape(t, s)"),
        examples[0].but("along", "f = Flatten<axis=2>(x) t = Softmax<axis=0>(f) y = Reshape(t, s)"),
        examples[0].but("has not", s=[3, 2, 4]),
    )

    def patterns(self) -> list[Op]:
        return [root_view(op.one_of("Softmax", "LogSoftmax")(any_view(x, "inner"), name="softmax"), "outer")]

    def check(self, match: Match) -> None:
        data_shape, middle = shape(match["x"]), shape(match.node("inner").outputs[0])
        require(bool(data_shape and middle) and data_shape[-1] == middle[-1] != "?", "the last axis changes")
        axis = normalised([integer(match.node("softmax"), "axis", -1)], len(middle))
        require(axis == (len(middle) - 1,), "it is not along the last axis")
        require_shape(match.root, match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.copy(match.node("softmax"), match["x"], axis=-1)


class TransposeToReshape(Rule):
    """Transpose(x) = Reshape(x)

    where only axes of size 1 move past others, at most one symbolic dimension changes its place, and no transpose is next
    to it (which would cancel better).
    """

    family = "reshape"
    examples = (
        Example("float[2,1,3] x", "t = Transpose<perm=[0,2,1]>(x) y = Relu(t)"),
        Example("float[N,1,3,1] x", "t = Transpose<perm=[1,0,2,3]>(x) y = Relu(t)"),
    )
    counterexamples = (
        Example("float[2,1,3] x", "t = Transpose<perm=[2,1,0]>(x) y = Relu(t)", why="larger"),
        Example("float[1,N,M] x", "t = Transpose<perm=[1,2,0]>(x) y = Relu(t)", why="several"),
        Example("float[2,1,3] x", "t = Transpose<perm=[0,2,1]>(x) y = Transpose(t)", why="next to it"),
    )

    def patterns(self) -> list[Op]:
        return [op.Transpose(x, name="transpose")]

    def check(self, match: Match) -> None:
        data_shape, perm = shape(match["x"]), permutation(match.node("transpose"), match["x"])
        large = [axis for axis in perm if data_shape[axis] != 1]
        require(large == sorted(large), "an axis larger than 1 moves past another")
        around = [match["x"].producer(), *match.root.consumers()]
        require(all(n is None or n.op_type != "Transpose" for n in around), "another transpose is next to it")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Reshape(match["x"], op.integers(_target(match["x"], match.root)))


def require_progress(source: ir.Value, value: ir.Value) -> None:
    """A view of `source` that is moved behind the operator of `value` meets another one further down, through operators that it
    can be moved behind too; and no view is right before it (two in a row compose, they do not overtake others).

    Raises:
        MatchFailure
    """
    before = source.producer()
    require(before is None or before.op_type not in VIEWS, "another view is right before it")
    while not value.is_graph_output() and len(value.uses()) == 1:
        (reader,) = value.consumers()
        if reader.domain:
            break
        if reader.op_type in VIEWS and reader.inputs[0] is value:
            return
        others = [other for other in reader.inputs if other is not value and other is not None]
        if reader.op_type not in UNARY and not (
            reader.op_type in BINARY
            and others
            and all((is_known(o) and scalar(o)) or _viewed_alike(o, source, value) for o in others)
        ):
            break
        value = reader.outputs[0]
    raise MatchFailure("no other view follows")


def _viewed_alike(other: ir.Value, source: ir.Value, value: ir.Value) -> bool:
    """Whether a value is a view, from the shape of `source` to that of `value`."""
    view = other.producer()
    if view is None or view.domain or view.op_type not in VIEWS or view.inputs[0] is None:
        return False
    try:
        require_shape(view.inputs[0], source)
        require_shape(other, value)
    except MatchFailure:
        return False
    return True
