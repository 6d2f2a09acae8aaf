"""Ranges of elements that operators move to other places: parts with ranges of their own keep them where it is known where they
go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.lowering.common import constant_of
from bricolage.verify.interval import DETAIL, Array, Asked, ValueRange


def join_ranges(ranges: Sequence[ValueRange]) -> ValueRange:
    """Of values of which any may come out."""
    hulls = [interval.hull for interval in ranges]
    return ValueRange.of(
        min(float(hull.low) for hull in hulls),
        max(float(hull.high) for hull in hulls),
        frozenset.intersection(*(hull.below for hull in hulls)),
    )


def move_range(at: Asked, node: ir.Node) -> ValueRange:
    """Elements of the first input, at other places."""
    return at.hull(node.inputs[0])


def transpose_range(at: Asked, node: ir.Node) -> ValueRange:
    """Axes in another order."""
    x = at.of(node.inputs[0])
    rank = len(describe(node.inputs[0]).shape or ())  # type: ignore[arg-type]
    if x.low.ndim == 0 or x.low.ndim != rank:
        return x.hull
    given = node.attributes.get("perm")
    order = tuple(given.as_ints()) if given is not None else tuple(reversed(range(rank)))
    return ValueRange(np.transpose(x.low, order), np.transpose(x.high, order), x.below)


def concatenate_ranges(at: Asked, node: ir.Node) -> ValueRange:
    """Parts that keep their ranges along the axis."""
    axis = node.attributes.get_int("axis", 0)
    parts, shapes = [at.of(value) for value in node.inputs], [describe(value).shape for value in node.inputs]  # type: ignore[arg-type]
    rank = len(shapes[0] or ())
    if not rank or any(shape is None or not isinstance(shape[axis], int) for shape in shapes):
        return join_ranges(parts)
    axis %= rank
    sizes = [int(shape[axis]) for shape in shapes]  # type: ignore[index]
    if sum(sizes) > DETAIL:
        return join_ranges(parts)
    wide = [part if part.low.ndim == rank else part.hull for part in parts]
    ends: list[Array] = []
    for arrays in ([part.low for part in wide], [part.high for part in wide]):
        full = [array.reshape((1,) * rank) if array.ndim != rank else array for array in arrays]
        rest = np.broadcast_shapes(*((*array.shape[:axis], 1, *array.shape[axis + 1 :]) for array in full))
        if int(np.prod(rest)) * sum(sizes) > DETAIL:
            return join_ranges(parts)
        shaped = [(*rest[:axis], size, *rest[axis + 1 :]) for size in sizes]
        ends.append(np.concatenate([np.broadcast_to(array, to) for array, to in zip(full, shaped, strict=True)], axis))
    return ValueRange(ends[0], ends[1], frozenset.intersection(*(part.below for part in parts)))


def unsqueeze_range(at: Asked, node: ir.Node) -> ValueRange:
    """With more axes."""
    x, info = at.of(node.inputs[0]), describe(node.inputs[0])  # type: ignore[arg-type]
    given = node.attributes.get("axes")
    axes = given.as_ints() if given is not None else constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if axes is None or info.shape is None or x.low.ndim != len(info.shape) or x.low.size > DETAIL:
        return x.hull
    rank = len(info.shape) + len(list(axes))
    places = tuple(int(axis) % rank for axis in np.asarray(axes).reshape(-1))
    return ValueRange(np.expand_dims(x.low, places), np.expand_dims(x.high, places), x.below)


def gather_range(at: Asked, node: ir.Node) -> ValueRange:
    """What is gathered at constant places keeps the ranges of these."""
    x, info, index = at.of(node.inputs[0]), describe(node.inputs[0]), constant_of(node.inputs[1])  # type: ignore[arg-type]
    if index is None or info.shape is None or x.low.ndim != len(info.shape):
        return x.hull
    axis = node.attributes.get_int("axis", 0) % max(1, x.low.ndim)
    if x.low.shape[axis] == 1 or index.size > DETAIL:
        return x.hull if index.ndim != 1 else x
    places = index.astype(np.int64)
    if places.size and (places.min() < -x.low.shape[axis] or places.max() >= x.low.shape[axis]):
        return x.hull
    return ValueRange(np.take(x.low, places, axis), np.take(x.high, places, axis), x.below)


def slice_range(at: Asked, node: ir.Node) -> ValueRange:
    """What is sliced at constant places keeps the ranges of these."""
    x, info = at.of(node.inputs[0]), describe(node.inputs[0])  # type: ignore[arg-type]
    given = [constant_of(value) if value is not None else None for value in node.inputs[1:]]
    if (
        len(given) < 2
        or any(argument is None for argument in given)
        or info.shape is None
        or x.low.ndim != len(info.shape)
    ):
        return x.hull
    starts, ends = given[0], given[1]
    axes = given[2] if len(given) > 2 else np.arange(len(starts))  # type: ignore[arg-type]
    steps = given[3] if len(given) > 3 else np.ones(len(starts), np.int64)  # type: ignore[arg-type]
    low, high = x.low, x.high
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):  # type: ignore[arg-type]
        axis = int(axis) % max(1, low.ndim)
        if low.shape[axis] == 1:
            continue
        if step <= 0:
            return x.hull
        part = (slice(None),) * axis + (slice(int(start), int(end), int(step)),)
        low, high = low[part], high[part]
    return ValueRange(low, high, x.below) if low.size else x.hull
