"""Operators that change nothing, and operators computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from bricolage.graph.folding import is_known, known
from bricolage.graph.graph import bodies, describe
from bricolage.graph.identity import contents
from bricolage.graph.operator_kinds import RANDOM
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Op, Weight, op
from bricolage.rewrite.predicates import (
    integers,
    listed,
    require,
    require_filled,
    require_shape,
    shape,
)
from bricolage.rewrite.rule import Example, GraphRule, Operators, Replacement, Result, Rule

x = Any("x")
_SMALL = 1024  # bytes of a constant that is compared by value


class _Nothing(Rule):
    """Base of rules whose right side is `x`."""

    family = "identity"

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match["x"]


class RemoveIdentity(_Nothing):
    """Identity(x) = x"""

    examples = (Example("float[2,3] x", "t = Identity(x) y = Relu(t)"),)

    def patterns(self) -> list[Op]:
        return [op.Identity(x)]


class RemoveDropout(_Nothing):
    """Dropout(x) = x

    in inference: training_mode is absent or false, and the mask is not read.
    """

    examples = (
        Example("float[2,3] x", "t = Dropout(x) y = Relu(t)"),
        Example("float[2,3] x", "t = Dropout(x, r, off) y = Relu(t)", {"r": 0.5, "off": False}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Dropout(x, r, on) y = Relu(t)", {"r": 0.5, "on": True}, why="training"),
        Example("float[2,3] x, bool on", "t = Dropout(x, r, on) y = Relu(t)", {"r": 0.5}, why="training"),
        Example("float[2,3] x", "t, m = Dropout(x) y = Relu(t)", outputs="y, m", why="another output"),
    )

    def patterns(self) -> list[Op]:
        return [op.Dropout(x, Any("ratio", optional=True), Any("training", optional=True))]

    def check(self, match: Match) -> None:
        training = match.get("training")
        mode = known(training) if training is not None else None
        require(training is None or (mode is not None and not mode.any()), "it may run in training mode")


class RemoveCast(_Nothing):
    """Cast(x) = x

    where x has the type that it is cast to.
    """

    examples = (Example("float[2,3] x", "t = Cast<to=1>(x) y = Relu(t)"),)
    counterexamples = (Example("float[2,3] x", "t = Cast<to=11>(x) y = Relu(t)", why="the type"),)

    def patterns(self) -> list[Op]:
        return [op.Cast(x, name="cast")]

    def check(self, match: Match) -> None:
        require(describe(match["x"]).dtype == describe(match.root).dtype, "the type changes")


class CastToKnownType(Rule):
    """CastLike(x, z) = Cast(x, type of z), or x where it has that type"""

    family = "identity"
    since = 15
    examples = (
        Example("float[2,3] x, float16 z", "t = CastLike(x, z) y = Cast<to=1>(t)"),
        Example("float[2,3] x, float z", "t = CastLike(x, z) y = Relu(t)"),
        Example("float[2,3] x", "t = CastLike(c, x) y = Add(x, t)", {"c": 2}),
    )

    def patterns(self) -> list[Op]:
        return [op.CastLike(x, Any("z"))]

    def rewrite(self, op: Operators, match: Match) -> Result:
        wanted = describe(match["z"]).dtype
        require(wanted is not None, "the type is not known")
        assert wanted is not None
        return match["x"] if describe(match["x"]).dtype == wanted else op.Cast(match["x"], to=int(wanted))


class ComposeCasts(Rule):
    """Cast(Cast(x, A), B) = Cast(x, B)

    where A holds every value of the type of x: a wider type of the same kind, or a float with enough digits.
    """

    family = "identity"
    examples = (
        Example("float16[2,3] x", "t = Cast<to=1>(x) y = Cast<to=10>(t)"),
        Example("int32[4] x", "t = Cast<to=11>(x) y = Cast<to=7>(t)"),
        Example("bool[4] x", "t = Cast<to=6>(x) y = Cast<to=1>(t)"),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Cast<to=10>(x) y = Cast<to=1>(t)", why="does not hold"),
        Example("int64[4] x", "t = Cast<to=1>(x) y = Cast<to=11>(t)", why="does not hold"),
        Example("float[4] x", "t = Cast<to=7>(x) y = Cast<to=1>(t)", why="does not hold"),
    )

    def patterns(self) -> list[Op]:
        return [op.Cast(op.Cast(x, name="inner"), name="outer")]

    def check(self, match: Match) -> None:
        source, middle = describe(match["x"]).dtype, ir.DataType(match.node("inner").attributes["to"].as_int())
        require(source is not None and _holds(middle, source), f"{middle} does not hold every {source}")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Cast(match["x"], to=match.node("outer").attributes["to"].as_int())


_BITS = {  # significant bits, sign aside
    ir.DataType.BOOL: 1,
    ir.DataType.UINT8: 8,
    ir.DataType.INT8: 7,
    ir.DataType.UINT16: 16,
    ir.DataType.INT16: 15,
    ir.DataType.UINT32: 32,
    ir.DataType.INT32: 31,
    ir.DataType.UINT64: 64,
    ir.DataType.INT64: 63,
    ir.DataType.FLOAT16: 11,
    ir.DataType.FLOAT: 24,
    ir.DataType.DOUBLE: 53,
}
_FLOATS = (ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _holds(wide: ir.DataType, narrow: ir.DataType) -> bool:
    """Whether every value of `narrow` is one of `wide`."""
    if wide == narrow:
        return True
    if (narrow, wide) in ((ir.DataType.BFLOAT16, ir.DataType.FLOAT), (ir.DataType.BFLOAT16, ir.DataType.DOUBLE)):
        return True
    if wide not in _BITS or narrow not in _BITS or wide == ir.DataType.BOOL:
        return False
    if narrow in _FLOATS and wide not in _FLOATS:
        return False
    signed = narrow.name.startswith("INT")
    if signed and wide.name.startswith("UINT"):
        return False
    return _BITS[wide] >= _BITS[narrow]


class RemoveNeutral(_Nothing):
    """x · 1 = x / 1 = x ^ 1 = x

    where the constant is 1 everywhere and does not broadcast x to a larger shape.
    """

    examples = (
        Example("float[2,3] x", "t = Mul(x, one) y = Relu(t)", {"one": 1.0}),
        Example("float[2,3] x", "t = Mul(one, x) y = Relu(t)", {"one": [1.0, 1.0, 1.0]}),
        Example("float[N,3] x", "t = Div(x, one) y = Relu(t)", {"one": 1.0}),
        Example("float[2,3] x", "t = Pow(x, one) y = Relu(t)", {"one": 1.0}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Mul(x, c) y = Relu(t)", {"c": [1.0, 1.0, 2.0]}, why="not 1 everywhere"),
        Example("float[3] x", "t = Mul(x, c) y = Relu(t)", {"c": [[1.0], [1.0]]}, why="has not the shape"),
        Example("float[2,3] x", "t = Div(one, x) y = Relu(t)", {"one": 1.0}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Mul", "Div", "Pow")(x, Weight("c"))]

    def check(self, match: Match) -> None:
        require_filled(match["c"], 1)
        require_shape(match["x"], match.root)


class RemoveZeroTerm(_Nothing):
    """x + 0 = x - 0 = x

    where the constant is 0 everywhere and does not broadcast x to a larger shape.
    """

    examples = (
        Example("float[2,3] x", "t = Add(z, x) y = Relu(t)", {"z": 0.0}),
        Example("float[2,3] x", "t = Sub(x, z) y = Relu(t)", {"z": [0.0, 0.0, 0.0]}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Add(x, z) y = Relu(t)", {"z": [0.0, 0.0, 1.0]}, why="not 0 everywhere"),
        Example("float[3] x", "t = Add(x, z) y = Relu(t)", {"z": [[0.0], [0.0]]}, why="has not the shape"),
        Example("float[2,3] x", "t = Sub(z, x) y = Relu(t)", {"z": 0.0}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Add", "Sub")(x, Weight("c"))]

    def check(self, match: Match) -> None:
        require_filled(match["c"], 0)
        require_shape(match["x"], match.root)


class RemoveExpand(_Nothing):
    """Expand(x, s) = Tile(x, 1…1) = x

    where the result has the shape of x.
    """

    examples = (
        Example("float[2,3] x", "t = Expand(x, s) y = Relu(t)", {"s": [2, 1]}),
        Example("float[2,3] x", "t = Tile(x, s) y = Relu(t)", {"s": [1, 1]}),
    )
    counterexamples = (
        Example("float[2,1] x", "t = Expand(x, s) y = Relu(t)", {"s": [2, 3]}, why="has not the shape"),
        Example("float[2,1] x, int64[2] s", "t = Expand(x, s) y = Relu(t)", why="has not the shape"),
        Example("float[2,3] x", "t = Tile(x, s) y = Relu(t)", {"s": [1, 2]}, why="has not the shape"),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("Expand", "Tile")(x, Any("s"))]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match.root)


class RemovePad(_Nothing):
    """Pad(x, 0…0) = x

    where the pads are a constant.
    """

    examples = (Example("float[2,3] x", "t = Pad(x, p) y = Relu(t)", {"p": [0, 0, 0, 0]}),)
    counterexamples = (
        Example("float[2,3] x", "t = Pad(x, p) y = Relu(t)", {"p": [0, 1, 0, -1]}, why="not 0 everywhere"),
        Example("float[2,3] x, int64[4] p", "t = Pad(x, p) y = Relu(t)", why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.Pad(x, Any("pads"), Any("value", optional=True), Any("axes", optional=True))]

    def check(self, match: Match) -> None:
        require_filled(match["pads"], 0)


class RemovePool(_Nothing):
    """AveragePool(x) = MaxPool(x) = x

    for windows of one position, with no strides and pads.
    """

    examples = (
        Example("float[1,2,5,5] x", "t = AveragePool<kernel_shape=[1,1]>(x) y = Relu(t)"),
        Example("float[N,2,M] x", "t = MaxPool<kernel_shape=[1], strides=[1], pads=[0,0]>(x) y = Relu(t)"),
    )
    counterexamples = (
        Example("float[1,2,5] x", "t = MaxPool<kernel_shape=[2]>(x) y = Relu(t)", why="one position"),
        Example("float[1,2,5] x", "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Relu(t)", why="strides"),
        Example(
            "float[1,2,5] x",
            "t = AveragePool<kernel_shape=[1], pads=[0,1], count_include_pad=1>(x) y = Relu(t)",
            why="pads",
        ),
        Example(
            "float[1,2,5] x", "t, i = MaxPool<kernel_shape=[1]>(x) y = Relu(t)", outputs="y, i", why="another output"
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of("AveragePool", "MaxPool")(x, name="pool")]

    def check(self, match: Match) -> None:
        pool = match.node("pool")
        require(set(listed(pool, "kernel_shape", ())) == {1}, "the window is not one position")
        require(set(listed(pool, "strides", [1])) == {1}, "there are strides")
        require(not any(listed(pool, "pads", ())), "there are pads")


class RemoveSlice(_Nothing):
    """Slice(x) = x

    where every slice starts at the front, ends at or beyond the end and has step 1.
    """

    examples = (
        Example("float[2,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [0], "b": [9223372036854775807], "c": [1]}),
        Example("float[N,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [0], "b": [9223372036854775807], "c": [0]}),
        Example("float[2,3] x", "t = Slice(x, a, b) y = Relu(t)", {"a": [0, -3], "b": [2, 3]}),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [1], "b": [3], "c": [1]}, why="start"),
        Example("float[2,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [0], "b": [2], "c": [1]}, why="end"),
        Example(
            "float[2,3] x",
            "t = Slice(x, a, b, c, d) y = Relu(t)",
            {"a": [2], "b": [-9], "c": [1], "d": [-1]},
            why="step",
        ),
        Example("float[N,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [0], "b": [7], "c": [0]}, why="end"),
    )

    def patterns(self) -> list[Op]:
        optional = [Any(name, optional=True) for name in ("axes", "steps")]
        return [op.Slice(x, Any("starts"), Any("ends"), *optional)]

    def check(self, match: Match) -> None:
        starts, ends = integers(match["starts"]), integers(match["ends"])
        axes = integers(match["axes"]) if match.get("axes") is not None else range(len(starts))
        steps = integers(match["steps"]) if match.get("steps") is not None else [1] * len(starts)
        own = shape(match["x"])
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size = own[axis]
            require(step == 1, "a step is not 1")
            require(start == 0 or (isinstance(size, int) and start <= -size), "a slice does not start at the front")
            whole = end >= size if isinstance(size, int) else end >= 2**31 - 1
            require(whole, "a slice does not reach the end")


class RemoveSingle(_Nothing):
    """Concat(x) = Sum(x) = Max(x) = Min(x) = Mean(x) = x"""

    examples = (
        Example("float[2,3] x", "t = Concat<axis=0>(x) y = Relu(t)"),
        Example("float[2,3] x", "t = Sum(x) y = Relu(t)"),
        Example("float[2,3] x", "t = Max(x) y = Relu(t)"),
    )
    counterexamples = (Example("float[2,3] x, float[2,3] z", "t = Concat<axis=0>(x, z) y = Relu(t)", why="inputs"),)

    def patterns(self) -> list[Op]:
        return [op.one_of("Concat", "Sum", "Max", "Min", "Mean")(x)]


class RemoveSplit(_Nothing):
    """Split(x) = x

    into one part.
    """

    examples = (Example("float[2,3] x", "t = Split<axis=1, num_outputs=1>(x) y = Relu(t)"),)
    counterexamples = (
        Example("float[2,4] x", "t, u = Split<axis=1, num_outputs=2>(x) y = Add(t, u)", why="more than one part"),
    )

    def patterns(self) -> list[Op]:
        return [op.Split(x, Any("sizes", optional=True), name="split")]

    def check(self, match: Match) -> None:
        require(len(match.node("split").outputs) == 1, "it makes more than one part")


class RemoveWhere(_Nothing):
    """Where(c, x, x) = x

    where c does not broadcast x to a larger shape.
    """

    examples = (Example("bool[3] c, float[2,3] x", "t = Where(c, x, x) y = Relu(t)"),)
    counterexamples = (
        Example("bool[4,2,3] c, float[2,3] x", "t = Where(c, x, x) y = Relu(t)", why="has not the shape"),
        Example("bool[3] c, float[2,3] x, float[2,3] z", "t = Where(c, x, z) y = Relu(t)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        return [op.Where(Any("c"), x, x)]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match.root)


class ApplyTwice(Rule):
    """f(f(x)) = f(x)

    for f one of Relu, Abs, Ceil, Floor, Round, Sign.
    """

    family = "identity"
    examples = tuple(
        Example("float[2,3] x", f"t = {f}(x) y = {f}(t)") for f in ("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")
    )
    counterexamples = (
        Example("float[2,3] x", "t = Relu(x) y = Abs(t)", why="differ"),
        Example("float[2,3] x", "t = Tanh(x) y = Tanh(t)"),
    )

    def patterns(self) -> list[Op]:
        kinds = op.one_of("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")
        return [kinds(kinds(x, name="inner"), name="outer")]

    def check(self, match: Match) -> None:
        require(match.node("inner").op_type == match.node("outer").op_type, "the two functions differ")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match.node("inner").outputs[0]


class Undo(_Nothing):
    """f(f(x)) = x

    for f one of Neg, Not.
    """

    examples = (
        Example("float[2,3] x", "t = Neg(x) u = Neg(t) y = Relu(u)"),
        Example("bool[2,3] x", "t = Not(x) u = Not(t) y = Cast<to=1>(u)"),
    )
    counterexamples = (Example("float[2,3] x", "t = Relu(x) u = Neg(t) y = Relu(u)", why="not computed by Neg"),)

    def patterns(self) -> list[Op]:
        return [op.Neg(op.Neg(x)), op.Not(op.Not(x))]


class MergeClips(Rule):
    """Clip(Relu(x), a, b) = Clip(x, max(a, 0), b), Relu(Clip(x, a, b)) = Clip(x, max(a, 0), max(b, 0))

    for constant limits a, which may be absent, and b.
    """

    family = "identity"
    examples = (
        Example("float[2,3] x", "t = Relu(x) y = Clip(t, a, b)", {"a": -1.0, "b": 6.0}),
        Example("float[2,3] x", "t = Relu(x) y = Clip(t, , b)", {"b": 6.0}),
        Example("float[2] x", "t = Clip(x, a, b) y = Relu(t)", {"a": -1.0, "b": -0.5}),
    )
    counterexamples = (
        Example("float[2,3] x, float a", "t = Relu(x) y = Clip(t, a, b)", {"b": 6.0}, why="not a constant"),
        Example("float[2,3] x, float b", "t = Relu(x) y = Clip(t, a, b)", {"a": 0.5}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        limits = (Weight("a", optional=True), Weight("b"))
        return [op.Clip(op.Relu(x), *limits), op.Relu(op.Clip(x, *limits), name="last")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        zero = op.number(0, match["x"])
        low, high = match.get("a"), match["b"]
        low = zero if low is None else op.Max(low, zero)
        return op.Clip(match["x"], low, op.Max(high, zero) if "last" in match.nodes else high)


class CommonSubexpression(GraphRule):
    """f(x…) computed twice = f(x…) computed once

    for any operator without sub-graphs and randomness, with equal attributes, in one graph.
    """

    family = "identity"
    examples = (
        Example("float[2,3] x", "a = Tanh(x) b = Tanh(x) y = Add(a, b)"),
        Example("float[2,3] x", "a = Unsqueeze(x, p) b = Unsqueeze(x, q) y = Add(a, b)", {"p": [0], "q": [0]}),
        Example(
            "float[2,4] x",
            "a, b = Split<axis=1, num_outputs=2>(x) c, d = Split<axis=1, num_outputs=2>(x) y = Add(a, d)",
        ),
    )
    counterexamples = (
        Example("float[2,3] x", "a = Softmax<axis=0>(x) b = Softmax<axis=1>(x) y = Add(a, b)"),
        Example("float[2,3] x", "a = RandomNormalLike(x) b = RandomNormalLike(x) y = Add(a, b)"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        first: dict[object, ir.Node] = {}
        for node in graph:
            key = _key(node)
            if key is None:
                continue
            earlier = first.setdefault(key, node)
            if earlier is not node:
                yield node, partial(_instead, node, earlier)


def _instead(node: ir.Node, earlier: ir.Node, _: Operators) -> dict[ir.Value, ir.Value]:
    return dict(zip(node.outputs, earlier.outputs, strict=True))


def _key(node: ir.Node) -> object | None:
    """Equal for nodes that compute the same; None for those that cannot be compared."""
    if node.op_type in RANDOM or not node.inputs or not node.outputs or bodies(node):
        return None
    attributes: list[object] = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape.numpy()), contents(value))
        elif isinstance(value, list | tuple):
            value = tuple(map(str, value))
        attributes.append((name, attribute.type, value))
    present = tuple(bool(value.name) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, tuple(map(_operand, node.inputs)), present, *attributes)


def _operand(value: ir.Value | None) -> object:
    """A small constant by its value, since rules make their shapes and axes anew; everything else by what it is."""
    if value is None or not is_known(value) or value.const_value is None or value.const_value.nbytes > _SMALL:
        return id(value)
    tensor = value.const_value
    return tensor.dtype, tuple(tensor.shape.numpy()), contents(tensor)
