"""Lowerings of matrix products and convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from bricolage.graph.extents import pool_size
from bricolage.lowering.window_indices import transpose_crop
from bricolage.native.ir.index_expressions import ZERO, Index, flatten
from bricolage.native.ir.lowerings.integers import exact, match_dequantised, scale_sums, weights_of
from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, lowering, pads_of
from bricolage.native.ir.lowerings.reductions import reduce
from bricolage.native.ir.lowerings.views import (
    broadcast_node,
    broadcast_shapes,
    pad,
    pointwise,
    reshape,
    scalar,
    take,
    transpose,
)
from bricolage.native.ir.tensors import ConcatBuffer, Constant, Conv, Coords, MatMul, Node, Pointwise, Shape, View


@lowering("MatMul")
def matmul(op: OpContext) -> Node:
    """MatMul: [..., m, k] times [..., k, n]."""
    return _product(op.tensor(0), op.tensor(1))


def _product(left: Node, right: Node) -> Node:
    """Of dequantised bytes as a product of these bytes, if the right side is constant."""
    bytes_, columns = match_dequantised(left), weights_of(right, 1) if len(right.shape) == 2 else None
    if bytes_ is None or columns is None:
        return multiply_matrices(left, right)
    weights, scales = columns
    return scale_sums(exact(multiply_matrices, bytes_.integers, bytes_.zero, weights), bytes_.scale, scales)


def multiply_matrices(left: Node, right: Node) -> Node:
    """A matrix product as numpy defines it: of vectors, matrices, or batches that broadcast. Kernels of products are for float32,
    and for uint8 times a constant matrix of int8, which gives int32; of other types it is a sum of products."""
    rows_kept, columns_kept = left.shape[-2:-1], right.shape[-1:] if len(right.shape) > 1 else ()
    if len(left.shape) == 1:
        left = reshape(left, (1, *left.shape))
    if len(right.shape) == 1:
        right = reshape(right, (*right.shape, 1))
    if left.shape[-1] != right.shape[-2]:
        raise NoLowering(f"a product of {list(left.shape)} and {list(right.shape)}")
    batch = broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, *rows_kept, *columns_kept)
    if 0 in (*shape, left.shape[-1]):
        return broadcast_node(scalar(0, left.dtype), shape)
    matrix = len(right.shape) == 2 and isinstance(right, Constant)
    dtype = "int32" if matrix and (left.dtype, right.dtype) == ("uint8", "int8") else "float32"
    if dtype == "float32" != left.dtype:
        return reshape(_sum_products(left, right, batch), shape)
    if matrix:
        rows = math.prod(left.shape[:-1])
        flat = reshape(left, (rows, left.shape[-1]))
        return reshape(MatMul((rows, right.shape[1]), dtype, flat, right), shape)
    rank = max(len(left.shape), len(right.shape))
    left = reshape(left, (1,) * (rank - len(left.shape)) + left.shape)
    right = reshape(right, (1,) * (rank - len(right.shape)) + right.shape)
    return reshape(MatMul((*batch, left.shape[-2], right.shape[-1]), "float32", left, right), shape)


def _sum_products(left: Node, right: Node, batch: Shape) -> Node:
    """[..., m, k] times [..., k, n] as a reduction over k."""
    (rows, depth), columns, rank = left.shape[-2:], right.shape[-1], len(batch)

    def spread(node: Node, pick: Callable[[Index, Index, Index], tuple[Index, Index]]) -> Node:
        dims = node.shape[:-2]

        def mapping(coords: Coords) -> Coords:
            outer = [ZERO if size == 1 else i for i, size in zip(coords[rank - len(dims) : rank], dims, strict=True)]
            return (*outer, *pick(*coords[rank:]))

        return View((*batch, rows, columns, depth), node.dtype, node, mapping)

    products = pointwise("mul", spread(left, lambda m, _, k: (m, k)), spread(right, lambda _, n, k: (k, n)))
    return reduce("sum", products, [rank + 2])


@lowering("Gemm")
def gemm(op: OpContext) -> Node:
    """Gemm: alpha·A·B + beta·C, with A [m, k] and B [k, n] after their transpositions."""
    left, right, bias = op.tensor(0), op.tensor(1), op.optional(2)
    if left.dtype != "float32":
        raise NoLowering(f"Gemm of {left.dtype}")
    left = transpose(left, (1, 0)) if op.get("transA", 0) else left
    right = transpose(right, (1, 0)) if op.get("transB", 0) else right
    alpha, beta = op.get("alpha", 1.0), op.get("beta", 1.0)
    product = _product(left, right)
    if alpha != 1.0:
        product = pointwise("mul", product, scalar(alpha))
    if bias is not None and beta != 0.0:  # of no weight, it may be NaN
        product = pointwise("add", product, bias if beta == 1.0 else pointwise("mul", bias, scalar(beta)))
    return product


@lowering("Conv")
def conv(op: OpContext) -> Node:
    """Conv: [n, c, spatial...] with constant weights [out, c / group, taps...]; of dequantised bytes as one of these bytes."""
    x, weight, bias = op.tensor(0), op.tensor(1), op.optional(2)
    if x.dtype != "float32" or not isinstance(weight, Constant):
        raise NoLowering("Conv with computed weights" if x.dtype == "float32" else f"Conv of {x.dtype}")
    bytes_, columns, tail = match_dequantised(x), weights_of(weight, 0), len(weight.shape) - 2
    if bytes_ is not None and columns is not None and (op.get("group", 1) == 1 or columns[0].shifts is None):
        zero = bytes_.zero
        total = exact(lambda a, w: convolve(op, a, w, zero), bytes_.integers, zero, columns[0], tail)
        convolution = scale_sums(total, bytes_.scale, columns[1], tail)
    else:
        convolution = convolve(op, x, weight)
    if bias is not None:
        convolution = pointwise("add", convolution, reshape(bias, (weight.shape[0], *(1,) * tail)))
    return convolution


def convolve(op: OpContext, x: Node, weight: Constant, fill: int = 0) -> Node:
    """The convolution of an operator's attributes, without bias: of float32, or of uint8 with int8 into int32, `fill` around x.

    Raises:
        NoLowering: shapes do not fit.
    """
    kernel = weight.shape[2:]
    spatial = len(kernel)
    strides = tuple(op.get("strides") or [1] * spatial)
    dilations = tuple(op.get("dilations") or [1] * spatial)
    pads = pads_of(op, x.shape[2:], kernel, strides, dilations)
    groups = op.get("group", 1)
    out = tuple(
        pool_size(size, kernel[i], strides[i], dilations[i], (pads[i], pads[i + spatial]), ceil=False)
        for i, size in enumerate(x.shape[2:])
    )
    if groups * weight.shape[1] != x.shape[1] or weight.shape[0] % groups or min(out, default=1) < 1:
        raise NoLowering(f"Conv of {list(x.shape)} with {list(weight.shape)} in {groups} groups")
    if weight.shape[1] == 1 < groups < weight.shape[0] and math.prod(kernel) > 1:
        x, groups = _repeat_channels(x, weight.shape[0] // groups), weight.shape[0]
    shape, dtype = (x.shape[0], weight.shape[0], *out), "float32" if x.dtype == "float32" else "int32"
    whole = Conv(
        shape, dtype, x, weight, strides, pads=tuple(pads[:spatial]), dilations=dilations, groups=groups, fill=fill
    )
    return _without_padding(_by_rows_of_taps(whole))


def _repeat_channels(x: Node, times: int) -> Node:
    """Each channel as often as results are made of it. A depthwise convolution reads vectors of channels; one that makes several
    results of a channel would read element by element."""
    images, channels, *sizes = x.shape
    repeated = broadcast_node(reshape(x, (images, channels, 1, *sizes)), (images, channels, times, *sizes))
    return reshape(repeated, (images, channels * times, *sizes))


_FEW_CHANNELS = 4
"""Input channels up to which a convolution takes a row of taps for the channels of one."""


def _by_rows_of_taps(conv: Conv) -> Conv:
    """A convolution of few channels (an image's colours) as one without taps along the last dimension, whose channels are the
    taps with their channels: a run of memory, once the source is copied with its channels last and its padding."""
    weight, x = conv.weight, conv.source
    assert isinstance(weight, Constant)
    channels, taps, stride = x.shape[1], weight.shape[-1], conv.strides[-1]
    if conv.groups > 1 or channels > _FEW_CHANNELS or taps == 1 or conv.dilations[-1] > 1:
        return conv
    images, _, *outer, extent = x.shape
    width = max((conv.shape[-1] - 1) * stride + taps, conv.pads[-1] + extent)
    rank = len(x.shape)
    last = transpose(x, (0, *range(2, rank), 1))
    inside = pad(last, (*(0,) * (rank - 2), conv.pads[-1], 0), (images, *outer, width, channels), conv.fill)
    # Of another rank than the images of convolutions, so that it lies row-major.
    lines = (1,) * (rank == 3) + (images * math.prod(outer), width, channels)
    stored = Pointwise(lines, x.dtype, "identity", (reshape(inside, lines),))

    def mapping(coords: Coords) -> Coords:
        image, j, *spots, o = coords
        tap, channel = j.split(channels)
        return (*(ZERO,) * (rank == 3), flatten((image, *spots), (images, *outer)), o * stride + tap, channel)

    rows = View((images, taps * channels, *outer, conv.shape[-1]), x.dtype, stored, mapping)
    array = np.ascontiguousarray(np.moveaxis(weight.array, -1, 1)).reshape(weight.shape[0], -1, *weight.shape[2:-1], 1)
    strides, pads = (*conv.strides[:-1], 1), (*conv.pads[:-1], 0)
    row_weight = Constant(array.shape, weight.dtype, array)
    return replace(conv, source=rows, weight=row_weight, strides=strides, pads=pads, groups=1)


_FEW = 4
"""Output positions along a dimension that are no image's."""
_FLOPS_A_BYTE = 8
"""Operations that take as long as reading a byte of weights: each part of a convolution reads its own."""
_PART = 2_000_000
"""Operations that take as long as starting a part: threads wait for each other."""
_WORTH_IT = 0.9
"""Of the time of a convolution in one piece, what it may take at most in parts: their tiles are not all full."""


def _without_padding(conv: Conv) -> Node:
    """In parts, each with only those kernel taps that do not fall into the padding for any of its output positions: in a deep
    network on short clips, and where a dilation is as large as the image, most of them do."""
    if conv.weight.shape[1] == 1 or conv.fill:
        return conv  # one channel at a time is bound by memory, not by products; and padding that is not zero counts
    axes = range(len(conv.strides))
    whole = [[(0, conv.shape[2 + axis], range(conv.weight.shape[2 + axis]))] for axis in axes]
    options = [(uncut, _intervals(conv, axis) or uncut) for axis, uncut in enumerate(whole)]
    best = min(itertools.product(*options), key=lambda cut: _conv_time(conv, cut))
    if _conv_time(conv, best) > _WORTH_IT * _conv_time(conv, whole):
        return conv
    weight = conv.weight
    assert isinstance(weight, Constant)
    parts: list[Conv] = []
    starts: list[tuple[int, ...]] = []
    for intervals in itertools.product(*best):
        array = weight.array
        for axis, (_, _, taps) in enumerate(intervals):
            array = array.take(taps, axis=2 + axis)
        array = np.ascontiguousarray(array)
        pads = tuple(
            pad - first * stride - taps[0] * dilation
            for (first, _, taps), pad, stride, dilation in zip(
                intervals, conv.pads, conv.strides, conv.dilations, strict=True
            )
        )
        shape = (*conv.shape[:2], *(stop - first for first, stop, _ in intervals))
        part_weight = Constant(array.shape, weight.dtype, array)
        parts.append(replace(conv, shape=shape, weight=part_weight, pads=pads))
        starts.append((0, 0, *(first for first, _, _ in intervals)))
    if len(parts) == 1:
        return parts[0]
    return ConcatBuffer(conv.shape, conv.dtype, tuple(parts), tuple(starts), (1,) * len(conv.shape), split=True)


def _intervals(conv: Conv, axis: int) -> list[tuple[int, int, range]]:
    """Output positions along an axis, from and to, that have the same taps inside the source, and those taps. None where a
    position has no tap inside, where Winograd's form may save more (neighbouring taps, on more than a few positions), and along the
    first dimension, where the tiles of a product leave such taps out themselves (`cpu.implicit_gemm.Product.inside`)."""
    if conv.shape[2 + axis] > _FEW and (conv.dilations[axis] == 1 or axis == 0):
        return []
    extent, taps = conv.source.shape[2 + axis], conv.weight.shape[2 + axis]
    intervals: list[tuple[int, int, range]] = []
    for o in range(conv.shape[2 + axis]):
        start = o * conv.strides[axis] - conv.pads[axis]
        inside = [t for t in range(taps) if 0 <= start + t * conv.dilations[axis] < extent]
        if not inside:
            return []
        tap_range = range(inside[0], inside[-1] + 1)
        if intervals and intervals[-1][2] == tap_range:
            intervals[-1] = (intervals[-1][0], o + 1, tap_range)
        else:
            intervals.append((o, o + 1, tap_range))
    return intervals


def _conv_time(conv: Conv, cut: Sequence[Sequence[tuple[int, int, range]]]) -> float:
    """Of a convolution cut into parts along each axis, in operations: those of its products, and as many as take as long as
    reading the weights of all parts and starting them. Products and weights are sums over all combinations of intervals, hence
    products of sums."""
    outputs = math.prod(conv.shape[:2])
    channels = conv.weight.shape[0] * conv.weight.shape[1]
    starting = _PART * math.prod(map(len, cut))
    products = math.prod(sum((stop - first) * len(taps) for first, stop, taps in axis) for axis in cut)
    weights = math.prod(sum(len(taps) for _, _, taps in axis) for axis in cut)
    return 2 * outputs * conv.weight.shape[1] * products + _FLOPS_A_BYTE * 4 * channels * weights + starting


def _slide(x: Node, kernels: Node, shape: Shape, pads: tuple[int, ...], groups: int) -> Conv:
    """A convolution in steps of 1 over neighbours."""
    ones = (1,) * len(pads)
    return Conv(shape, "float32", x, kernels, ones, pads, dilations=ones, groups=groups)


@lowering("ConvTranspose")
def conv_transpose(op: OpContext) -> Node:
    """By output phase: every position modulo the stride sees its own part of the kernel, as an ordinary convolution."""
    x, weight, bias = op.tensor(0), op.tensor(1), op.optional(2)
    if x.dtype != "float32" or not isinstance(weight, Constant):
        raise NoLowering("ConvTranspose with computed weights")
    spatial, groups = len(weight.shape) - 2, op.get("group", 1)
    ones = (1,) * spatial
    strides = tuple(op.get("strides") or ones)
    dilations = tuple(op.get("dilations") or ones)
    padding = op.get("output_padding") or (0,) * spatial
    crop = transpose_crop(
        op.get("auto_pad", "NOTSET"),
        x.shape[2:],
        kernel=weight.shape[2:],
        strides=strides,
        dilations=dilations,
        pads=op.get("pads"),
        output_padding=padding,
        output_shape=op.get("output_shape"),
    )
    before = [low for low, _ in crop]
    spatial_sizes = [
        strides[i] * (size - 1) + (weight.shape[2 + i] - 1) * dilations[i] + 1 - sum(crop[i])
        for i, size in enumerate(x.shape[2:])
    ]
    shape = (x.shape[0], weight.shape[1] * groups, *spatial_sizes)
    if shape != op.shape or weight.shape[0] != x.shape[1] or x.shape[1] % groups:
        raise NoLowering(f"ConvTranspose of {list(x.shape)} with {list(weight.shape)} to {list(op.shape)}")
    array = _spread(weight.array, dilations, strides)
    kernel, channels = array.shape[2:], op.shape[1]
    # All phases have as many outputs; what is too much is cut off.
    sizes = tuple(-(-size // stride) for size, stride in zip(op.shape[2:], strides, strict=True))
    out = (*op.shape[:2], *(size * stride for size, stride in zip(sizes, strides, strict=True)))
    # Output o = s * q + phase takes x[i] * w[k] for s * i - pad + k = o, so k = first + s * t and i = q + shift - t.
    phases = list(np.ndindex(*strides))
    taps = [[_phase(*facts) for facts in zip(phase, strides, kernel, before, strict=True)] for phase in phases]
    columns = reshape(bias, (channels, *ones)) if bias is not None else None
    if groups == 1 and len(phases) > 1 and channels * len(phases) <= _NARROW:
        return _cut(_interleave_phases(x, array, columns, taps, sizes, out), op.shape)
    grouped = array.reshape(groups, len(array) // groups, *array.shape[1:]).swapaxes(1, 2)
    parts: list[Node] = []
    for tap in taps:
        index = np.ix_(*(range(extent) for extent in grouped.shape[:3]), *(chosen for chosen, _ in tap))
        turned = np.flip(grouped[index], tuple(range(3, 3 + spatial))).reshape(channels, -1, *(len(c) for c, _ in tap))
        pads = tuple(len(chosen) - 1 - shift for chosen, shift in tap)
        kernels = Constant(turned.shape, "float32", np.ascontiguousarray(turned))
        part: Node = _slide(x, kernels, (*out[:2], *sizes), pads, groups)
        parts.append(pointwise("add", part, columns) if columns is not None else part)
    if len(parts) == 1:
        return _cut(parts[0], op.shape)
    starts = tuple((0, 0, *phase) for phase in phases)
    return _cut(ConcatBuffer(out, "float32", tuple(parts), starts, (1, 1, *strides), split=True), op.shape)


def _cut(x: Node, shape: Shape) -> Node:
    return take(x, [0] * len(shape), [1] * len(shape), shape)


def _spread(weight: np.ndarray, dilations: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """The kernel with zeros between its taps, and behind them where it is shorter than the stride."""
    taps = weight.shape[2:]
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(taps, dilations, strict=True)]
    full = np.zeros((*weight.shape[:2], *(max(r, s) for r, s in zip(reach, strides, strict=True))), weight.dtype)
    inside = tuple(slice(0, r, d) for r, d in zip(reach, dilations, strict=True))
    full[(slice(None), slice(None), *inside)] = weight
    return full


_NARROW = 16
"""Output channels, all phases together, that one vector can hold."""


def _phase(phase: int, stride: int, size: int, edge: int) -> tuple[np.ndarray, int]:
    """Kernel taps that outputs of a phase see, and `shift`."""
    first = (phase + edge) % stride
    return np.arange(first, size, stride), (phase + edge - first) // stride


def _interleave_phases(
    x: Node,
    weight: np.ndarray,
    bias: Node | None,
    taps: Sequence[Sequence[tuple[np.ndarray, int]]],
    sizes: Shape,
    shape: Shape,
) -> Node:
    """All phases as the channels of one convolution, where few channels would leave vectors empty."""
    spatial, c_in, c_out = len(sizes), weight.shape[0], weight.shape[1]
    low = [min(shift - len(chosen) + 1 for chosen, shift in (tap[axis] for tap in taps)) for axis in range(spatial)]
    high = [max(shift for _, shift in (tap[axis] for tap in taps)) for axis in range(spatial)]
    span = [last - first + 1 for first, last in zip(low, high, strict=True)]
    full = np.zeros((len(taps), c_out, c_in, *span), np.float32)
    for number, phase_taps in enumerate(taps):
        index = np.ix_(np.arange(c_in), np.arange(c_out), *(chosen for chosen, _ in phase_taps))
        turned = np.flip(weight[index], tuple(range(2, 2 + spatial))).swapaxes(0, 1)
        where = tuple(
            slice(shift - len(chosen) + 1 - first, shift + 1 - first)
            for (chosen, shift), first in zip(phase_taps, low, strict=True)
        )
        full[number][(slice(None), slice(None), *where)] = turned
    array = np.ascontiguousarray(full.reshape(-1, *full.shape[2:]))
    kernel = Constant(array.shape, "float32", array)
    pads = tuple(-first for first in low)
    phase_channels: Node = _slide(x, kernel, (shape[0], len(array), *sizes), pads, groups=1)
    strides = tuple(size // phase_size for size, phase_size in zip(shape[2:], sizes, strict=True))
    apart = reshape(phase_channels, (shape[0], *strides, c_out, *sizes))
    order = [0, spatial + 1]
    for axis in range(spatial):
        order += [spatial + 2 + axis, 1 + axis]
    output = reshape(transpose(apart, order), shape)
    return pointwise("add", output, bias) if bias is not None else output
