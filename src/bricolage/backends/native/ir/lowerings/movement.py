"""Rules of operators that only move data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.backends.native.ir.lowerings.context import Call, NoRule, axis_of, rule
from bricolage.backends.native.ir.lowerings.views import broadcast, pad, reshape, take, transpose
from bricolage.backends.native.ir.tensors import Assembly, Constant, Gather, Node
from bricolage.lowering.operators.movement import pad_indices


@rule("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshaped(call: Call) -> Node:
    return reshape(call.tensor(0), call.shape)


@rule("Transpose")
def transposed(call: Call) -> Node:
    x = call.tensor(0)
    return transpose(x, call.get("perm") or tuple(reversed(range(len(x.shape)))))


@rule("Expand")
def expand(call: Call) -> Node:
    return broadcast(call.tensor(0), call.shape)


@rule("Slice")
def sliced(call: Call) -> Node:
    x = call.tensor(0)
    rank = len(x.shape)
    if call.opset < 10:
        starts, axes, steps = call.get("starts"), call.get("axes"), None
    else:
        starts, axes, steps = call.numbers(1), call.numbers(3), call.numbers(4)
    if starts is None:
        raise NoRule("Slice without starts")
    axes = list(axes) if axes is not None else list(range(len(starts)))
    steps = steps or [1] * len(starts)
    begin, step = [0] * rank, [1] * rank
    for start, axis, by in zip(starts, axes, steps, strict=True):
        extent = x.shape[axis]
        begin[axis] = slice(start, None, by).indices(extent)[0]
        step[axis] = by
    return take(x, begin, step, call.shape)


@rule("Split")
def split(call: Call) -> tuple[Node, ...]:
    x = call.tensor(0)
    axis = axis_of(call, len(x.shape), 0)
    parts: list[Node] = []
    start = 0
    for shape in call.shapes:
        begin = [start if i == axis else 0 for i in range(len(shape))]
        parts.append(take(x, begin, [1] * len(shape), shape))
        start += shape[axis]
    return tuple(parts)


@rule("Concat")
def concat(call: Call) -> Node:
    return joined([call.tensor(i) for i in range(len(call.inputs))], axis_of(call, len(call.shape), 0))


def joined(parts: Sequence[Node], axis: int) -> Node:
    """Parts one behind the other along `axis`."""
    if len(parts) == 1:
        return parts[0]
    starts: list[tuple[int, ...]] = []
    extent = 0
    for part in parts:
        starts.append(tuple(extent if i == axis else 0 for i in range(len(part.shape))))
        extent += part.shape[axis]
    first = parts[0]
    shape = (*first.shape[:axis], extent, *first.shape[axis + 1 :])
    return Assembly(shape, first.dtype, tuple(parts), tuple(starts), (1,) * len(shape))


@rule("Pad")
def padded(call: Call) -> Node:
    x, rank = call.tensor(0), len(call.shape)
    mode = call.get("mode", "constant")
    pads = call.get("pads") if call.opset < 11 else call.numbers(1)
    fill = call.get("value", 0.0) if call.opset < 11 else call.scalar(2, 0.0)
    axes = call.numbers(3) if call.opset >= 18 else None
    if pads is None:
        raise NoRule("Pad without pads")
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
    return pad(x, [max(a, 0) for a in before], call.shape, fill)


@rule("Gather")
def gathered(call: Call) -> Node:
    x, indices = call.tensor(0), call.tensor(1)
    return Gather(call.shape, x.dtype, x, indices, axis_of(call, len(x.shape), 0))


@rule("DepthToSpace")
def depth_to_space(call: Call) -> Node:
    x, block = call.tensor(0), int(call.get("blocksize"))
    n, c, h, w = x.shape
    if call.get("mode", "DCR") == "DCR":
        inner, perm = (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)
    else:
        inner, perm = (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return reshape(transpose(reshape(x, inner), perm), call.shape)
