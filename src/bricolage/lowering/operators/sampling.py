"""Sampling at computed positions: GridSample, AffineGrid, RoiAlign, Col2Im."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx_ir as ir

from bricolage.graph.extents import pairs
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, operator

Ints = tuple[int, ...]


def _reflect(xp: Arrays, x: Array, low: float, high: float) -> Array:
    """Fold positions back into [low, high]."""
    span = high - low
    if span <= 0:
        return x * 0
    turned = abs(x - low) % (2 * span)
    return xp.where(turned > span, 2 * span - turned, turned) + low


def _apply_padding(xp: Arrays, x: Array, size: int, padding: str, align: int) -> Array:
    """Positions after the padding rule; `zeros` leaves them."""
    if padding == "border":
        return xp.minimum(xp.maximum(x, 0), size - 1)
    if padding == "reflection":
        low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
        return xp.minimum(xp.maximum(_reflect(xp, x, low, high), 0), size - 1)
    return x


def _cubic_weights(t: Array) -> list[Array]:
    """Keys' kernel with a = -0.75 at distances 1 + t, t, 1 - t, 2 - t."""
    a = -0.75

    def near(d: Array) -> Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Array) -> Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _axis_taps(xp: Arrays, x: Array, size: int, mode: str, padding: str, align: int) -> list[tuple[Array, Array]]:
    """(position, weight) of every input element that one axis contributes; positions are whole numbers."""
    if mode == "nearest":
        return [(xp.lib.round(_apply_padding(xp, x, size, padding, align)), x * 0 + 1)]
    if mode == "linear":
        x = _apply_padding(xp, x, size, padding, align)
        base = xp.lib.floor(x)
        return [(base, 1 - (x - base)), (base + 1, x - base)]
    base = xp.lib.floor(x)
    weights = _cubic_weights(x - base)
    return [(_apply_padding(xp, base + k - 1, size, padding, align), w) for k, w in enumerate(weights)]


@operator("GridSample", since=16)
def grid_sample(
    xp: Arrays, x: Array, grid: Array, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Array:
    """x: [n, c, d1, ...]; grid: [n, o1, ..., dims], its last axis ordered from the innermost input axis outwards."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    dims = x.ndim - 2
    sizes = tuple(x.shape[2:])
    per_axis = []
    for axis, size in enumerate(sizes):
        g = xp.astype(grid[..., dims - 1 - axis], x.dtype)
        position = (g + 1) * ((size - 1) / 2) if align_corners else ((g + 1) * size - 1) / 2
        per_axis.append(_axis_taps(xp, position, size, mode, padding_mode, align_corners))
    n = x.shape[0]
    integer = xp.dtype(7)
    batch = xp.arange(0, n, 1, integer).reshape((n,) + (1,) * dims)
    channels_last = xp.transpose(x, (0, *range(2, x.ndim), 1))
    total = None
    for taps in itertools.product(*per_axis):
        weight: Array = 1.0
        coordinates = [batch]
        for (position, w), size in zip(taps, sizes, strict=True):
            inside = (position >= 0) & (position <= size - 1)
            weight = weight * xp.where(inside, w, 0)
            clamped = xp.minimum(xp.maximum(position, 0), size - 1)
            coordinates.append(xp.astype(xp.where(clamped == clamped, clamped, 0), integer))
        value = xp.index(channels_last, tuple(coordinates)) * weight.reshape((*weight.shape, 1))
        total = value if total is None else total + value
    return xp.transpose(total, (0, dims + 1, *range(1, dims + 1)))


@operator("AffineGrid", since=20, host=("size",))
def affine_grid(xp: Arrays, theta: Array, size: Ints, *, align_corners: int = 0) -> Array:
    """[n, o1, ..., dims] positions in [-1, 1], innermost axis first."""
    sizes = size[2:]
    axes = []
    for d in sizes:
        if align_corners:
            axes.append(np.linspace(-1, 1, d) if d > 1 else np.zeros(1))
        else:
            axes.append((np.arange(d) * 2 + 1) / d - 1)
    mesh = np.meshgrid(*axes, indexing="ij")
    base = np.stack([*reversed(mesh), np.ones(sizes)], -1).reshape(-1, len(sizes) + 1)
    points = xp.astype(xp.constant(base, theta), theta.dtype)
    grid = xp.einsum("pk,nok->npo", points, theta)
    return grid.reshape((theta.shape[0], *sizes, len(sizes)))


@operator("Col2Im", since=18, host=("image_shape", "block_shape"))
def col2im(
    xp: Arrays,
    x: Array,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Add overlapping blocks [n, c * block, windows] into an image."""
    dims = len(image_shape)
    dilations, strides = dilations or (1,) * dims, strides or (1,) * dims
    margins = pairs(pads, dims)
    positions = []
    for d in range(dims):
        span = image_shape[d] + sum(margins[d]) - ((block_shape[d] - 1) * dilations[d] + 1)
        windows = np.arange(span // strides[d] + 1) * strides[d]
        positions.append(np.arange(block_shape[d])[:, None] * dilations[d] + windows[None, :])
    padded = [image_shape[d] + sum(margins[d]) for d in range(dims)]
    flat: Array = np.zeros((1,) * (2 * dims), np.int64)
    for d, table in enumerate(positions):
        view = [1] * (2 * dims)
        view[d], view[d + dims] = table.shape
        flat = flat + (table * math.prod(padded[d + 1 :])).reshape(view)
    n = x.shape[0]
    channels = x.shape[1] // math.prod(block_shape)
    blocks = xp.transpose(x.reshape((n, channels, flat.size)), (2, 0, 1))
    image = xp.full((math.prod(padded), n, channels), 0, x.dtype, x)
    image = xp.scatter(image, (xp.constant(flat.reshape(-1), x),), blocks, "add")
    image = xp.transpose(image, (1, 2, 0)).reshape((n, channels, *padded))
    for d, (low, _) in enumerate(margins):
        image = xp.slice_axis(image, d + 2, low, low + image_shape[d], 1)
    return image


def _bilinear_taps(xp: Arrays, y: Array, size: int) -> tuple[list[tuple[Array, Array]], Array]:
    """Taps of positions that may lie up to one element outside; and where they lie farther out (value 0)."""
    gone = (y < -1) | (y > size)
    y = xp.minimum(xp.maximum(y, 0), size - 1)
    low = xp.lib.floor(y)
    high = xp.minimum(low + 1, size - 1)
    part = y - low
    return [(low, 1 - part), (high, part)], gone


def _adaptive(node: ir.Node) -> str | None:
    ratio = node.attributes.get("sampling_ratio")
    if ratio is not None and ratio.as_int() > 0:
        return None
    return "RoiAlign without a sampling ratio takes a number of samples that depends on the data"


@operator("RoiAlign", since=16, unless=_adaptive)
def roi_align(
    xp: Arrays,
    x: Array,
    rois: Array,
    batch_indices: Array,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int,
    spatial_scale: float = 1.0,
) -> Array:
    """x: [n, c, h, w]; rois: [r, 4] as x1, y1, x2, y2; the sampling ratio must be given (see `_adaptive`)."""
    half = coordinate_transformation_mode == "half_pixel"
    corners = rois * spatial_scale - (0.5 if half else 0.0)
    taps, gones = [], []
    for axis, (bins, size) in enumerate(((output_height, x.shape[2]), (output_width, x.shape[3]))):
        start, end = corners[:, 1 - axis], corners[:, 3 - axis]
        extent = end - start if half else xp.maximum(end - start, 1.0)
        steps = (np.arange(bins * sampling_ratio) + 0.5) / sampling_ratio
        at = xp.astype(xp.constant(steps, x), x.dtype).reshape((1, -1))
        chosen, gone = _bilinear_taps(xp, start.reshape((-1, 1)) + at * (extent.reshape((-1, 1)) / bins), size)
        taps.append(chosen)
        gones.append(gone)
    integer = batch_indices.dtype
    batch = batch_indices.reshape((-1, 1, 1))
    channels_last = xp.transpose(x, (0, 2, 3, 1))
    values = []
    for (row, row_weight), (column, column_weight) in itertools.product(*taps):
        r, c = (xp.astype(t, integer) for t in (row, column))
        weight = row_weight.reshape((*row.shape, 1)) * column_weight.reshape((column.shape[0], 1, column.shape[1]))
        hidden = gones[0].reshape((*row.shape, 1)) | gones[1].reshape((column.shape[0], 1, column.shape[1]))
        weight = xp.where(hidden, 0, weight)
        picked = xp.index(channels_last, (batch, r.reshape((*r.shape, 1)), c.reshape((c.shape[0], 1, c.shape[1]))))
        values.append(picked * weight.reshape((*weight.shape, 1)))
    shape = (rois.shape[0], output_height, sampling_ratio, output_width, sampling_ratio, x.shape[1])
    if mode == "avg":
        pooled = xp.mean(sum(values).reshape(shape), (2, 4))
    else:
        # The operator takes the largest of the four weighted neighbours, not of their sum.
        largest = values[0]
        for value in values[1:]:
            largest = xp.maximum(largest, value)
        pooled = xp.max(largest.reshape(shape), (2, 4))
    return xp.transpose(pooled, (0, 3, 1, 2))
