"""Operators that change nothing."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import describe
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import (
    integers,
    listed,
    require,
    require_filled,
    require_shape,
    shape,
)
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x = AnyValue("x")


class NeutralRule(Rule):
    """Base of rules whose right side is `x`."""

    family = "identity"

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match["x"]


class RemoveIdentity(NeutralRule):
    """Identity(x) = x"""

    examples = (Example("float[2,3] x", "t = Identity(x) y = Relu(t)"),)

    def patterns(self) -> list[Op]:
        return [op.Identity(x)]


class RemoveDropout(NeutralRule):
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
        return [op.Dropout(x, AnyValue("ratio", optional=True), AnyValue("training", optional=True))]

    def check(self, match: Match) -> None:
        training = match.get("training")
        mode = constant_elements(training) if training is not None else None
        require(training is None or (mode is not None and not mode.any()), "it may run in training mode")


class RemoveCast(NeutralRule):
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
        return [op.CastLike(x, AnyValue("z"))]

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


class RemoveNeutral(NeutralRule):
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


class RemoveZeroTerm(NeutralRule):
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


class RemoveExpand(NeutralRule):
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
        return [op.one_of("Expand", "Tile")(x, AnyValue("s"))]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match.root)


class RemovePad(NeutralRule):
    """Pad(x, 0…0) = x

    where the pads are a constant.
    """

    examples = (Example("float[2,3] x", "t = Pad(x, p) y = Relu(t)", {"p": [0, 0, 0, 0]}),)
    counterexamples = (
        Example("float[2,3] x", "t = Pad(x, p) y = Relu(t)", {"p": [0, 1, 0, -1]}, why="not 0 everywhere"),
        Example("float[2,3] x, int64[4] p", "t = Pad(x, p) y = Relu(t)", why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        return [op.Pad(x, AnyValue("pads"), AnyValue("value", optional=True), AnyValue("axes", optional=True))]

    def check(self, match: Match) -> None:
        require_filled(match["pads"], 0)


class RemovePool(NeutralRule):
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


class RemoveSlice(NeutralRule):
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
        examples[0].but("step", "t = Slice(x, a, b, c, d) y = Relu(t)", a=[2], b=[-9], d=[-1]),
        Example("float[N,3] x", "t = Slice(x, a, b, c) y = Relu(t)", {"a": [0], "b": [7], "c": [0]}, why="end"),
    )

    def patterns(self) -> list[Op]:
        optional = [AnyValue(name, optional=True) for name in ("axes", "steps")]
        return [op.Slice(x, AnyValue("starts"), AnyValue("ends"), *optional)]

    def check(self, match: Match) -> None:
        starts, ends = integers(match["starts"]), integers(match["ends"])
        axes = integers(match["axes"]) if match.get("axes") is not None else range(len(starts))
        steps = integers(match["steps"]) if match.get("steps") is not None else [1] * len(starts)
        data_shape = shape(match["x"])
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size = data_shape[axis]
            require(step == 1, "a step is not 1")
            require(start == 0 or (isinstance(size, int) and start <= -size), "a slice does not start at the front")
            whole = end >= size if isinstance(size, int) else end >= 2**31 - 1
            require(whole, "a slice does not reach the end")


class RemoveSingle(NeutralRule):
    """Concat(x) = Sum(x) = Max(x) = Min(x) = Mean(x) = x"""

    examples = (
        Example("float[2,3] x", "t = Concat<axis=0>(x) y = Relu(t)"),
        Example("float[2,3] x", "t = Sum(x) y = Relu(t)"),
        Example("float[2,3] x", "t = Max(x) y = Relu(t)"),
    )
    counterexamples = (Example("float[2,3] x, float[2,3] z", "t = Concat<axis=0>(x, z) y = Relu(t)", why="inputs"),)

    def patterns(self) -> list[Op]:
        return [op.one_of("Concat", "Sum", "Max", "Min", "Mean")(x)]


class RemoveSplit(NeutralRule):
    """Split(x) = x

    into one part.
    """

    examples = (Example("float[2,3] x", "t = Split<axis=1, num_outputs=1>(x) y = Relu(t)"),)
    counterexamples = (
        Example("float[2,4] x", "t, u = Split<axis=1, num_outputs=2>(x) y = Add(t, u)", why="more than one part"),
    )

    def patterns(self) -> list[Op]:
        return [op.Split(x, AnyValue("sizes", optional=True), name="split")]

    def check(self, match: Match) -> None:
        require(len(match.node("split").outputs) == 1, "it makes more than one part")


class RemoveWhere(NeutralRule):
    """Where(c, x, x) = x

    where c does not broadcast x to a larger shape.
    """

    examples = (Example("bool[3] c, float[2,3] x", "t = Where(c, x, x) y = Relu(t)"),)
    counterexamples = (
        Example("bool[4,2,3] c, float[2,3] x", "t = Where(c, x, x) y = Relu(t)", why="has not the shape"),
        Example("bool[3] c, float[2,3] x, float[2,3] z", "t = Where(c, x, z) y = Relu(t)", why="another value"),
    )

    def patterns(self) -> list[Op]:
        return [op.Where(AnyValue("c"), x, x)]

    def check(self, match: Match) -> None:
        require_shape(match["x"], match.root)
