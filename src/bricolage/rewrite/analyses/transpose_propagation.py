"""Operators that transposes can be moved through, and what becomes of them then.

A value is *stored* with a permutation p where the graph holds s with value = Transpose(s, p). An operator that commutes with
transposes can work on stored values: its `Form` says with which permutations, given that of its data, and writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.operator_kinds import operator_types
from bricolage.rewrite.analyses.elementwise import BINARY, UNARY
from bricolage.rewrite.predicates import (
    axes,
    integer,
    integers,
    listed,
    normalised,
    rank,
    require,
    shape,
    sizes,
    text,
)
from bricolage.rewrite.rule import MatchFailure, Operators

Permutation = tuple[int, ...]
Values = Sequence[ir.Value | None]


def compose(inner: Permutation, outer: Permutation) -> Permutation:
    """The permutation of Transpose(Transpose(x, inner), outer)."""
    return tuple(inner[axis] for axis in outer)


def inverse(perm: Permutation) -> Permutation:
    """The permutation that undoes another."""
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def is_identity(perm: Permutation) -> bool:
    """Whether a permutation leaves all axes where they are."""
    return perm == tuple(range(len(perm)))


@dataclass(frozen=True)
class TransposedOperator:
    """An operator on stored values.

    `inputs` has a permutation for each input, None for one that stays as it is (a weight, axes, a scalar). A permutation of
    more axes than the value has means: with axes of size 1 put in front. `build` writes the operator on such inputs and
    returns its stored outputs, whose permutations are `outputs`.
    """

    inputs: tuple[Permutation | None, ...]
    outputs: tuple[Permutation, ...]
    build: Callable[[Operators, Values], tuple[ir.Value, ...]]


def transpose_operator(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """The operator where its data (for element-wise operators: their result; for Unsqueeze either) is stored with `perm`.

    Raises:
        MatchFailure: it does not commute with that permutation.
    """
    make = _TRANSPOSED.get(node.op_type)
    if make is None or node.domain:
        raise MatchFailure(f"{node.op_type} does not commute with transposes")
    return make(node, perm)


def _data(node: ir.Node) -> ir.Value:
    value = node.inputs[0] if node.inputs else None
    if value is None:
        raise MatchFailure(f"'{node.name}' has no data")
    return value


def _alone(
    node: ir.Node, outputs: Sequence[Permutation], perm: Permutation, **attributes: object
) -> TransposedOperator:
    """The first input is permuted, the others and the operator (but for attributes) stay."""
    inputs = (perm, *[None] * (len(node.inputs) - 1))
    return TransposedOperator(inputs, tuple(outputs), lambda op, values: (op.copy(node, *values, **attributes),))


def _require_rank(node: ir.Node, perm: Permutation) -> None:
    require(rank(_data(node)) == len(perm), "the permutation is that of another rank")


def _elementwise(node: ir.Node, perm: Permutation) -> TransposedOperator:
    require(len(node.outputs) == 1 and rank(node.outputs[0]) == len(perm), "the permutation is that of another rank")
    inputs = tuple(None if value is None or set(shape(value)) <= {1} else perm for value in node.inputs)
    return TransposedOperator(inputs, (perm,), lambda op, values: (op.copy(node, *values),))


def _first_elementwise(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """Element-wise in its first input, with parameters of one element."""
    _require_rank(node, perm)
    require(all(v is None or set(shape(v)) <= {1} for v in node.inputs[1:]), "a parameter has more than one element")
    return _alone(node, [perm], perm)


def _cast_like(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    return _alone(node, [perm], perm)


def _along(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    return _alone(node, [perm], perm, axis=perm[integer(node, "axis", -1)])


def _batch_normalization(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    require(len(perm) > 1 and perm[1] == 1, "the axis of channels moves")
    require(len(node.outputs) == 1, "another output is computed")
    return _alone(node, [perm], perm)


def _trailing_normalization(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    (first,) = normalised([integer(node, "axis", -1)], len(perm))
    require(all(perm[axis] == axis for axis in range(first, len(perm))), "a normalised axis moves")
    require(len(node.outputs) == 1, "another output is computed")
    require(all(v is None or rank(v) <= len(perm) - first for v in node.inputs[1:]), "the scale has other axes")
    return _alone(node, [perm], perm)


def _concat(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    axis = perm[integer(node, "axis", 0)]
    return TransposedOperator(
        (perm,) * len(node.inputs), (perm,), lambda op, values: (op.copy(node, *values, axis=axis),)
    )


def _split(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    count, axis = len(node.outputs), perm[integer(node, "axis", 0)]
    parts = node.attributes.get_int("num_outputs")

    def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
        return op.many("Split", count, *values, axis=axis, num_outputs=parts)

    return TransposedOperator((perm, *[None] * (len(node.inputs) - 1)), (perm,) * count, build)


def _slice(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    starts, ends, *more = [*node.inputs[1:], None, None]
    assert starts is not None
    over = integers(more[0], "the axes") if more[0] is not None else tuple(range(sizes(starts)[0]))
    moved = [perm[axis] for axis in over]

    def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
        return (op.Slice(values[0], starts, ends, op.integers(moved), more[1]),)

    return TransposedOperator((perm, *[None] * (len(node.inputs) - 1)), (perm,), build)


def _pad(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    pads, value, over = [*node.inputs[1:], None, None][:3]
    if over is None:
        around, count = integers(pads, "the pads"), len(perm)
        order = inverse(perm)
        permuted = [around[axis + side] for side in (0, count) for axis in order]

        def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
            return (op.copy(node, values[0], op.integers(permuted), value),)
    else:
        moved = [perm[axis] for axis in integers(over, "the axes")]

        def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
            return (op.copy(node, values[0], pads, value, op.integers(moved)),)

    return TransposedOperator((perm, *[None] * (len(node.inputs) - 1)), (perm,), build)


def _without(perm: Permutation, dropped: Sequence[int]) -> Permutation:
    """What is left of a permutation where these axes of the value go."""
    kept = [perm[axis] for axis in range(len(perm)) if axis not in dropped]
    return tuple(sorted(kept).index(axis) for axis in kept)


def _reduce(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    named = normalised(axes(node), len(perm))
    require(bool(named) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")
    over = named or tuple(range(len(perm)))
    left = perm if integer(node, "keepdims", 1) else _without(perm, over)
    moved = [perm[axis] for axis in over]
    by_attribute = "axes" in node.attributes

    def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
        if not named:
            return (op.copy(node, values[0]),)
        if by_attribute:
            return (op.copy(node, values[0], axes=moved),)
        return (op.copy(node, values[0], op.integers(moved)),)

    return TransposedOperator((perm, *[None] * (len(node.inputs) - 1)), (left,), build)


def _position(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    (axis,) = normalised([integer(node, "axis", 0)], len(perm))
    left = perm if integer(node, "keepdims", 1) else _without(perm, [axis])
    return _alone(node, [left], perm, axis=perm[axis])


def _resize(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """Of the modes that runtimes have for every layout."""
    _require_rank(node, perm)
    require(text(node, "mode", "nearest") in ("nearest", "linear"), "the mode is not one for all layouts")
    require(text(node, "coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize", "a region is cropped")
    over = listed(node, "axes", ())
    region, scales, wanted = [*node.inputs[1:], None, None, None][:3]
    moved = [perm[axis] for axis in over]
    order = inverse(perm)

    def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
        if over:
            return (op.copy(node, values[0], region, scales, wanted, axes=moved),)
        turned = [None if v is None or shape(v) == (0,) else op.Gather(v, op.integers(order)) for v in (scales, wanted)]
        return (op.copy(node, values[0], None, *turned),)

    return TransposedOperator((perm, *[None] * (len(node.inputs) - 1)), (perm,), build)


def _squeeze(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    dropped = normalised(axes(node), len(perm))
    require(bool(dropped), "the axes are not named")
    moved = sorted(perm[axis] for axis in dropped)
    return TransposedOperator(
        (perm, None), (_without(perm, dropped),), lambda op, values: (op.Squeeze(values[0], op.integers(moved)),)
    )


def _unsqueeze(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """Given the permutation of the result, or that of the data: new axes then stand at the same places in the stored value."""
    data_rank, given = rank(_data(node)), axes(node)
    total = data_rank + len(given)
    new = normalised(given, total)
    if len(perm) == total:
        moved = [perm[axis] for axis in new]
        return TransposedOperator(
            (_without(perm, new), None), (perm,), lambda op, values: (op.Unsqueeze(values[0], op.integers(moved)),)
        )
    _require_rank(node, perm)
    old = [axis for axis in range(total) if axis not in new]
    result_perm = list(range(total))
    for axis, source in zip(old, perm, strict=True):
        result_perm[axis] = old[source]
    return _unsqueeze(node, tuple(result_perm))


def _matmul(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """Axes that are no part of the matrices move."""
    _require_rank(node, perm)
    second = node.inputs[1]
    assert second is not None
    count = len(perm)
    require(count > 1 and perm[-1] == count - 1, "the axis of the products moves")
    if rank(second) == 2:
        return _alone(node, [perm], perm)
    require(rank(second) == count and perm[-2] == count - 2, "axes of the matrices move")
    return TransposedOperator((perm, perm), (perm,), lambda op, values: (op.MatMul(*values),))


def _gather(node: ir.Node, perm: Permutation) -> TransposedOperator:
    _require_rank(node, perm)
    (axis,) = normalised([integer(node, "axis", 0)], len(perm))
    indices = node.inputs[1]
    require(indices is not None and rank(indices) < 2, "the indices have more than one axis")
    assert indices is not None
    left = perm if rank(indices) else _without(perm, [axis])
    return _alone(node, [left], perm, axis=perm[axis])


def _by_axis(node: ir.Node, perm: Permutation) -> TransposedOperator:
    """An operand with one number for each axis of the data."""
    _require_rank(node, perm)
    operand = node.inputs[1]
    assert operand is not None
    require(sizes(operand) == (len(perm),), "axes are added")
    order = inverse(perm)

    def build(op: Operators, values: Values) -> tuple[ir.Value, ...]:
        return (op.copy(node, values[0], op.Gather(operand, op.integers(order))),)

    return TransposedOperator((perm, None), (perm,), build)


REDUCTIONS = operator_types("reduction")
_TRANSPOSED: dict[str, Callable[[ir.Node, Permutation], TransposedOperator]] = {
    **dict.fromkeys((*UNARY, *BINARY, "Where", "Sum", "Mean", "PRelu", "Identity"), _elementwise),
    **dict.fromkeys(("Clip", "QuantizeLinear", "DequantizeLinear"), _first_elementwise),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "LpNormalization"), _along),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _trailing_normalization),
    **dict.fromkeys(REDUCTIONS, _reduce),
    **dict.fromkeys(("ArgMax", "ArgMin"), _position),
    **dict.fromkeys(("Tile", "Expand"), _by_axis),
    "CastLike": _cast_like,
    "BatchNormalization": _batch_normalization,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Resize": _resize,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "MatMul": _matmul,
    "Gather": _gather,
}
