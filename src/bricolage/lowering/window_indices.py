"""Index tables of sliding windows, shared by convolution and pooling, in plain integers.

Source of the formulas: the ONNX operator documentation of Conv, ConvTranspose, MaxPool and AveragePool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from bricolage.graph.extents import Pairs, input_pads, is_explicit, pairs, pool_size, same_pads

Ints = tuple[int, ...]


class WindowAttributes(TypedDict, total=False):
    """ONNX's attributes of all that slides a window."""

    auto_pad: str
    dilations: Ints | None
    pads: Ints | None
    strides: Ints | None


class ConvAttributes(WindowAttributes, total=False):
    """Those of convolutions."""

    group: int
    kernel_shape: Ints | None
    """What the weights say as well."""


class _Kernel(TypedDict):
    kernel_shape: Ints


class PoolAttributes(_Kernel, WindowAttributes, total=False):
    """Those of pools."""

    ceil_mode: int


@dataclass(frozen=True)
class WindowSteps:
    """How a window slides, along each spatial axis."""

    strides: Ints
    dilations: Ints
    pads: Pairs


def resolve_windows(sizes: Sequence[int], kernel: Sequence[int], attributes: WindowAttributes) -> WindowSteps:
    """How a window of `kernel` elements slides over spatial `sizes`."""
    strides = attributes.get("strides") or (1,) * len(kernel)
    dilations = attributes.get("dilations") or (1,) * len(kernel)
    auto_pad = attributes.get("auto_pad", "NOTSET")
    return WindowSteps(
        strides, dilations, input_pads(auto_pad, sizes, kernel, strides, dilations, attributes.get("pads"))
    )


@dataclass(frozen=True)
class WindowTable:
    """One axis of a pooling: for window o and tap k the input index, and where the tap counts.

    index: [windows, taps], clipped into the input; inside: the tap lies on the input; padded: on the input or its pads.
    """

    index: np.ndarray
    inside: np.ndarray
    padded: np.ndarray


def window_table(size: int, k: int, stride: int, dilation: int, pad: tuple[int, int], ceil: bool) -> WindowTable:
    """The table of an axis of `size` elements for windows of `k` taps."""
    windows = pool_size(size, k, stride, dilation, pad, ceil)
    index = np.arange(windows)[:, None] * stride - pad[0] + np.arange(k)[None, :] * dilation
    inside = (index >= 0) & (index < size)
    padded = (index >= -pad[0]) & (index < size + pad[1])
    return WindowTable(np.clip(index, 0, max(size - 1, 0)), inside, padded)


def combine_masks(tables: Sequence[np.ndarray]) -> np.ndarray:
    """AND of per-axis masks [o, k] as one mask [o1, o2, ..., k1, k2, ...]."""
    dims = len(tables)
    result = np.ones((1,) * (2 * dims), bool)
    for axis, table in enumerate(tables):
        view = [1] * (2 * dims)
        view[axis], view[axis + dims] = table.shape
        result = result & table.reshape(view)
    return result


def transpose_crop(
    auto_pad: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    output_padding: Sequence[int],
    output_shape: Sequence[int] | None,
) -> Pairs:
    """What a transposed convolution cuts from the begin and end of its full output; negative means zeros are added."""
    explicit = is_explicit(auto_pad)
    if output_shape is None and explicit:
        given = [(0, 0)] * len(kernel) if auto_pad == "VALID" else pairs(pads, len(kernel))
        return [(low, high - extra) for (low, high), extra in zip(given, output_padding, strict=True)]
    wanted = output_shape
    if wanted is None:
        wanted = [size * stride for size, stride in zip(sizes, strides, strict=True)]
    result: Pairs = []
    for i, size in enumerate(sizes):
        full = strides[i] * (size - 1) + output_padding[i] + (kernel[i] - 1) * dilations[i] + 1
        target = wanted[len(wanted) - len(sizes) + i]
        low, _ = same_pads(max(full - target, 0), auto_pad == "SAME_UPPER")
        result.append((low, full - output_padding[i] - low - target))
    return result
