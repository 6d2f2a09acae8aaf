"""Lowerings of operators that only move data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.graph.extents import slice_bounds
from bricolage.lowering.operators.movement import pad_indices
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, axis_of, lowering
from bricolage.native.ir.lowerings.views import broadcast_node, pad, reshape, take, transpose
from bricolage.native.ir.tensors import ConcatBuffer, Constant, Gather, Node


@lowering("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def lower_reshape(op: OpContext) -> Node:
    """The same elements, in row-major order, in the shape of the output."""
    return reshape(op.tensor(0), op.shape)


@lowering("Transpose")
def lower_transpose(op: OpContext) -> Node:
    """Transpose; without `perm`, all dimensions reversed."""
    x = op.tensor(0)
    return transpose(x, op.get("perm") or tuple(reversed(range(len(x.shape)))))


@lowering("Expand")
def expand(op: OpContext) -> Node:
    """Expand: broadcast to the shape of the output."""
    return broadcast_node(op.tensor(0), op.shape)


@lowering("Slice")
def lower_slice(op: OpContext) -> Node:
    """Slice, with constant bounds."""
    x = op.tensor(0)
    if op.opset < 10:
        starts, ends, axes, steps = op.get("starts"), op.get("ends"), op.get("axes"), None
    else:
        starts, ends, axes, steps = op.numbers(1), op.numbers(2), op.numbers(3), op.numbers(4)
    if starts is None or ends is None:
        raise NoLowering("Slice without starts or ends")
    axes = list(axes) if axes is not None else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    if 0 in steps or len({len(starts), len(ends), len(axes), len(steps)}) > 1:
        raise NoLowering("Slice with bounds that do not belong together")
    kept = [range(extent) for extent in x.shape]
    for start, end, axis, by in zip(starts, ends, axes, steps, strict=True):
        extent = x.shape[axis]
        low, high = slice_bounds(start, end, by, extent)
        kept[axis] = range(extent)[low:high:by]
    return take(x, [r.start for r in kept], [r.step for r in kept], tuple(map(len, kept)))


@lowering("Split")
def split(op: OpContext) -> tuple[Node, ...]:
    """Split into parts of the outputs' shapes along `axis`."""
    x = op.tensor(0)
    axis = axis_of(op, len(x.shape), 0)
    parts: list[Node] = []
    start = 0
    for shape in op.shapes:
        begin = [start if i == axis else 0 for i in range(len(shape))]
        parts.append(take(x, begin, [1] * len(shape), (*x.shape[:axis], shape[axis], *x.shape[axis + 1 :])))
        start += shape[axis]
    if start != x.shape[axis]:
        raise NoLowering(f"Split of {x.shape[axis]} into {start}")
    return tuple(parts)


@lowering("Concat")
def concat(op: OpContext) -> Node:
    """Concat along `axis`."""
    return join_parts([op.tensor(i) for i in range(len(op.inputs))], axis_of(op, len(op.shape), 0))


def join_parts(parts: Sequence[Node], axis: int) -> Node:
    """Parts one behind the other along `axis`."""
    full = [part for part in parts if part.elements]
    parts = full or parts[:1]
    if len(parts) == 1:
        return parts[0]
    starts: list[tuple[int, ...]] = []
    extent = 0
    for part in parts:
        starts.append(tuple(extent if i == axis else 0 for i in range(len(part.shape))))
        extent += part.shape[axis]
    first = parts[0]
    if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1:
        raise NoLowering("Concat of parts that do not fit")
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
    return ConcatBuffer(shape, first.dtype, tuple(parts), tuple(starts), (1,) * len(shape))


@lowering("Pad")
def lower_pad(op: OpContext) -> Node:
    """Pad: constant as a guarded view, the other modes as gathers; negative pads cut."""
    x, rank = op.tensor(0), len(op.shape)
    mode = op.get("mode", "constant")
    pads = op.get("pads") if op.opset < 11 else op.numbers(1)
    fill = op.get("value", 0.0) if op.opset < 11 else op.scalar(2, 0.0)
    axes = op.numbers(3) if op.opset >= 18 else None
    if pads is None:
        raise NoLowering("Pad without pads")
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    widths = dict(zip(axes, zip(pads[: len(axes)], pads[len(axes) :], strict=True), strict=True))
    if mode != "constant":
        for axis, (before, behind) in widths.items():
            if before or behind:
                index = pad_indices(x.shape[axis], before, behind, mode)
                shape = (*x.shape[:axis], len(index), *x.shape[axis + 1 :])
                x = Gather(shape, x.dtype, x, Constant((len(index),), "int64", index.astype(np.int64)), axis)
        return x
    before = [widths.get(axis, (0, 0))[0] for axis in range(rank)]
    behind = [widths.get(axis, (0, 0))[1] for axis in range(rank)]
    kept = tuple(size + min(a, 0) + min(b, 0) for size, a, b in zip(x.shape, before, behind, strict=True))
    x = take(x, [max(-a, 0) for a in before], [1] * rank, kept)
    shape = tuple(size + max(a, 0) + max(b, 0) for size, a, b in zip(x.shape, before, behind, strict=True))
    return pad(x, [max(a, 0) for a in before], shape, fill)


@lowering("Gather")
def lower_gather(op: OpContext) -> Node:
    """Gather along `axis`."""
    x, indices = op.tensor(0), op.tensor(1)
    axis = axis_of(op, len(x.shape), 0)
    return Gather((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), x.dtype, x, indices, axis)


@lowering("DepthToSpace")
def depth_to_space(op: OpContext) -> Node:
    """DepthToSpace of [n, c, h, w] in either mode."""
    x, block = op.tensor(0), int(op.get("blocksize"))
    n, c, h, w = x.shape
    if op.get("mode", "DCR") == "DCR":
        inner, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        inner, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return reshape(transpose(reshape(x, inner), perm), op.shape)
