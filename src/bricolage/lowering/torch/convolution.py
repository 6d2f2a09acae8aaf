"""Convolution, pooling and resizing as single ATen calls."""

from __future__ import annotations

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import fx

from bricolage.graph.extents import Pairs, is_explicit
from bricolage.lowering.torch.fused import NodeView, emitter
from bricolage.lowering.torch.known_values import Emitted
from bricolage.lowering.window_indices import WindowAttributes, WindowSteps, resolve_windows

_CONV = {3: torch.conv1d, 4: torch.conv2d, 5: torch.conv3d}
CONVOLUTIONS = frozenset(_CONV.values())
_CONV_TRANSPOSE = {3: F.conv_transpose1d, 4: F.conv_transpose2d, 5: F.conv_transpose3d}
_MAX_POOL = {3: torch.max_pool1d, 4: torch.max_pool2d, 5: torch.max_pool3d}
_AVERAGE_POOL = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}


def _steps(v: NodeView, kernel: tuple[int, ...]) -> WindowSteps | None:
    """None when the pads depend on a size that is not known."""
    shape = v.shape(0)
    if shape is None and not is_explicit(v.get("auto_pad", "NOTSET")):
        return None
    sizes = shape[2:] if shape else (0,) * len(kernel)
    return resolve_windows(sizes, kernel, cast(WindowAttributes, v.attributes))


def _pad_input(v: NodeView, x: fx.Node | None, pads: Pairs, value: float) -> tuple[fx.Node | None, tuple[int, ...]]:
    """The input and the symmetric pads left to the kernel; uneven or negative pads are applied first."""
    if all(low == high >= 0 for low, high in pads):
        return x, tuple(low for low, _ in pads)
    flat = [n for pair in reversed(pads) for n in pair]
    return v.call(torch.constant_pad_nd, x, flat, value), (0,) * len(pads)


@emitter("Conv")
def conv(v: NodeView) -> Emitted | None:
    weight = v.shape(1)
    if weight is None or len(weight) not in _CONV:
        return None
    steps = _steps(v, weight[2:])
    if steps is None:
        return None
    strides, pads, dilations = steps.strides, steps.pads, steps.dilations
    x, symmetric = _pad_input(v, v.tensor(0), pads, 0)
    run = _CONV[len(weight)]
    sizes = {"stride": strides, "padding": symmetric, "dilation": dilations, "groups": v.get("group", 1)}
    return v.call(run, x, v.tensor(1), v.tensor(2), **sizes)


@emitter("ConvTranspose")
def conv_transpose(v: NodeView) -> Emitted | None:
    weight = v.shape(1)
    if weight is None or len(weight) not in _CONV_TRANSPOSE or v.get("output_shape"):
        return None
    if not is_explicit(v.get("auto_pad", "NOTSET")):
        return None
    steps = _steps(v, weight[2:])
    if steps is None:
        return None
    strides, pads, dilations = steps.strides, steps.pads, steps.dilations
    extra = tuple(v.get("output_padding") or (0,) * len(strides))
    fits = all(e < max(s, d) for e, s, d in zip(extra, strides, dilations, strict=True))
    if not fits or any(low != high or low < 0 for low, high in pads):
        return None
    run = _CONV_TRANSPOSE[len(weight)]
    symmetric = tuple(low for low, _ in pads)
    sizes = {"stride": strides, "padding": symmetric, "output_padding": extra, "dilation": dilations}
    return v.call(run, v.tensor(0), v.tensor(1), v.tensor(2), groups=v.get("group", 1), **sizes)


@emitter("MaxPool")
def max_pool(v: NodeView) -> Emitted | None:
    kernel = tuple(v.get("kernel_shape"))
    steps = _steps(v, kernel)
    if steps is None or v.outputs > 1 or len(kernel) + 2 not in _MAX_POOL or not v.is_float(0):
        return None
    strides, pads, dilations = steps.strides, steps.pads, steps.dilations
    if any(2 * low > k for (low, _), k in zip(pads, kernel, strict=True)):
        return None
    ceil = bool(v.get("ceil_mode", 0))
    if ceil and any(low != high for low, high in pads):
        return None
    x, symmetric = _pad_input(v, v.tensor(0), pads, -math.inf)
    return v.call(_MAX_POOL[len(kernel) + 2], x, kernel, strides, symmetric, dilations, ceil)


@emitter("AveragePool")
def average_pool(v: NodeView) -> Emitted | None:
    kernel = tuple(v.get("kernel_shape"))
    steps = _steps(v, kernel)
    if steps is None or len(kernel) + 2 not in _AVERAGE_POOL:
        return None
    strides, pads, dilations = steps.strides, steps.pads, steps.dilations
    if any(d != 1 for d in dilations) or any(2 * low > k for (low, _), k in zip(pads, kernel, strict=True)):
        return None
    counts_pads = bool(v.get("count_include_pad", 0))
    ceil = bool(v.get("ceil_mode", 0))
    if any(low != high for low, high in pads) and (ceil or not counts_pads):
        return None
    x, symmetric = _pad_input(v, v.tensor(0), pads, 0)
    return v.call(_AVERAGE_POOL[len(kernel) + 2], x, kernel, strides, symmetric, ceil, counts_pads)


def _spatial_axes(v: NodeView) -> tuple[int, ...] | None:
    rank = v.rank(0)
    return None if rank is None else tuple(range(2, rank))


@emitter("GlobalAveragePool")
def global_average_pool(v: NodeView) -> Emitted | None:
    axes = _spatial_axes(v)
    return v.call(torch.mean, v.tensor(0), axes, True) if axes else None


@emitter("GlobalMaxPool")
def global_max_pool(v: NodeView) -> Emitted | None:
    axes = _spatial_axes(v)
    return v.call(torch.amax, v.tensor(0), axes, True) if axes else None


@emitter("Resize")
def resize(v: NodeView) -> Emitted | None:
    """Nearest (asymmetric, floor, whole factors) and linear (half-pixel, align-corners) of 4-D images."""
    shape = v.shape(0)
    scales = v.const(2) if v.opset >= 11 else v.const(1)
    if shape is None or len(shape) != 4 or scales is None or scales.numel() != 4 or v.get("axes"):
        return None
    factors = [float(s) for s in scales.tolist()]
    if factors[:2] != [1.0, 1.0] or v.given(3) or v.get("antialias", 0) or not v.is_float(0):
        return None
    whole = all(f == int(f) for f in factors[2:])
    out = [int(d * f) for d, f in zip(shape[2:], factors[2:], strict=True)]
    mode = v.get("mode", "nearest")
    coordinates = v.get("coordinate_transformation_mode", "half_pixel") if v.opset >= 11 else "asymmetric"
    if mode == "nearest" and whole and coordinates in ("asymmetric", "half_pixel", "pytorch_half_pixel"):
        # By a whole factor every rounding rule picks the same pixel in the half-pixel modes.
        floor = v.get("nearest_mode", "round_prefer_floor") == "floor" or v.opset < 11
        if coordinates == "asymmetric" and not floor:
            return None
        if coordinates != "asymmetric" and v.get("nearest_mode", "round_prefer_floor") not in (
            "round_prefer_floor",
            "round_prefer_ceil",
        ):
            return None
        return v.call(torch._C._nn.upsample_nearest2d, v.tensor(0), out)
    if mode == "linear" and whole and not v.get("exclude_outside", 0):
        if coordinates == "align_corners":
            return v.call(torch._C._nn.upsample_bilinear2d, v.tensor(0), out, True)
        if coordinates in ("half_pixel", "pytorch_half_pixel") and min(out) > 1:
            return v.call(torch._C._nn.upsample_bilinear2d, v.tensor(0), out, False)
    return None
