"""Resize and Upsample, as sums of gathered elements with the tables of `coordinates.py`."""

from __future__ import annotations

import numpy as np

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, normalise_axes, operator
from bricolage.lowering.coordinates import AxisTable, axis_table, output_sizes

Ints = tuple[int, ...]
Floats = tuple[float, ...]


def apply_table(xp: Arrays, x: Array, axis: int, table: AxisTable) -> Array:
    """One axis of `x` resampled. Taps whose weight is zero everywhere are skipped."""
    view = [1] * x.ndim
    view[axis] = table.index.shape[1]
    total = None
    for index, weight in zip(table.index, table.weight, strict=True):
        if not weight.any():
            continue
        part = xp.take(x, index, axis)
        if not np.all(weight == 1):
            part = part * xp.astype(xp.constant(weight.reshape(view), x), x.dtype)
        total = part if total is None else total + part
    return xp.take(x, table.index[0], axis) * 0 if total is None else total


def resize(xp: Arrays, x: Array, tables: dict[int, AxisTable], extrapolation: float) -> Array:
    floating = xp.kind(x) == "f"
    needs_weights = any(len(t.index) > 1 for t in tables.values())
    y = x if floating or not needs_weights else xp.astype(x, xp.dtype(1))
    outside: np.ndarray | None = None
    for axis, table in tables.items():
        y = apply_table(xp, y, axis, table)
        if table.outside is not None:
            view = [1] * x.ndim
            view[axis] = -1
            mask = table.outside.reshape(view)
            outside = mask if outside is None else outside | mask
    if outside is not None:
        y = xp.where(xp.constant(outside, x), extrapolation, y)
    return y if floating or not needs_weights else xp.astype(xp.lib.round(y), x.dtype)


@operator("Resize", since=11, host=("roi", "scales", "sizes"))
def resize_(
    xp: Arrays,
    x: Array,
    roi: Floats | None = None,
    scales: Floats | None = None,
    sizes: Ints | None = None,
    *,
    antialias: int = 0,
    axes: Ints | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    chosen = normalise_axes(axes, x.ndim)
    current = tuple(int(x.shape[a]) for a in chosen)
    outs, ratios = output_sizes(current, scales or None, sizes or None, keep_aspect_ratio_policy)
    tables = {}
    for position, axis in enumerate(chosen):
        cropped = coordinate_transformation_mode == "tf_crop_and_resize" and bool(roi)
        window = (roi[position], roi[position + len(chosen)]) if cropped and roi else (0.0, 1.0)
        if outs[position] == current[position] and ratios[position] == 1 and not cropped:
            continue
        tables[axis] = axis_table(
            outs[position],
            current[position],
            ratios[position],
            mode=mode,
            coordinates=coordinate_transformation_mode,
            nearest_mode=nearest_mode,
            cubic_coeff_a=cubic_coeff_a,
            exclude_outside=bool(exclude_outside),
            antialias=bool(antialias),
            roi=window,
        )
    return resize(xp, x, tables, extrapolation_value)


@operator("Resize", since=10, until=10, host=("scales",))
def resize_10(xp: Arrays, x: Array, scales: Floats, *, mode: str = "nearest") -> Array:
    return resize_(xp, x, scales=scales, mode=mode, coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@operator("Upsample", since=9, until=10, host=("scales",))
def upsample(xp: Arrays, x: Array, scales: Floats, *, mode: str = "nearest") -> Array:
    return resize_10(xp, x, scales, mode=mode)


@operator("Upsample", since=7, until=8)
def upsample_attribute(xp: Arrays, x: Array, *, scales: Floats, mode: str = "nearest") -> Array:
    return resize_10(xp, x, scales, mode=mode)
