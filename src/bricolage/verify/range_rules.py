"""What operators make of the ranges of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.lowering.common import constant_of
from bricolage.verify.interval import DETAIL, UNKNOWN, Array, Asked, Transfer, ValueRange, of_constant
from bricolage.verify.range_moves import (
    concatenate_ranges,
    gather_range,
    join_ranges,
    move_range,
    slice_range,
    transpose_range,
    unsqueeze_range,
)


def _same(at: Asked, node: ir.Node) -> ValueRange:
    return at.of(node.inputs[0])


def _within(low: float, high: float) -> Transfer:
    return lambda _at, _node: ValueRange.of(low, high)


def _corners(operation: Callable[[Array, Array], Array]) -> Transfer:
    """Of operations that are monotone in each argument, if in no fixed direction."""

    def transfer(at: Asked, node: ir.Node) -> ValueRange:
        a, b = at.of(node.inputs[0]), at.of(node.inputs[1])
        ends = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
        return (
            ValueRange.of(_least(ends), _greatest(ends))
            if _light(*ends)
            else ValueRange.of(_least(ends).min(), _greatest(ends).max())
        )

    return transfer


def _least(ends: Sequence[Array]) -> Array:
    nothing = np.isnan(np.stack(np.broadcast_arrays(*ends))).any(axis=0)
    return np.where(nothing, -np.inf, np.minimum.reduce(np.broadcast_arrays(*ends)))


def _greatest(ends: Sequence[Array]) -> Array:
    nothing = np.isnan(np.stack(np.broadcast_arrays(*ends))).any(axis=0)
    return np.where(nothing, np.inf, np.maximum.reduce(np.broadcast_arrays(*ends)))


def _light(*arrays: Array) -> bool:
    return all(array.size <= DETAIL for array in arrays)


def _monotone(operation: Callable[[Array], Array]) -> Transfer:
    def transfer(at: Asked, node: ir.Node) -> ValueRange:
        x = at.of(node.inputs[0])
        return ValueRange.of(operation(x.low), operation(x.high))

    return transfer


def _cast(at: Asked, node: ir.Node) -> ValueRange:
    x = at.of(node.inputs[0])
    dtype = describe(node.outputs[0]).dtype
    if dtype is not None and dtype.is_integer():
        return ValueRange(np.trunc(x.low), np.trunc(x.high), x.below)
    return x


def _divide_ranges(at: Asked, node: ir.Node) -> ValueRange:
    a, b = at.of(node.inputs[0]), at.hull(node.inputs[1])
    if float(b.low) <= 0 <= float(b.high):
        return UNKNOWN
    ends = [x / y for x in (a.low, a.high) for y in (b.low, b.high)]
    dtype = describe(node.outputs[0]).dtype
    whole = dtype is None or dtype.is_integer()
    return ValueRange.of(np.floor(_least(ends)) if whole else _least(ends), _greatest(ends))


def _modulo(at: Asked, node: ir.Node) -> ValueRange:
    a, b = at.hull(node.inputs[0]), at.hull(node.inputs[1])
    most = max(abs(float(b.low)), abs(float(b.high))) - 1
    dtype = describe(node.outputs[0]).dtype
    if dtype is None or not dtype.is_integer():
        most += 1
    by_dividend = bool(node.attributes.get_int("fmod", 0))
    negative = float(a.low) < 0 if by_dividend else float(b.low) < 0
    positive = float(a.high) > 0 if by_dividend else float(b.high) > 0
    return ValueRange.of(-most if negative else 0, most if positive else 0)


def _absolute(at: Asked, node: ir.Node) -> ValueRange:
    x = at.of(node.inputs[0])
    inside = (x.low <= 0) & (x.high >= 0)
    ends = np.abs(x.low), np.abs(x.high)
    return ValueRange.of(np.where(inside, 0, np.minimum(*ends)), np.maximum(*ends))


def _extreme(operation: np.ufunc, smallest: bool) -> Transfer:
    def transfer(at: Asked, node: ir.Node) -> ValueRange:
        given = [at.of(value) for value in node.inputs]
        below = [operand.below for operand in given]
        held = frozenset.union(*below) if smallest else frozenset.intersection(*below)
        lows, highs = [operand.low for operand in given], [operand.high for operand in given]
        return ValueRange.of(_fold_arrays(operation, lows), _fold_arrays(operation, highs), held)

    return transfer


def _fold_arrays(operation: np.ufunc, arrays: Sequence[Array]) -> Array:
    accumulator = arrays[0]
    for array in arrays[1:]:
        accumulator = operation(accumulator, array)
    return accumulator


def _clip(at: Asked, node: ir.Node) -> ValueRange:
    x = at.of(node.inputs[0])
    limits = []
    for place, name, none in ((1, "min", -np.inf), (2, "max", np.inf)):
        value = node.inputs[place] if place < len(node.inputs) else None
        stated = node.attributes.get_float(name, none) if name in node.attributes else none
        limits.append(at.hull(value) if value is not None else ValueRange.of(stated, stated))
    low, high = limits
    return ValueRange.of(
        np.minimum(np.maximum(x.low, low.low), high.low), np.minimum(np.maximum(x.high, low.high), high.high), x.below
    )


def _where(at: Asked, node: ir.Node) -> ValueRange:
    a, b = at.of(node.inputs[1]), at.of(node.inputs[2])
    return ValueRange.of(np.minimum(a.low, b.low), np.maximum(a.high, b.high), a.below & b.below)


def _sum_ranges(at: Asked, node: ir.Node) -> ValueRange:
    given = [at.of(value) for value in node.inputs]
    return ValueRange.of(
        _fold_arrays(np.add, [operand.low for operand in given]),
        _fold_arrays(np.add, [operand.high for operand in given]),
    )


def _reduced_sum(at: Asked, node: ir.Node) -> ValueRange:
    """At most as many terms as there are elements in the axes summed over."""
    x, shape, result = at.hull(node.inputs[0]), describe(node.inputs[0]).shape, describe(node.outputs[0]).shape  # type: ignore[arg-type]
    if shape is None or result is None or not all(isinstance(size, int) for size in (*shape, *result)):
        terms = np.inf
    else:
        terms = int(np.prod(shape)) // max(1, int(np.prod(result)))  # type: ignore[arg-type]
    return _times(x, terms)


def _accumulate_range(at: Asked, node: ir.Node) -> ValueRange:
    shape, axis = describe(node.inputs[0]).shape, constant_of(node.inputs[1])  # type: ignore[arg-type]
    if shape is None or not all(isinstance(size, int) for size in shape):
        return _times(at.hull(node.inputs[0]), np.inf)
    sizes = [int(size) for size in shape]
    return _times(
        at.hull(node.inputs[0]), sizes[int(axis.reshape(-1)[0])] if axis is not None else max(sizes, default=1)
    )


def _times(x: ValueRange, terms: float) -> ValueRange:
    """Of a sum of up to that many."""
    low, high = float(x.low), float(x.high)
    return ValueRange.of(low * terms if low < 0 else 0.0, high * terms if high > 0 else 0.0)


def _size_of(node: ir.Node, axis: int) -> tuple[float, frozenset[str]]:
    """The size of the first input along an axis, or infinity and its name."""
    shape = describe(node.inputs[0]).shape if node.inputs[0] is not None else None
    if shape is None or not -len(shape) <= axis < len(shape):
        return np.inf, frozenset()
    size = shape[axis]
    return (float(size), frozenset()) if isinstance(size, int) else (np.inf, frozenset({size} - {"?"}))


def _position(default: int) -> Transfer:
    """A place along an axis of the first input."""

    def transfer(_at: Asked, node: ir.Node) -> ValueRange:
        size, below = _size_of(node, node.attributes.get_int("axis", default))
        return ValueRange.of(0, max(size - 1, 0), below)

    return transfer


def _non_zero(_at: Asked, node: ir.Node) -> ValueRange:
    shape = describe(node.inputs[0]).shape  # type: ignore[arg-type]
    if not shape:
        return ValueRange.of(0, np.inf if shape is None else 0)
    if not all(isinstance(size, int) for size in shape):
        named = frozenset(size for size in shape if isinstance(size, str) and size != "?")
        return ValueRange.of(0, np.inf, named if len(shape) == 1 else frozenset())
    return ValueRange.of(np.zeros((len(shape), 1)), np.maximum(np.array(shape).reshape(-1, 1) - 1, 0))


def _select_range(_at: Asked, node: ir.Node) -> ValueRange:
    """NonMaxSuppression: batch, class and box."""
    boxes, scores = (describe(value).shape if value is not None else None for value in node.inputs[:2])
    sizes = [scores[0] if scores else "?", scores[1] if scores else "?", boxes[1] if boxes else "?"]
    return ValueRange.of(np.zeros((1, 3)), [[max(size - 1, 0) if isinstance(size, int) else np.inf for size in sizes]])


def _shape(_at: Asked, node: ir.Node) -> ValueRange:
    shape = describe(node.inputs[0]).shape  # type: ignore[arg-type]
    if shape is not None and all(isinstance(size, int) for size in shape) and "start" not in node.attributes:
        return (
            ValueRange.of(shape, shape)
            if shape and "end" not in node.attributes
            else ValueRange.of(0, max(shape, default=0))
        )
    return ValueRange.of(0, np.inf)


def _enumerate_range(at: Asked, node: ir.Node) -> ValueRange:
    """Range: from its start to its limit."""
    start, limit, step = (at.hull(value) for value in node.inputs)
    if float(step.low) > 0:
        last = max(float(start.high), float(limit.high) - (1 if float(step.low) >= 1 else 0))
        return ValueRange.of(start.low, last)
    if float(step.high) < 0:
        return ValueRange.of(np.minimum(start.low, limit.low), start.high)
    return UNKNOWN


def _fill_range(_at: Asked, node: ir.Node) -> ValueRange:
    given = node.attributes.get("value")
    return of_constant(np.asarray(given.as_tensor().numpy())) if given is not None else ValueRange.of(0, 0)


def _pad_range(at: Asked, node: ir.Node) -> ValueRange:
    x = at.hull(node.inputs[0])
    given = node.inputs[2] if len(node.inputs) > 2 else None
    stated = node.attributes.get_float("value", 0.0) if "value" in node.attributes else 0.0
    return join_ranges([x, at.of(given) if given is not None else ValueRange.of(stated, stated)])


def _update_range(at: Asked, node: ir.Node) -> ValueRange:
    reduction = node.attributes.get_string("reduction", "none") if "reduction" in node.attributes else "none"
    return (
        join_ranges([at.of(node.inputs[0]), at.of(node.inputs[2])])
        if reduction != "add" and reduction != "mul"
        else UNKNOWN
    )


def _rectify_range(at: Asked, node: ir.Node) -> ValueRange:
    x = at.of(node.inputs[0])
    return ValueRange.of(np.maximum(x.low, 0), np.maximum(x.high, 0), x.below)


def _or_zero(at: Asked, node: ir.Node) -> ValueRange:
    x = at.hull(node.inputs[0])
    return ValueRange.of(min(float(x.low), 0), max(float(x.high), 0))


def _negate_range(at: Asked, node: ir.Node) -> ValueRange:
    x = at.of(node.inputs[0])
    return ValueRange.of(-x.high, -x.low)


def _bitwise_and(at: Asked, node: ir.Node) -> ValueRange:
    highs = [float(hull.high) for hull in map(at.hull, node.inputs) if float(hull.low) >= 0]
    return ValueRange.of(0, min(highs)) if highs else UNKNOWN


TRANSFERS: Mapping[str, Transfer] = {
    **dict.fromkeys(("Compress", "Dropout"), move_range),
    **dict.fromkeys(
        ("Reshape", "Flatten", "Squeeze", "Expand", "Tile", "GatherElements", "GatherND", "Split"), move_range
    ),
    **dict.fromkeys(
        ("DepthToSpace", "SpaceToDepth", "ReverseSequence", "Unique", "ReduceMax", "ReduceMin", "TopK"), move_range
    ),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMean"), move_range),
    **dict.fromkeys(
        ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not"), _within(0, 1)
    ),
    **dict.fromkeys(("IsNaN", "IsInf", "Sigmoid", "HardSigmoid", "Softmax", "OneHot", "EyeLike"), _within(0, 1)),
    **dict.fromkeys(("Sign", "Tanh", "Sin", "Cos", "Softsign", "Erf"), _within(-1, 1)),
    **dict.fromkeys(("ArgMax", "ArgMin"), _position(0)),
    "Identity": _same,
    "Cast": _cast,
    "Add": _corners(np.add),
    "Sub": _corners(np.subtract),
    "Mul": _corners(np.multiply),
    "Div": _divide_ranges,
    "Mod": _modulo,
    "Neg": _negate_range,
    "Abs": _absolute,
    "Floor": _monotone(np.floor),
    "Ceil": _monotone(np.ceil),
    "Round": _monotone(np.round),
    "Min": _extreme(np.minimum, True),
    "Max": _extreme(np.maximum, False),
    "Clip": _clip,
    "Relu": _rectify_range,
    "Where": _where,
    "Sum": _sum_ranges,
    "ReduceSum": _reduced_sum,
    "CumSum": _accumulate_range,
    "NonZero": _non_zero,
    "NonMaxSuppression": _select_range,
    "Transpose": transpose_range,
    "Concat": concatenate_ranges,
    "Unsqueeze": unsqueeze_range,
    "Gather": gather_range,
    "Slice": slice_range,
    "Shape": _shape,
    "Size": _within(0, np.inf),
    "Range": _enumerate_range,
    "ConstantOfShape": _fill_range,
    "Pad": _pad_range,
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), _update_range),
    "Trilu": _or_zero,
    "BitwiseAnd": _bitwise_and,
}
"""By operator type, the range of the first output."""
SECOND: Mapping[str, Transfer] = {
    "TopK": _position(-1),
    "Split": move_range,
    "Unique": lambda _at, _node: ValueRange.of(0, np.inf),
}
"""Of the other outputs."""
