"""Operators that only move, repeat or make elements: shapes, slices, pads, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bricolage.graph.extents import slice_bounds
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, broadcast_shape, front_axis, normalise_axes, operator

Ints = tuple[int, ...]


@operator("Reshape", since=5, host=("shape",))
def reshape(xp: Arrays, x: Array, shape: Ints, *, allowzero: int = 0) -> Array:
    """0 copies the input's size unless `allowzero`; -1 is inferred by the library."""
    if not allowzero:
        shape = tuple(x.shape[i] if d == 0 else d for i, d in enumerate(shape))
    return xp.reshape(x, shape)


@operator("Flatten", since=1)
def flatten(xp: Arrays, x: Array, *, axis: int = 1) -> Array:
    axis = axis + x.ndim if axis < 0 else axis
    return xp.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


@operator("Transpose")
def transpose(xp: Arrays, x: Array, *, perm: Ints | None = None) -> Array:
    return xp.transpose(x, tuple(reversed(range(x.ndim))) if perm is None else perm)


@operator("Squeeze", since=13, host=("axes",))
def squeeze(xp: Arrays, x: Array, axes: Ints | None = None) -> Array:
    if axes is None:
        return xp.reshape(x, tuple(d for d in x.shape if d != 1))
    dropped = set(normalise_axes(axes, x.ndim))
    return xp.reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in dropped))


@operator("Squeeze", until=12)
def squeeze_attribute(xp: Arrays, x: Array, *, axes: Ints | None = None) -> Array:
    return squeeze(xp, x, axes)


@operator("Unsqueeze", since=13, host=("axes",))
def unsqueeze(xp: Arrays, x: Array, axes: Ints | int) -> Array:
    axes = (axes,) if isinstance(axes, int) else axes
    rank = x.ndim + len(axes)
    added = set(normalise_axes(axes, rank))
    sizes = iter(x.shape)
    return xp.reshape(x, tuple(1 if i in added else next(sizes) for i in range(rank)))


@operator("Unsqueeze", until=12)
def unsqueeze_attribute(xp: Arrays, x: Array, *, axes: Ints) -> Array:
    return unsqueeze(xp, x, axes)


@operator("Concat", since=4)
def concat(xp: Arrays, *xs: Array, axis: int) -> Array:
    return xp.concat(xs, axis)


def _split(xp: Arrays, x: Array, sizes: Sequence[int], axis: int) -> tuple[Array, ...]:
    parts = []
    start = 0
    for size in sizes:
        parts.append(xp.slice_axis(x, axis, start, start + size, 1))
        start += size
    return tuple(parts)


def even_split(total: int, parts: int) -> Ints:
    """Sizes of `parts` chunks of `total`; the last one may be smaller."""
    chunk = -(-total // parts)
    return tuple(min(chunk, max(total - i * chunk, 0)) for i in range(parts))


@operator("Split", since=13, host=("split",))
def split(
    xp: Arrays, x: Array, split: Ints | None = None, *, axis: int = 0, num_outputs: int | None = None, _outputs: int = 1
) -> Results:
    axis = front_axis(x.ndim, axis)
    return _split(xp, x, split or even_split(x.shape[axis], num_outputs or _outputs), axis)


@operator("Split", since=2, until=12)
def split_attribute(xp: Arrays, x: Array, *, axis: int = 0, split: Ints | None = None, _outputs: int = 1) -> Results:
    axis = front_axis(x.ndim, axis)
    return _split(xp, x, split or even_split(x.shape[axis], _outputs), axis)


@operator("Slice", since=10, host=("starts", "ends", "axes", "steps"))
def slice_(
    xp: Arrays, x: Array, starts: Ints, ends: Ints, axes: Ints | None = None, steps: Ints | None = None
) -> Array:
    axes = tuple(range(len(starts))) if axes is None else normalise_axes(axes, x.ndim)
    for start, stop, axis, step in zip(starts, ends, axes, steps or (1,) * len(starts), strict=True):
        low, high = slice_bounds(start, stop, step, x.shape[axis])
        if step < 0 and low < 0:
            low, high = 0, 0  # nothing is left
            step = 1
        x = xp.slice_axis(x, axis, low, high, step)
    return x


@operator("Slice", until=9)
def slice_attribute(xp: Arrays, x: Array, *, starts: Ints, ends: Ints, axes: Ints | None = None) -> Array:
    return slice_(xp, x, starts, ends, axes)


@operator("Expand", since=8, host=("shape",))
def expand(xp: Arrays, x: Array, shape: Ints) -> Array:
    return xp.broadcast_to(x, broadcast_shape(tuple(x.shape), shape))


@operator("Tile", since=6, host=("repeats",))
def tile(xp: Arrays, x: Array, repeats: Ints) -> Array:
    return xp.tile(x, repeats)


# --- padding -----------------------------------------------------------------------------------------------------


def pad_indices(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Which element of an axis stands at each place of the padded axis; negative pads crop first.

    The index map is that of `numpy.pad` with the same mode.
    """
    kept = np.arange(size)[max(-before, 0) : size - max(-after, 0)]
    widths = (max(before, 0), max(after, 0))
    return np.pad(kept, widths, mode=mode)  # type: ignore[no-any-return, call-overload]


def _pad(xp: Arrays, x: Array, pads: Ints, mode: str, value: Array, axes: Ints | None) -> Array:
    chosen = normalise_axes(axes, x.ndim)
    widths = [(0, 0)] * x.ndim
    for position, axis in enumerate(chosen):
        widths[axis] = (pads[position], pads[position + len(chosen)])
    if mode == "constant":
        for axis, (before, after) in enumerate(widths):
            if before < 0 or after < 0:
                x = xp.slice_axis(x, axis, max(-before, 0), x.shape[axis] - max(-after, 0), 1)
        return xp.pad(x, [(max(b, 0), max(a, 0)) for b, a in widths], value)
    for axis, (before, after) in enumerate(widths):
        if before or after:
            x = xp.take(x, pad_indices(int(x.shape[axis]), before, after, mode), axis)
    return x


@operator("Pad", since=11, host=("pads", "value", "axes"))
def pad(
    xp: Arrays, x: Array, pads: Ints, value: Array = None, axes: Ints | None = None, *, mode: str = "constant"
) -> Array:
    filler = value[0] if isinstance(value, tuple) else value
    return _pad(xp, x, pads, mode, 0 if filler is None else filler, axes)


@operator("Pad", since=2, until=10)
def pad_attribute(xp: Arrays, x: Array, *, pads: Ints, mode: str = "constant", value: float = 0.0) -> Array:
    return _pad(xp, x, pads, mode, value, None)


@operator("CenterCropPad", since=18, host=("shape",))
def center_crop_pad(xp: Arrays, x: Array, shape: Ints, *, axes: Ints | None = None) -> Array:
    """Crop or zero-pad each axis around its centre to the wanted size."""
    for axis, wanted in zip(normalise_axes(axes, x.ndim), shape, strict=True):
        size = x.shape[axis]
        if wanted < size:
            start = (size - wanted) // 2
            x = xp.slice_axis(x, axis, start, start + wanted, 1)
        elif wanted > size:
            before = (wanted - size) // 2
            x = xp.pad(x, [(before, wanted - size - before) if i == axis else (0, 0) for i in range(x.ndim)], 0)
    return x


@operator("DepthToSpace")
def depth_to_space(xp: Arrays, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        x = xp.transpose(x.reshape((n, b, b, c // (b * b), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        x = xp.transpose(x.reshape((n, c // (b * b), b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return x.reshape((n, c // (b * b), h * b, w * b))


@operator("SpaceToDepth")
def space_to_depth(xp: Arrays, x: Array, *, blocksize: int, mode: str = "DCR") -> Array:
    n, c, h, w = x.shape
    b = blocksize
    perm = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    x = xp.transpose(x.reshape((n, c, h // b, b, w // b, b)), perm)
    return x.reshape((n, c * b * b, h // b, w // b))


# --- shapes and constants ----------------------------------------------------------------------------------------


@operator("Shape")
def shape_(xp: Arrays, x: Array, *, start: int = 0, end: int | None = None) -> Array:
    return xp.constant(np.asarray(tuple(x.shape)[start:end], np.int64))


@operator("Size")
def size(xp: Arrays, x: Array) -> Array:
    return xp.constant(np.asarray(math.prod(x.shape), np.int64))


@operator("ConstantOfShape", since=9, host=("shape",))
def constant_of_shape(xp: Arrays, shape: Ints, *, value: np.ndarray | None = None) -> Array:
    filler = np.zeros(1, np.float32) if value is None else value
    return xp.broadcast_to(xp.constant(filler).reshape(()), shape)


@operator("Range", since=11, host=("start", "limit", "delta"))
def range_(xp: Arrays, start: Array, limit: Array, delta: Array, *, _types: tuple[int | None, ...] = ()) -> Array:
    start, limit, delta = (v[0] if isinstance(v, tuple) else v for v in (start, limit, delta))
    kind = next((t for t in _types if t is not None), 7 if isinstance(start, int) else 1)
    count = max(math.ceil((limit - start) / delta), 0)
    return xp.astype(xp.arange(0, count, 1, xp.dtype(kind)) * delta + start, xp.dtype(kind))


@operator("EyeLike", since=9)
def eye_like(xp: Arrays, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    kind = x.dtype if dtype is None else xp.dtype(dtype)
    rows, columns = x.shape
    return xp.astype(xp.constant(np.eye(rows, columns, k, dtype=np.float32), x), kind)


@operator("Trilu", since=14, host=("k",))
def trilu(xp: Arrays, x: Array, k: Array = 0, *, upper: int = 1) -> Array:
    k = k[0] if isinstance(k, tuple) else k or 0
    return xp.triu(x, k) if upper else xp.tril(x, k)


@operator("ReverseSequence", since=10)
def reverse_sequence(xp: Arrays, x: Array, lengths: Array, *, batch_axis: int = 1, time_axis: int = 0) -> Array:
    """Reverse the first `lengths[b]` steps of each batch entry."""
    steps = x.shape[time_axis]
    positions = xp.arange(0, steps, 1, lengths.dtype)
    column = lengths.reshape((-1, 1))
    source = xp.where(positions < column, column - 1 - positions, positions)
    if time_axis < batch_axis:
        source = xp.transpose(source, (1, 0))
    view = [1] * x.ndim
    view[time_axis], view[batch_axis] = x.shape[time_axis], x.shape[batch_axis]
    return xp.take_along(x, xp.broadcast_to(source.reshape(tuple(view)), x.shape), time_axis)
