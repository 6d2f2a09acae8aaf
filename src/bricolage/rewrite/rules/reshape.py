"""Reshape, Flatten, Squeeze and Unsqueeze (here: views), which keep the elements in their order; and Expand."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.folding import is_known
from bricolage.rewrite.elementwise import BINARY, UNARY, gated, gates, require_gate
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, op
from bricolage.rewrite.predicates import (
    axes,
    broadcast,
    integer,
    normalised,
    permutation,
    rank,
    require,
    require_constant,
    require_shape,
    scalar,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.transpose_propagation import REDUCTIONS

x, z = AnyValue("x"), AnyValue("z")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def _view(source: Op | AnyValue, name: str) -> Either:
    """Any view of `source`: with a shape or axes, or without."""
    operands = AnyValue(f"{name} operand", optional=True)
    return Either(op.one_of(*VIEWS)(source, operands, name=name))


def _root_view(source: Op | Either | AnyValue, name: str) -> Op:
    return op.one_of(*VIEWS)(source, AnyValue(f"{name} operand", optional=True), name=name)


def _target(source: ir.Value, value: ir.Value) -> list[int]:
    """Operand of a Reshape of `source` to the shape of `value`: a size, 0 for a symbolic dimension that `source` has at the
    same place, or -1 for one that is left.

    Raises:
        MatchFailure: more than one symbolic dimension is left, or one is left beside one that may be zero: nothing follows from a
            tensor without elements. Or a size is zero.
    """
    wanted, own = shape(value), shape(source)
    require(0 not in wanted, "a dimension of the result is zero")
    found = [
        d if isinstance(d, int) else 0 if d != "?" and i < len(own) and own[i] == d else -1
        for i, d in enumerate(wanted)
    ]
    require(found.count(-1) < 2, "several dimensions of the result are not known")
    require(not {0, -1} <= set(found), "a dimension is left to be computed beside one that may be zero")
    return found


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
        return [_root_view(x, "view")]

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
        return [_root_view(_view(x, "inner"), "outer")]

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
        Example(
            "float[2,3,4] x",
            "f = Flatten<axis=1>(x) t = Softmax(f) y = Reshape(t, s)",
            {"s": [2, 3, 4]},
            why="last axis",
        ),
        Example(
            "float[2,3,4] x",
            "f = Flatten<axis=2>(x) t = Softmax<axis=0>(f) y = Reshape(t, s)",
            {"s": [2, 3, 4]},
            why="along",
        ),
        Example(
            "float[2,3,4] x", "f = Flatten<axis=2>(x) t = Softmax(f) y = Reshape(t, s)", {"s": [3, 2, 4]}, why="has not"
        ),
    )

    def patterns(self) -> list[Op]:
        return [_root_view(op.one_of("Softmax", "LogSoftmax")(_view(x, "inner"), name="softmax"), "outer")]

    def check(self, match: Match) -> None:
        own, middle = shape(match["x"]), shape(match.node("inner").outputs[0])
        require(bool(own and middle) and own[-1] == middle[-1] != "?", "the last axis changes")
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
        own, perm = shape(match["x"]), permutation(match.node("transpose"), match["x"])
        large = [axis for axis in perm if own[axis] != 1]
        require(large == sorted(large), "an axis larger than 1 moves past another")
        around = [match["x"].producer(), *match.root.consumers()]
        require(all(n is None or n.op_type != "Transpose" for n in around), "another transpose is next to it")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Reshape(match["x"], op.integers(_target(match["x"], match.root)))


def _require_progress(source: ir.Value, value: ir.Value) -> None:
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


class MoveReshapeBehindFunction(Rule):
    """f(view(x)) = view(f(x))

    for element-wise f of one input, of an input and a constant of one element, or of an input and what an element-wise function
    makes of it (x · Sigmoid(x)), where another view follows that this one comes nearer to.
    """

    family = "reshape"
    enabling = True
    examples = (
        Example("float[2,3] x", "t = Reshape(x, s) u = Relu(t) y = Unsqueeze(u, a)", {"s": [6], "a": [0]}),
        Example(
            "float[2,3] x",
            "t = Flatten<axis=0>(x) u = Mul(t, c) v = Tanh(u) y = Reshape(v, s)",
            {"c": 2.0, "s": [3, 2]},
        ),
        Example("float[2,3] x", "t = Flatten<axis=0>(x) u = Sub(c, t) y = Reshape(u, s)", {"c": 2.0, "s": [3, 2]}),
        Example(
            "float[2,3] x, float[2,3] z",
            "t = Reshape(x, s) u = Sigmoid(t) v = Reshape(z, s) w = Mul(u, v) y = Reshape(w, r)",
            {"s": [6], "r": [3, 2]},
        ),
        Example("float[2,3] x", "t = Flatten(x) u = Sigmoid(t) v = Mul(t, u) y = Reshape(v, s)", {"s": [3, 2]}),
        Example("float[N,3] x", "t = Unsqueeze(x, a) u = Tanh(t) v = Sub(u, t) y = Squeeze(v, a)", {"a": [1]}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Reshape(x, s) y = Relu(t)", {"s": [6]}, why="no other view follows"),
        Example(
            "float[2,3] x",
            "t = Reshape(x, s) q = Reshape(x, r) u = Sigmoid(t) v = Mul(q, u) y = Reshape(v, o)",
            {"s": [1, 6], "r": [6, 1], "o": [36]},
            why="not of one value",
        ),
        Example(
            "float[2,3] x, float[3,2] z",
            "t = Reshape(x, s) u = Sigmoid(t) v = Reshape(z, s) w = Mul(u, v) y = Reshape(w, r)",
            {"s": [6], "r": [3, 2]},
            why="no other view follows",
        ),
        Example(
            "float[2,3] x",
            "t = Reshape(x, s) u = Add(t, c) y = Flatten(u)",
            {"s": [3, 2], "c": (2,)},
            why="one element",
        ),
        Example("float[2,3] x, float c", "t = Reshape(x, s) u = Add(t, c) y = Flatten(u)", {"s": [6]}, why="constant"),
    )

    def patterns(self) -> list[Op]:
        view = _view(x, "view")
        return [
            op.one_of(*UNARY)(view, name="unary"),
            *gates(view, _view(x, "again")),
            op.one_of(*BINARY)(view, AnyValue("c"), name="first"),
            op.one_of(*BINARY)(AnyValue("c"), view, name="second"),
        ]

    def check(self, match: Match) -> None:
        if "inner" in match.nodes:
            require_gate(match, "view", "again")
        elif "unary" not in match.nodes:
            require_constant(match["c"])
            require(scalar(match["c"]), "the constant has more than one element")
        require(rank(match["x"]) > 0, "x has no axes that a constant of shape (1,) would keep")
        _require_progress(match["x"], match.root)

    def rewrite(self, op: Operators, match: Match) -> Result:
        view = match.node("view")
        if "unary" in match.nodes:
            moved = op.copy(match.node("unary"), match["x"])
        elif "first" in match.nodes:
            moved = op.copy(match.node("first"), match["x"], match["c"])
        elif "inner" in match.nodes:
            moved = gated(op, match, match["x"])
        else:
            moved = op.copy(match.node("second"), match["c"], match["x"])
        return op.copy(view, moved, *view.inputs[1:])


class MoveReshapesBehindOperator(Rule):
    """f(view(x), view(z)) = view(f(x, z))

    for element-wise f of two inputs, where x and z have equal shapes, and so have their views.
    """

    family = "reshape"
    examples = (
        Example("float[2,3] x, float[2,3] z", "a = Reshape(x, s) b = Reshape(z, s) y = Sub(a, b)", {"s": [6]}),
        Example("float[N,3] x, float[N,3] z", "a = Unsqueeze(x, s) b = Unsqueeze(z, s) y = Add(a, b)", {"s": [1]}),
    )
    counterexamples = (
        Example(
            "float[2,3] x, float[3,2] z", "a = Reshape(x, s) b = Reshape(z, s) y = Sub(a, b)", {"s": [6]}, why="shape"
        ),
        Example(
            "float[2,3] x, float[2,3] z",
            "a = Reshape(x, s) b = Reshape(z, r) y = Sub(a, b)",
            {"s": [6, 1], "r": [1, 6]},
            why="shape",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of(*BINARY)(_view(x, "left"), _view(z, "right"), name="function")]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match["z"])
        require_shape(match.node("left").outputs[0], match.node("right").outputs[0])

    def rewrite(self, op: Operators, match: Match) -> Result:
        view = match.node("left")
        return op.copy(view, op.copy(match.node("function"), match["x"], match["z"]), *view.inputs[1:])


class ReshapeAroundProduct(Rule):
    """view(MatMul(view(x), w)) = MatMul(x, w)

    where w is a matrix, and the views only merge all axes of x but the last into one and split them again.
    """

    family = "reshape"
    examples = (
        Example(
            "float[2,3,4] x, float[4,5] w",
            "t = Reshape(x, s) u = MatMul(t, w) y = Reshape(u, r)",
            {"s": [6, 4], "r": [2, 3, 5]},
        ),
    )
    counterexamples = (
        Example(
            "float[2,3,4] x, float[4,5] w",
            "t = Reshape(x, s) u = MatMul(t, w) y = Reshape(u, r)",
            {"s": [6, 4], "r": [3, 2, 5]},
            why="axes of x",
        ),
        Example(
            "float[2,4,3] x, float[4,3] w",
            "t = Reshape(x, s) u = MatMul(t, w) y = Reshape(u, r)",
            {"s": [6, 4], "r": [2, 3, 3]},
            why="last axis",
        ),
        Example(
            "float[2,3,4] x, float[6,4,5] w",
            "t = Reshape(x, s) u = MatMul(t, w) y = Reshape(u, r)",
            {"s": [6, 1, 4], "r": [2, 3, 5]},
            why="no matrix",
        ),
    )

    def patterns(self) -> list[Op]:
        return [_root_view(op.MatMul(_view(x, "inner"), AnyValue("w")), "outer")]

    def check(self, match: Match) -> None:
        own, weight = shape(match["x"]), shape(match["w"])
        middle, result = shape(match.node("inner").outputs[0]), shape(match.root)
        require(len(weight) == 2, "w is no matrix")
        require(len(own) > 0 and len(middle) > 0 and own[-1] == middle[-1] != "?", "the last axis of x changes")
        require("?" not in own and (*own[:-1], weight[1]) == result, "the result has not the axes of x")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.MatMul(match["x"], match["w"])


class ViewIntoReduce(Rule):
    """Squeeze(Reduce(x, keepdims=1)) = Reduce(x, keepdims=0), Unsqueeze(Reduce(x, keepdims=0)) = Reduce(x, keepdims=1)

    where just the reduced axes are dropped or restored, by any kind of view.
    """

    family = "reshape"
    since = 18
    examples = (
        Example("float[2,3,4] x", "t = ReduceMean<keepdims=1>(x, a) y = Squeeze(t, a)", {"a": [1]}),
        Example("float[2,3,4] x", "t = ReduceSum<keepdims=0>(x, a) y = Unsqueeze(t, a)", {"a": [-1]}),
        Example("float[2,3,4,5] x", "t = ReduceMean<keepdims=1>(x, a) y = Flatten(t)", {"a": [2, 3]}),
        Example("float[N,3,4] x", "t = ReduceMean<keepdims=1>(x, a) y = Squeeze(t, a)", {"a": [2]}),
    )
    counterexamples = (
        Example("float[2,1,4] x", "t = ReduceMean<keepdims=1>(x, a) y = Squeeze(t)", {"a": [2]}, why="other axes"),
        Example(
            "float[2,3,4] x", "t = ReduceSum<keepdims=0>(x, a) y = Unsqueeze(t, b)", {"a": [2], "b": [0]}, why="axes"
        ),
        Example("float[2,3] x, int64[1] a", "t = ReduceSum(x, a) y = Reshape(t, s)", {"s": [-1]}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [_root_view(op.one_of(*REDUCTIONS)(x, AnyValue("axes", optional=True), name="reduce"), "view")]

    def check(self, match: Match) -> None:
        node, own = match.node("reduce"), shape(match["x"])
        require(bool(axes(node)) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")
        over = normalised(axes(node), len(own)) or tuple(range(len(own)))
        wanted = tuple(
            1 if axis in over else size
            for axis, size in enumerate(own)
            if axis not in over or not integer(node, "keepdims", 1)
        )
        require(
            "?" not in wanted and wanted == shape(match.root),
            "other axes than the reduced ones are dropped or restored",
        )

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("reduce")
        return op.copy(node, match["x"], match.get("axes"), keepdims=1 - integer(node, "keepdims", 1))


class ExpandIntoBroadcast(Rule):
    """f(Expand(x, s), z) = f(x, z)

    for element-wise f of two inputs that broadcasts x and z to the shape of the result by itself.
    """

    family = "reshape"
    examples = (
        Example("float[1,3] x, float[2,3] z", "t = Expand(x, s) y = Add(t, z)", {"s": [2, 3]}),
        Example("float[N,1] x, float[N,3] z", "t = Expand(x, s) y = Sub(z, t)", {"s": [1, 3]}),
    )
    counterexamples = (
        Example("float[1,3] x, float[1,3] z", "t = Expand(x, s) y = Add(t, z)", {"s": [2, 3]}, why="broadcast"),
    )

    def patterns(self) -> list[Op]:
        wide = op.Expand(x, AnyValue("s"))
        return [op.one_of(*BINARY)(wide, z, name="first"), op.one_of(*BINARY)(z, wide, name="second")]

    def check(self, match: Match) -> None:
        found = broadcast(match["x"], match["z"])
        require(
            found is not None and found == shape(match.root), "x and z do not broadcast to the result by themselves"
        )

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "first" in match.nodes:
            return op.copy(match.node("first"), match["x"], match["z"])
        return op.copy(match.node("second"), match["z"], match["x"])
