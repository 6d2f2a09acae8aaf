"""Lowerings of reductions, pooling, softmax and normalisation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bricolage.graph.extents import pool_size
from bricolage.native.ir.index_expressions import Index
from bricolage.native.ir.lowerings.elementwise import convert_node
from bricolage.native.ir.lowerings.integers import match_dequantised, numbers_of
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, axis_of, lowering, pads_of
from bricolage.native.ir.lowerings.views import broadcast_node, pointwise, reshape, scalar, transpose
from bricolage.native.ir.tensors import (
    FLOATS,
    LONGEST_ROW,
    Constant,
    Coords,
    Node,
    Normalise,
    Reduce,
    Reduction,
    Softmax,
    View,
    numpy_type,
)

_REDUCE: dict[str, Reduction] = {
    "ReduceSum": "sum",
    "ReduceMean": "mean",
    "ReduceMax": "max",
    "ReduceMin": "min",
    "ReduceProd": "product",
}


def reduce(kind: Reduction, x: Node, axes: Sequence[int]) -> Node:
    """A reduction over `axes`, which stay with the extent 1."""
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(x.shape))
    if not x.elements:
        return broadcast_node(scalar(_of_nothing(kind, x.dtype), x.dtype), shape)
    if x.dtype == "bool":
        if kind not in ("max", "min"):
            raise NoLowering(f"the {kind} of conditions")
        return convert_node(reduce(kind, convert_node(x, "int32"), axes), "bool")
    divisor = float(math.prod(x.shape[axis] for axis in axes)) if kind == "mean" else 1.0
    return Reduce(shape, x.dtype, kind, x, tuple(sorted(axes)), divisor)


def _of_nothing(kind: str, dtype: str) -> float:
    """What a reduction over no elements gives."""
    if kind == "mean":
        return math.nan
    if kind in ("sum", "product"):
        return float(kind == "product")
    least = kind == "max"
    if dtype == "bool":
        return not least
    if dtype in FLOATS:
        return -math.inf if least else math.inf
    return int(np.iinfo(dtype).min if least else np.iinfo(dtype).max)


def axes_by_shape(before: Sequence[int], after: Sequence[int], kept: bool) -> list[int]:
    """The dimensions that are reduced, read off the shapes before and after; over a dimension of one, nothing changes.

    Raises:
        NoLowering: the shapes leave it open.
    """
    if kept:
        return [axis for axis, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    rank = len(before)
    if len(before) > _MOST_DIMENSIONS:
        raise NoLowering("a reduction over axes that are computed")
    fits = {
        tuple(axis for axis in chosen if before[axis] != 1)
        for chosen in itertools.combinations(range(rank), rank - len(after))
        if [before[axis] for axis in range(rank) if axis not in chosen] == list(after)
    }
    if len(fits) != 1:
        raise NoLowering("a reduction over axes that are computed and that the shapes leave open")
    return list(fits.pop())


_MOST_DIMENSIONS = 8


def reduced_axes(op: OpContext, x: Node) -> list[int]:
    """The dimensions that an operator reduces.

    Raises:
        NoLowering: they are computed, and the shapes leave them open.
    """
    rank = len(x.shape)
    computed = op.opset >= (13 if op.op_type == "ReduceSum" else 18)
    node = op.optional(1)
    if computed and node is not None and not isinstance(node, Constant):
        return axes_by_shape(x.shape, op.shape, bool(op.get("keepdims", 1)))
    axes = op.numbers(1) if computed else op.get("axes")
    if not axes:
        return [] if op.get("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes]


@lowering(*_REDUCE, "ReduceL2", "ReduceSumSquare")
def reduction(op: OpContext) -> Node:
    """ReduceSum, ReduceMean and so on."""
    x = op.tensor(0)
    axes = reduced_axes(op, x)
    if x.dtype not in FLOATS and op.op_type in ("ReduceMean", "ReduceL2"):
        raise NoLowering(f"{op.op_type} of {x.dtype}")
    if op.op_type in _REDUCE:
        reduced_node = reduce(_REDUCE[op.op_type], x, axes)
    else:
        reduced_node = reduce("sum", pointwise("square", x), axes)
        if op.op_type == "ReduceL2":
            reduced_node = pointwise("sqrt", reduced_node)
    return reshape(reduced_node, op.shape)


@lowering("GlobalAveragePool", "GlobalMaxPool")
def global_pool(op: OpContext) -> Node:
    """GlobalAveragePool and GlobalMaxPool over all spatial dimensions."""
    x = op.tensor(0)
    return reduce("max" if "Max" in op.op_type else "mean", x, range(2, len(x.shape)))


@lowering("MaxPool", "AveragePool", "LpPool")
def pool(op: OpContext) -> Node:
    """MaxPool, AveragePool and LpPool, as reductions over windows. The largest of dequantised bytes is that of the bytes."""
    x = op.tensor(0)
    bytes_ = match_dequantised(x) if op.op_type == "MaxPool" and len(op.shapes) == 1 else None
    if bytes_ is not None and bytes_.positive:
        pooled = pool(replace(op, inputs=(bytes_.integers, *op.inputs[1:])))
        assert isinstance(pooled, Node)
        return numbers_of(pooled, bytes_.zero, bytes_.scale)
    kernel = list(op.get("kernel_shape"))
    spatial = len(kernel)
    strides = list(op.get("strides") or [1] * spatial)
    dilations = list(op.get("dilations") or [1] * spatial)
    pads = pads_of(op, x.shape[2:], kernel, strides, dilations)
    ceil = bool(op.get("ceil_mode", 0))
    counted = [
        pool_size(size, kernel[i], strides[i], dilations[i], (pads[i], pads[i + spatial]), ceil)
        for i, size in enumerate(x.shape[2:])
    ]
    out = (*x.shape[:2], *counted)
    if min(counted) < 1:
        raise NoLowering(f"{op.op_type} without a window")
    largest = op.op_type == "MaxPool"
    before = pads[:spatial]

    def mapping(coords: Coords) -> Coords:
        n, c, rest = coords[0], coords[1], coords[2:]
        spots = tuple(
            o * strides[i] + k * dilations[i] - before[i]
            for i, (o, k) in enumerate(zip(rest[:spatial], rest[spatial:], strict=True))
        )
        return (n, c, *spots)

    def guard(coords: Coords) -> list[tuple[Index, int]]:
        return [
            (spot, extent)
            for spot, extent in zip(mapping(coords)[2:], x.shape[2:], strict=True)
            if spot.range[0] < 0 or spot.range[1] >= extent
        ]

    windows = View((*out, *kernel), x.dtype, x, mapping, guard, _of_nothing("max", x.dtype) if largest else 0.0)
    axes = tuple(range(len(out), len(out) + spatial))
    if largest:
        return reshape(reduce("max", windows, axes), out)
    if op.op_type == "LpPool":
        if op.get("p", 2) != 2:
            raise NoLowering(f"LpPool with p = {op.get('p')}")
        return pointwise("sqrt", reshape(reduce("sum", pointwise("square", windows), axes), out))
    if op.get("count_include_pad", 0):
        if ceil:
            raise NoLowering("AveragePool that counts pads beyond the image")
        return reshape(reduce("mean", windows, axes), out)
    counts = np.ones((), np.float32)
    for i in range(spatial):
        spots = np.arange(out[2 + i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i] - before[i]
        counts = counts[..., None] * ((spots >= 0) & (spots < x.shape[2 + i])).sum(axis=1).astype(np.float32)
    if np.all(counts == math.prod(kernel)):
        return reshape(reduce("mean", windows, axes), out)
    factor = Constant(counts.shape, x.dtype, (1 / counts).astype(numpy_type(x.dtype)))
    return pointwise("mul", reshape(reduce("sum", windows, axes), out), factor)


@lowering("LRN")
def local_response_normalization(op: OpContext) -> Node:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta."""
    x, size = op.tensor(0), op.get("size")
    alpha, beta, bias = op.get("alpha", 1e-4), op.get("beta", 0.75), op.get("bias", 1.0)
    if alpha < 0 or bias <= 0:
        raise NoLowering("LRN whose divisor can be zero")
    channels, before = x.shape[1], (size - 1) // 2

    def mapping(coords: Coords) -> Coords:
        return (coords[0], coords[1] + coords[-1] - before, *coords[2:-1])

    def guard(coords: Coords) -> list[tuple[Index, int]]:
        return [(coords[1] + coords[-1] - before, channels)]

    windows = View((*x.shape, size), x.dtype, x, mapping, guard)
    total = reshape(reduce("sum", pointwise("square", windows), [len(x.shape)]), x.shape)
    divisor = pointwise("add", pointwise("mul", total, scalar(alpha / size, x.dtype)), scalar(bias, x.dtype))
    if beta == 0.75:
        root = pointwise("sqrt", divisor)
        return pointwise("div", x, pointwise("mul", root, pointwise("sqrt", root)))
    power = pointwise("exp", pointwise("mul", pointwise("log", divisor), scalar(-beta, x.dtype)))
    return pointwise("mul", x, power)


@lowering("Softmax")
def softmax(op: OpContext) -> Node:
    """Softmax; before operator set 13 over all dimensions from `axis` on."""
    x = op.tensor(0)
    axis = axis_of(op, len(x.shape), -1 if op.opset >= 13 else 1)
    if op.opset >= 13:
        return soft_row(x, axis)
    folded = reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
    return reshape(soft_row(folded, 1), x.shape)


def soft_row(x: Node, axis: int) -> Node:
    """The softmax along a dimension. Of longer rows than a thread may keep, it takes several kernels."""
    if x.dtype not in FLOATS:
        raise NoLowering(f"Softmax of {x.dtype}")
    if x.shape[axis] > LONGEST_ROW or x.dtype != "float32":
        raised = pointwise("exp", pointwise("sub", x, reduce("max", x, [axis])))
        return pointwise("div", raised, reduce("sum", raised, [axis]))
    rank = len(x.shape)
    perm = [i for i in range(rank) if i != axis] + [axis]
    turned = transpose(x, perm)
    return transpose(Softmax(turned.shape, x.dtype, turned), [perm.index(i) for i in range(rank)])


def normalise_node(x: Node, epsilon: float, axis: int, *, centred: bool = True) -> Node:
    """(x - mean) / sqrt(mean of squares of that + epsilon) over all dimensions from `axis` on; of float64 in several kernels. A
    single element is its own mean: what a kernel that computes it anew would round otherwise, 1 / √epsilon would make large."""
    if centred and math.prod(x.shape[axis:]) == 1:
        return pointwise("sub", x, x)
    if x.dtype == "float32":
        return Normalise(x.shape, x.dtype, x, epsilon, axis, centred)
    axes = range(axis, len(x.shape))
    x = pointwise("sub", x, reduce("mean", x, axes)) if centred else x
    variance = reduce("mean", pointwise("square", x), axes)
    return pointwise("div", x, pointwise("sqrt", pointwise("add", variance, scalar(epsilon, x.dtype))))


@lowering("LayerNormalization")
def layer_normalization(op: OpContext) -> tuple[Node, ...]:
    """Mean and reciprocal deviation are outputs too; they are computed separately only where they are asked for."""
    x, scale, bias = op.tensor(0), op.tensor(1), op.optional(2)
    rank, epsilon = len(x.shape), op.get("epsilon", 1e-5)
    axis = axis_of(op, rank, -1)
    row = math.prod(x.shape[axis:])
    axes = range(axis, rank)
    mean = reduce("mean", x, axes)
    centred = pointwise("sub", x, mean)
    variance = reduce("mean", pointwise("square", centred), axes)
    inverse = pointwise("reciprocal", pointwise("sqrt", pointwise("add", variance, scalar(epsilon, x.dtype))))
    folded = reshape(x, (math.prod(x.shape[:axis]), row))
    output = pointwise("mul", normalise_node(folded, epsilon, 1), _in_rows(scale, x, axis))
    if bias is not None:
        output = pointwise("add", output, _in_rows(bias, x, axis))
    return reshape(output, x.shape), mean, inverse


def _in_rows(node: Node, x: Node, axis: int) -> Node:
    """What broadcasts to `x`, as one row for all that `x` has from `axis` on, or as a row for each."""
    try:
        fits = tuple(np.broadcast_shapes(node.shape, x.shape)) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise NoLowering(f"a scale or bias of the shape {list(node.shape)} for {list(x.shape)}")
    inner = x.shape[axis:]
    if len(node.shape) <= len(inner):
        return reshape(broadcast_node(node, inner), (math.prod(inner),))
    return reshape(broadcast_node(node, x.shape), (math.prod(x.shape[:axis]), math.prod(inner)))


@lowering("RMSNormalization")
def rms_normalization(op: OpContext) -> Node:
    """RMSNormalization: over all dimensions from `axis` on, without mean."""
    x, scale = _floats(op), op.tensor(1)
    axis = axis_of(op, len(x.shape), -1)
    row = math.prod(x.shape[axis:])
    folded = reshape(x, (math.prod(x.shape[:axis]), row))
    output = normalise_node(folded, op.get("epsilon", 1e-5), 1, centred=False)
    return reshape(pointwise("mul", output, _in_rows(scale, x, axis)), x.shape)


@lowering("InstanceNormalization")
def instance_normalization(op: OpContext) -> Node:
    """InstanceNormalization of [n, c, spatial...], each channel of each image by itself."""
    x = _floats(op)
    return _per_channel(op, reshape(_normalise_groups(x, x.shape[1], op.get("epsilon", 1e-5)), x.shape))


@lowering("GroupNormalization")
def group_normalization(op: OpContext) -> Node:
    """Scale and bias are those of channels, before operator set 21 those of groups."""
    x, groups = _floats(op), int(op.get("num_groups"))
    if x.shape[1] % groups:
        raise NoLowering(f"GroupNormalization of {x.shape[1]} channels in {groups} groups")
    output = _normalise_groups(x, groups, op.get("epsilon", 1e-5))
    if op.opset >= 21:
        return _per_channel(op, reshape(output, x.shape))
    return reshape(_per_channel(op, output), x.shape)


def _floats(op: OpContext) -> Node:
    x = op.tensor(0)
    if x.dtype not in FLOATS:
        raise NoLowering(f"{op.op_type} of {x.dtype}")
    return x


def _normalise_groups(x: Node, groups: int, epsilon: float) -> Node:
    """[images, groups, channels of a group, …], normalised from its third dimension on."""
    split = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    return normalise_node(split, epsilon, 2)


def _per_channel(op: OpContext, x: Node) -> Node:
    """With the operator's scale and bias along the second dimension."""
    ones = (1,) * (len(x.shape) - 2)
    scale, bias = (reshape(node, (node.elements, *ones)) for node in (op.tensor(1), op.tensor(2)))
    return pointwise("add", pointwise("mul", x, scale), bias)
