"""Lowerings of Resize and Upsample: weighted sums of gathered elements, one dimension after another."""

from __future__ import annotations

import numpy as np

from bricolage.errors import InvalidGraph
from bricolage.lowering.coordinates import AxisTable, axis_table, output_sizes
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, lowering
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Constant, Coords, Gather, Node, View

_MOST_TAPS = 8
"""Elements that one is made of, along a dimension; anti-aliased shrinking can take many."""


@lowering("Resize", "Upsample")
def resize(op: OpContext) -> Node:
    """Resize and Upsample."""
    x = op.tensor(0)
    for axis, table in _tables(op, x).items():
        x = _resize_axis(x, axis, table)
    return x


def _tables(op: OpContext, x: Node) -> dict[int, AxisTable]:
    """By dimension, where its elements come from. Before opset 11 coordinates are asymmetric and round down."""
    rank, modern = len(x.shape), op.op_type == "Resize" and op.opset >= 11
    axes = [axis % rank for axis in op.get("axes") or range(rank)]
    scales = op.get("scales") if op.op_type == "Upsample" and op.opset < 9 else _floats(op, 2 if modern else 1)
    wanted = op.numbers(3) if modern else None
    coordinates = op.get("coordinate_transformation_mode", "half_pixel") if modern else "asymmetric"
    mode = op.get("mode", "nearest")
    if coordinates == "tf_crop_and_resize" or mode not in ("nearest", "linear", "cubic"):
        raise NoLowering(f"{op.op_type} with {coordinates}, {mode}")
    current = tuple(x.shape[axis] for axis in axes)
    try:
        policy = op.get("keep_aspect_ratio_policy", "stretch")
        sizes, ratios = output_sizes(current, tuple(scales or ()) or None, tuple(wanted or ()) or None, policy)
    except InvalidGraph as reason:
        raise NoLowering(str(reason)) from reason
    return {
        axis: axis_table(
            out,
            size,
            ratio,
            mode=mode,
            coordinates=coordinates,
            nearest_mode=op.get("nearest_mode", "round_prefer_floor") if modern else "floor",
            cubic_coeff_a=op.get("cubic_coeff_a", -0.75),
            exclude_outside=bool(op.get("exclude_outside", 0)),
            antialias=bool(op.get("antialias", 0)),
        )
        for axis, out, size, ratio in zip(axes, sizes, current, ratios, strict=True)
        if out != size or ratio != 1
    }


def _floats(op: OpContext, position: int) -> list[float] | None:
    node = op.optional(position)
    if node is None:
        return None
    if not isinstance(node, Constant):
        raise NoLowering(f"{op.op_type} whose input {position} is computed")
    return [float(value) for value in node.array.reshape(-1)]


def _resize_axis(x: Node, axis: int, table: AxisTable) -> Node:
    """One dimension. Whole factors of nearest neighbours are an index map, everything else is gathered."""
    taps = [(index, weight) for index, weight in zip(table.index, table.weight, strict=True) if weight.any()]
    extent, out = x.shape[axis], table.index.shape[1]
    shape = (*x.shape[:axis], out, *x.shape[axis + 1 :])
    factor = out // extent
    alone = len(taps) == 1 and bool(np.all(taps[0][1] == 1))
    if alone and factor * extent == out and np.array_equal(taps[0][0], np.arange(out) // factor):

        def mapping(coords: Coords) -> Coords:
            return (*coords[:axis], coords[axis].split(factor)[0], *coords[axis + 1 :])

        return View(shape, x.dtype, x, mapping)
    if not alone and x.dtype != "float32":
        raise NoLowering(f"Resize of {x.dtype} with weights")
    if len(taps) > _MOST_TAPS:
        raise NoLowering(f"Resize with {len(taps)} taps")
    total: Node | None = None
    for index, weight in taps:
        part: Node = Gather(shape, x.dtype, x, Constant((out,), "int64", index.astype(np.int64)), axis)
        if not alone:
            column = weight.astype(np.float32).reshape(out, *(1,) * (len(shape) - axis - 1))
            part = pointwise("mul", part, Constant(column.shape, "float32", column))
        total = part if total is None else pointwise("add", total, part)
    if total is None:
        raise NoLowering("Resize to nothing")
    return total
