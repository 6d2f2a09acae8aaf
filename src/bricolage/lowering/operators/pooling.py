"""Pooling by index tables: any number of axes, dilations, ceil mode and padding rule, at the price of a gather.

Libraries override the cases they have a kernel for; this is the definition the rest falls back on.
"""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, operator
from bricolage.lowering.window_indices import PoolAttributes, WindowTable, combine_masks, resolve_windows, window_table

Ints = tuple[int, ...]


def tables_for(x: Array, attributes: PoolAttributes) -> list[WindowTable]:
    """Of each spatial axis."""
    sizes, kernel, ceil = [int(d) for d in x.shape[2:]], attributes["kernel_shape"], bool(attributes.get("ceil_mode"))
    steps = resolve_windows(sizes, kernel, attributes)
    axes = zip(sizes, kernel, steps.strides, steps.dilations, steps.pads, strict=True)
    return [window_table(*axis, ceil) for axis in axes]


def windows_of(xp: Arrays, x: Array, tables: list[WindowTable]) -> Array:
    """[n, c, o1, o2, ..., k1 * k2 * ...]: every window laid out along the last axis."""
    dims = len(tables)
    for axis, table in enumerate(tables):
        x = xp.take(x, table.index.reshape(-1), axis + 2)
    shape = list(x.shape[:2])
    for table in tables:
        shape += list(table.index.shape)
    x = xp.reshape(x, shape)
    outer = [2 + 2 * i for i in range(dims)]
    x = xp.transpose(x, (0, 1, *outer, *[o + 1 for o in outer]))
    return xp.reshape(x, (*x.shape[: 2 + dims], math.prod(x.shape[2 + dims :])))


def mask_of(masks: list[np.ndarray]) -> np.ndarray:
    mask = combine_masks(masks)
    return mask.reshape((*mask.shape[: len(masks)], -1))


def flat_indices(tables: list[WindowTable], sizes: list[int], column_major: bool) -> np.ndarray:
    """[o1, o2, ..., taps]: position of each tap in the flattened spatial axes."""
    dims = len(tables)
    strides = [math.prod(sizes[:i]) if column_major else math.prod(sizes[i + 1 :]) for i in range(dims)]
    total: np.ndarray = np.zeros((1,) * (2 * dims), np.int64)
    for axis, table in enumerate(tables):
        view = [1] * (2 * dims)
        view[axis], view[axis + dims] = table.index.shape
        total = total + (table.index * strides[axis]).reshape(view)
    return total.reshape((*total.shape[:dims], -1))


@operator("MaxPool")
def max_pool(
    xp: Arrays, x: Array, *, storage_order: int = 0, _outputs: int = 1, **attributes: Unpack[PoolAttributes]
) -> Results:
    tables = tables_for(x, attributes)
    inside = xp.constant(mask_of([t.inside for t in tables]), x)
    windows = xp.where(inside, windows_of(xp, x, tables), xp.full((), xp.lowest(x.dtype), x.dtype, x))
    last = windows.ndim - 1
    y = xp.max(windows, (last,))
    if _outputs == 1:
        return y
    sizes = [int(d) for d in x.shape[2:]]
    positions = xp.constant(flat_indices(tables, sizes, bool(storage_order)), x)
    chosen = xp.argmax(windows, last, True)
    inner = xp.take_along(xp.broadcast_to(positions, windows.shape), chosen, last).reshape(tuple(y.shape))
    planes = xp.constant(np.arange(x.shape[0] * x.shape[1]).reshape((x.shape[0], x.shape[1]) + (1,) * len(sizes)), x)
    return y, inner + planes * math.prod(sizes)


@operator("AveragePool")
def average_pool(xp: Arrays, x: Array, *, count_include_pad: int = 0, **attributes: Unpack[PoolAttributes]) -> Array:
    tables = tables_for(x, attributes)
    inside = mask_of([t.inside for t in tables])
    counted = mask_of([t.padded for t in tables]) if count_include_pad else inside
    windows = xp.where(xp.constant(inside, x), windows_of(xp, x, tables), 0)
    count = xp.astype(xp.constant(counted.sum(-1), x), x.dtype)
    return xp.sum(windows, (windows.ndim - 1,)) / count


@operator("LpPool")
def lp_pool(xp: Arrays, x: Array, *, p: int = 2, **attributes: Unpack[PoolAttributes]) -> Array:
    tables = tables_for(x, attributes)
    inside = xp.constant(mask_of([t.inside for t in tables]), x)
    windows = xp.where(inside, abs(windows_of(xp, x, tables)), 0)
    return xp.sum(windows**p, (windows.ndim - 1,)) ** (1.0 / p)


def _spatial(x: Array) -> Ints:
    return tuple(range(2, x.ndim))


@operator("GlobalAveragePool")
def global_average_pool(xp: Arrays, x: Array) -> Array:
    return xp.mean(x, _spatial(x), True)


@operator("GlobalMaxPool")
def global_max_pool(xp: Arrays, x: Array) -> Array:
    return xp.max(x, _spatial(x), True)


@operator("GlobalLpPool", since=2)
def global_lp_pool(xp: Arrays, x: Array, *, p: int = 2) -> Array:
    return xp.sum(abs(x) ** p, _spatial(x), True) ** (1.0 / p)


@operator("MaxUnpool", since=9, host=("output_shape",))
def max_unpool(
    xp: Arrays,
    x: Array,
    indices: Array,
    output_shape: Ints | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Put each value where MaxPool's index says; the index counts in the shape that the pooling implies."""
    dims = x.ndim - 2
    strides = strides or (1,) * dims
    pads = pads or (0,) * (2 * dims)
    implied = tuple(x.shape[:2]) + tuple(
        (x.shape[i + 2] - 1) * strides[i] - pads[i] - pads[i + dims] + kernel_shape[i] for i in range(dims)
    )
    flat = xp.full((math.prod(implied),), 0, x.dtype, x)
    y = xp.scatter(flat, (indices.reshape((-1,)),), x.reshape((-1,)), "none").reshape(implied)
    if output_shape is None:
        return y
    return xp.pad(y, [(0, wanted - have) for wanted, have in zip(output_shape, implied, strict=True)], 0)
