"""Views moved behind operators, or taken over by them."""

from __future__ import annotations

from bricolage.rewrite.analyses.elementwise import BINARY, UNARY, copy_gate, gates, require_gate
from bricolage.rewrite.analyses.transpose_propagation import REDUCTIONS
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    broadcast,
    integer,
    normalised,
    rank,
    require,
    require_constant,
    require_shape,
    scalar,
    shape,
)
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.rules.reshape import any_view, require_progress, root_view, x, z


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
        view = any_view(x, "view")
        return [
            op.one_of(*UNARY)(view, name="unary"),
            *gates(view, any_view(x, "again")),
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
        require_progress(match["x"], match.root)

    def rewrite(self, op: Operators, match: Match) -> Result:
        view = match.node("view")
        if "unary" in match.nodes:
            moved = op.copy(match.node("unary"), match["x"])
        elif "first" in match.nodes:
            moved = op.copy(match.node("first"), match["x"], match["c"])
        elif "inner" in match.nodes:
            moved = copy_gate(op, match, match["x"])
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
        examples[0].but("shape", inputs="float[2,3] x, float[3,2] z"),
        examples[0].but("shape", "a = Reshape(x, s) b = Reshape(z, r) y = Sub(a, b)", s=[6, 1], r=[1, 6]),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of(*BINARY)(any_view(x, "left"), any_view(z, "right"), name="function")]

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
        examples[0].but("axes of x", r=[3, 2, 5]),
        examples[0].but("last axis", inputs="float[2,4,3] x, float[4,3] w", r=[2, 3, 3]),
        examples[0].but("no matrix", inputs="float[2,3,4] x, float[6,4,5] w", s=[6, 1, 4]),
    )

    def patterns(self) -> list[Op]:
        return [root_view(op.MatMul(any_view(x, "inner"), AnyValue("w")), "outer")]

    def check(self, match: Match) -> None:
        data_shape, weight = shape(match["x"]), shape(match["w"])
        middle, result = shape(match.node("inner").outputs[0]), shape(match.root)
        require(len(weight) == 2, "w is no matrix")
        require(
            len(data_shape) > 0 and len(middle) > 0 and data_shape[-1] == middle[-1] != "?",
            "the last axis of x changes",
        )
        require("?" not in data_shape and (*data_shape[:-1], weight[1]) == result, "the result has not the axes of x")

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
        examples[0].but("axes", "t = ReduceSum<keepdims=0>(x, a) y = Unsqueeze(t, b)", a=[2], b=[0]),
        Example("float[2,3] x, int64[1] a", "t = ReduceSum(x, a) y = Reshape(t, s)", {"s": [-1]}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [root_view(op.one_of(*REDUCTIONS)(x, AnyValue("axes", optional=True), name="reduce"), "view")]

    def check(self, match: Match) -> None:
        node, data_shape = match.node("reduce"), shape(match["x"])
        require(bool(axes(node)) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")
        over = normalised(axes(node), len(data_shape)) or tuple(range(len(data_shape)))
        wanted = tuple(
            1 if axis in over else size
            for axis, size in enumerate(data_shape)
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
        broadcast_shape = broadcast(match["x"], match["z"])
        require(
            broadcast_shape is not None and broadcast_shape == shape(match.root),
            "x and z do not broadcast to the result by themselves",
        )

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "first" in match.nodes:
            return op.copy(match.node("first"), match["x"], match["z"])
        return op.copy(match.node("second"), match["z"], match["x"])
