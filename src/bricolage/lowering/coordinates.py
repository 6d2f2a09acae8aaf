"""Coordinates and weights of Resize, one axis at a time, computed once in numpy.

Every mode is separable: output element o of an axis is a weighted sum of a few input elements. Source of the formulas:
the ONNX operator documentation of Resize; cubic weights after R. Keys, "Cubic convolution interpolation for digital
image processing", IEEE Trans. ASSP 29 (1981).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bricolage.errors import InvalidGraph

Table = np.ndarray


@dataclass(frozen=True)
class AxisTable:
    """index, weight: [taps, out]; outside: [out], True where the result is the extrapolation value."""

    index: Table
    weight: Table
    outside: Table | None


def source_positions(out: int, size: int, scale: float, mode: str, roi: tuple[float, float]) -> Table:
    """Where each output element lies on the input's axis. `out` elements of an axis of `size`, enlarged by `scale`."""
    o = np.arange(out, dtype=np.float64)
    length = scale * size
    if mode == "align_corners":
        return np.zeros(out) if length == 1 or out == 1 else o * (size - 1) / (length - 1)
    if mode == "asymmetric":
        return o / scale
    if mode == "tf_crop_and_resize":
        begin, end = roi
        if out == 1:
            return np.full(1, 0.5 * (begin + end) * (size - 1))
        return begin * (size - 1) + o * (end - begin) * (size - 1) / (length - 1)
    if mode == "tf_half_pixel_for_nn":
        return (o + 0.5) / scale
    if mode == "pytorch_half_pixel" and out == 1:
        return np.full(1, -0.5)
    centred = (o + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        return size / 2 * (1 - out / length) + centred
    return centred


def _nearest(x: Table, mode: str) -> Table:
    if mode == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(x + 0.5)
    whole: Table = np.floor(x) if mode == "floor" else np.ceil(x)
    return whole


def cubic(x: Table, a: float) -> Table:
    """Keys' kernel with the free coefficient `a`."""
    t = np.abs(x)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def _linear(x: Table) -> Table:
    return np.asarray(np.maximum(1 - np.abs(x), 0.0))


def axis_table(
    out: int,
    size: int,
    scale: float,
    *,
    mode: str,
    coordinates: str,
    nearest_mode: str = "round_prefer_floor",
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: tuple[float, float] = (0.0, 1.0),
) -> AxisTable:
    """The table of one axis of `size` elements resized to `out`."""
    x = source_positions(out, size, scale, coordinates, roi)
    outside = (x < 0) | (x > size - 1) if coordinates == "tf_crop_and_resize" else None
    if mode == "nearest":
        index = _nearest(x, nearest_mode)[None]
        return AxisTable(np.clip(index, 0, size - 1).astype(np.int64), np.ones((1, out)), outside)
    # Shrinking with antialias stretches the kernel over 1 / scale input elements.
    stretch = min(scale, 1.0) if antialias else 1.0
    radius = 1 if mode == "linear" else 2
    first = math.floor(-radius / stretch) + 1
    offsets = np.arange(first, 1 - first + 1)[:, None]
    base = np.floor(x)
    index = base[None] + offsets
    distance = (x[None] - index) * stretch
    weight = _linear(distance) if mode == "linear" else cubic(distance, cubic_coeff_a)
    if exclude_outside:
        weight = np.where((index >= 0) & (index < size), weight, 0.0)
    if exclude_outside or stretch < 1:
        weight = weight / weight.sum(0, keepdims=True)
    return AxisTable(np.clip(index, 0, size - 1).astype(np.int64), weight, outside)


def output_sizes(
    sizes: tuple[int, ...], scales: tuple[float, ...] | None, wanted: tuple[int, ...] | None, policy: str
) -> tuple[list[int], list[float]]:
    """Output size and scale of each resized axis, from scales or from wanted sizes and the aspect-ratio policy.

    Scales are float32 in the model, and so is their product with a size, as in other runtimes.
    """
    if scales:
        outs = [int(np.floor(np.float32(s) * np.float32(d))) for s, d in zip(scales, sizes, strict=True)]
        return outs, [float(s) for s in scales]
    if wanted is None:
        raise InvalidGraph(reason="Resize has neither scales nor sizes")
    ratios = [w / d for w, d in zip(wanted, sizes, strict=True)]
    if policy == "stretch":
        return list(wanted), ratios
    ratio = min(ratios) if policy == "not_larger" else max(ratios)
    return [math.floor(ratio * d + 0.5) for d in sizes], [ratio] * len(sizes)
