"""Movement operators as single ATen calls with static arguments, or as views."""

from __future__ import annotations

import operator as py

import torch

from bricolage.lowering.common import normalise_axes
from bricolage.lowering.operators.movement import even_split
from bricolage.lowering.torch.fused import NodeView, emitter
from bricolage.lowering.torch.known_values import Emitted, Size
from bricolage.lowering.torch.sizes import known_sizes


@emitter("Reshape")
def reshape(v: NodeView) -> Emitted | None:
    shape = v.sizes(1)
    if shape is None:
        return None
    x = v.tensor(0)
    if x is not None and not v.get("allowzero", 0):
        input_shape = v.shape(0)
        shape = tuple(
            (input_shape[i] if input_shape else v.builder.size(x, i)) if isinstance(d, int) and d == 0 else d
            for i, d in enumerate(shape)
        )
    return v.call(torch.reshape, x, shape)


@emitter("Flatten")
def flatten(v: NodeView) -> Emitted | None:
    rank = v.rank(0)
    axis = v.axis(1, rank)
    if rank is None or axis is None or not 0 < axis < rank:
        return None
    x = v.tensor(0)
    if axis > 1:
        x = v.call(torch.flatten, x, 0, axis - 1)
    return v.call(torch.flatten, x, 1, -1)


@emitter("Transpose")
def transpose(v: NodeView) -> Emitted | None:
    perm, rank = v.get("perm"), v.rank(0)
    if perm is None:
        if rank is None:
            return None
        perm = tuple(reversed(range(rank)))
    x = v.tensor(0)
    if len(perm) < 4 or perm[-2] < perm[-1]:
        return v.call(torch.permute, x, tuple(perm))
    # Inductor's attention patterns look for the transpose of a key alone and take any permutation of rank 4 for one.
    return v.call(torch.transpose, v.call(torch.permute, x, (*perm[:-2], perm[-1], perm[-2])), -2, -1)


def _axes(v: NodeView) -> tuple[int, ...] | None:
    """None where they are not given, or follow from data."""
    if v.opset < 13:
        axes: tuple[int, ...] | None = v.get("axes")
        return axes
    sizes = v.sizes(1)
    return None if sizes is None else known_sizes(sizes)


@emitter("Squeeze")
def squeeze(v: NodeView) -> Emitted | None:
    axes = _axes(v)
    return None if axes is None else v.call(torch.squeeze, v.tensor(0), tuple(axes))


@emitter("Unsqueeze")
def unsqueeze(v: NodeView) -> Emitted | None:
    axes, rank = _axes(v), v.rank(0)
    if axes is None or (rank is None and (len(axes) > 1 or axes[0] < 0)):
        return None
    x = v.tensor(0)
    for axis in sorted(normalise_axes(axes, (rank or 0) + len(axes))) if rank is not None else axes:
        x = v.call(torch.unsqueeze, x, axis)
    return x


@emitter("Concat")
def concat(v: NodeView) -> Emitted | None:
    return v.call(torch.cat, [v.tensor(i) for i in range(len(v.inputs))], v.get("axis"))


@emitter("Split")
def split(v: NodeView) -> Emitted | None:
    axis, shape = v.get("axis", 0), v.shape(0)
    sizes = v.get("split") if v.opset < 13 else v.sizes(1)
    if sizes is None:
        if shape is None or v.given(1):
            return None
        sizes = even_split(shape[axis], v.get("num_outputs") or len(v.node.outputs))
    parts = v.call(torch.split, v.tensor(0), list(sizes), axis)
    return tuple(v.call(py.getitem, parts, i) for i in range(len(v.node.outputs)))


@emitter("Slice")
def slice_(v: NodeView) -> Emitted | None:
    if v.opset < 10:
        starts, ends, axes = v.get("starts"), v.get("ends"), v.get("axes")
        steps: tuple[Size, ...] | None = None
    else:
        starts, ends = v.sizes(1), v.sizes(2)
        axes = v.sizes(3) if v.given(3) else None
        steps = v.sizes(4) if v.given(4) else None
        if starts is None or ends is None or (v.given(3) and axes is None) or (v.given(4) and steps is None):
            return None
    steps = steps or (1,) * len(starts)
    if any(not isinstance(s, int) or s <= 0 for s in steps):
        return None
    if axes is not None and any(not isinstance(a, int) for a in axes):
        return None
    x = v.tensor(0)
    for start, stop, axis, step in zip(starts, ends, axes or range(len(starts)), steps, strict=True):
        x = v.call(torch.ops.aten.slice.Tensor, x, axis, start, stop, step)
    return x


@emitter("Gather")
def gather(v: NodeView) -> Emitted | None:
    index, axis = v.const(1), v.axis(0, v.rank(0))
    if axis is None:
        return None
    if index is not None and index.ndim == 0:
        return v.call(torch.select, v.tensor(0), axis, int(index))
    # Indexing counts negative indices from the end, as Gather does.
    picked = (slice(None),) * axis + (v.tensor(1),)
    return v.call(py.getitem, v.tensor(0), picked)


@emitter("Expand")
def expand(v: NodeView) -> Emitted | None:
    """A view when the target's rank covers the input's; -1 keeps the input's size."""
    target, have = v.sizes(1), v.shape(0)
    if target is None or have is None or len(target) < len(have):
        return None
    offset = len(target) - len(have)
    sizes = tuple(
        -1 if i >= offset and (have[i - offset] != 1 or (isinstance(d, int) and d == 1)) else d
        for i, d in enumerate(target)
    )
    return v.builder.method("expand", v.tensor(0), sizes)


@emitter("Pad")
def pad(v: NodeView) -> Emitted | None:
    if v.opset < 11 or v.get("mode", "constant") != "constant" or v.given(3):
        return None
    pads = v.sizes(1)
    if pads is None or not all(isinstance(p, int) for p in pads):
        return None
    value = v.const(2)
    if v.given(2) and value is None:
        return None
    half = len(pads) // 2
    flat = [n for i in reversed(range(half)) for n in (pads[i], pads[i + half])]
    return v.call(torch.constant_pad_nd, v.tensor(0), flat, 0 if value is None else value.reshape(()).item())
