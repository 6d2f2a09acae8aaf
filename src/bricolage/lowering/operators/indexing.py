# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Gathering, scattering, and choosing by value."""

from __future__ import annotations

import math

import numpy as np

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, front_axis, operator


def wrap(xp: Arrays, indices: Array, size: Array) -> Array:
    """Negative indices count from the end."""
    if xp.kind(indices) == "u":
        return indices
    return xp.where(indices < 0, indices + size, indices)


def grid_indices(xp: Arrays, shape: tuple[int, ...], like: Array) -> list[Array]:
    """For each axis the coordinate of every element of `shape`, ready to broadcast."""
    coordinates = []
    for axis, size in enumerate(shape):
        view = [1] * len(shape)
        view[axis] = size
        coordinates.append(xp.arange(0, size, 1, like.dtype).reshape(tuple(view)))
    return coordinates


@operator("Gather")
def gather(xp: Arrays, x: Array, indices: Array, *, axis: int = 0) -> Array:
    axis = front_axis(x.ndim, axis)
    return xp.take(x, wrap(xp, indices, x.shape[axis]), axis)


@operator("GatherElements", since=11)
def gather_elements(xp: Arrays, x: Array, indices: Array, *, axis: int = 0) -> Array:
    axis = front_axis(x.ndim, axis)
    return xp.take_along(x, wrap(xp, indices, x.shape[axis]), axis)


@operator("GatherND", since=11)
def gather_nd(xp: Arrays, x: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    depth = indices.shape[-1]
    leading = tuple(indices.shape[:-1])
    coordinates = grid_indices(xp, leading, indices)[:batch_dims]
    for k in range(depth):
        coordinates.append(wrap(xp, indices[..., k], x.shape[batch_dims + k]))
    return xp.index(x, tuple(coordinates))


def scatter_elements(xp: Arrays, x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    axis = front_axis(x.ndim, axis)
    coordinates = grid_indices(xp, tuple(indices.shape), indices)
    coordinates[axis] = wrap(xp, indices, x.shape[axis])
    return xp.scatter(x, tuple(xp.broadcast_to(c, indices.shape) for c in coordinates), updates, reduction)


@operator("ScatterElements", since=11)
def scatter_elements_(
    xp: Arrays, x: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    return scatter_elements(xp, x, indices, updates, axis, reduction)


@operator("Scatter", since=9, until=10)
def scatter(xp: Arrays, x: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    return scatter_elements(xp, x, indices, updates, axis, "none")


@operator("ScatterND", since=11)
def scatter_nd(xp: Arrays, x: Array, indices: Array, updates: Array, *, reduction: str = "none") -> Array:
    coordinates = tuple(wrap(xp, indices[..., k], x.shape[k]) for k in range(indices.shape[-1]))
    return xp.scatter(x, coordinates, updates, reduction)


@operator("TensorScatter", since=24)
def tensor_scatter(
    xp: Arrays, cache: Array, update: Array, starts: Array = None, *, mode: str = "linear", axis: int = -2
) -> Array:
    """Write `update` into `cache` along `axis`, batch entry b from position `starts[b]` on."""
    axis = front_axis(cache.ndim, axis)
    if starts is None:
        starts = xp.constant(np.zeros(cache.shape[0], np.int64), cache)
    coordinates = grid_indices(xp, tuple(update.shape), starts)
    position = coordinates[axis] + starts.reshape((-1,) + (1,) * (update.ndim - 1))
    coordinates[axis] = position % cache.shape[axis] if mode == "circular" else position
    return xp.scatter(cache, tuple(xp.broadcast_to(c, update.shape) for c in coordinates), update, "none")


@operator("OneHot", since=9, host=("depth",))
def one_hot(xp: Arrays, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """`values` holds (off, on); indices outside [-depth, depth) give an all-off row."""
    count = int(depth[0] if isinstance(depth, tuple) else depth)
    rank = indices.ndim + 1
    axis = front_axis(rank, axis)
    view = [1] * rank
    view[axis] = count
    where = wrap(xp, indices, count).reshape((*indices.shape[:axis], 1, *indices.shape[axis:]))
    classes = xp.arange(0, count, 1, indices.dtype).reshape(tuple(view))
    return xp.where(where == classes, values[1], values[0])


@operator("TopK", since=10, host=("k",))
def top_k(xp: Arrays, x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Results:
    return xp.topk(x, int(k[0] if isinstance(k, tuple) else k), front_axis(x.ndim, axis), bool(largest))


@operator("TopK", until=9)
def top_k_attribute(xp: Arrays, x: Array, *, k: int, axis: int = -1) -> Results:
    return xp.topk(x, k, front_axis(x.ndim, axis), True)


@operator("NonZero", since=9, data_dependent="the number of non-zero elements depends on the data")
def non_zero(xp: Arrays, x: Array) -> Array:
    return xp.nonzero(x)


@operator("Compress", since=9, data_dependent="the number of chosen elements depends on the data")
def compress(xp: Arrays, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    if axis is None:
        x, axis = x.reshape((math.prod(x.shape),)), 0
    return xp.take(x, xp.nonzero(condition)[0], front_axis(x.ndim, axis))
