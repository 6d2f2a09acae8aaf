"""Sliding-window geometry shared by convolution and pooling: pads, output sizes and index tables, in plain integers.

Source of the formulas: the ONNX operator documentation of Conv, ConvTranspose, MaxPool and AveragePool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Pairs = list[tuple[int, int]]


def pairs(pads: Sequence[int] | None, dims: int) -> Pairs:
    """ONNX pads (all begins, then all ends) as one (begin, end) for each axis."""
    if pads is None or len(pads) == 0:
        return [(0, 0)] * dims
    return [(int(pads[i]), int(pads[i + dims])) for i in range(dims)]


def is_explicit(auto_pad: str) -> bool:
    """Whether the pads do not depend on the input's size."""
    return auto_pad not in ("SAME_UPPER", "SAME_LOWER")


def same_pads(total: int, upper: bool) -> tuple[int, int]:
    """Divide the padding; the odd element goes to the end for SAME_UPPER and to the beginning for SAME_LOWER."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def input_pads(
    auto_pad: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
) -> Pairs:
    """The explicit pads of a convolution or pooling over spatial `sizes`."""
    if auto_pad == "VALID":
        return [(0, 0)] * len(kernel)
    if is_explicit(auto_pad):
        return pairs(pads, len(kernel))
    result: Pairs = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        out = -(-size // stride)
        total = max((out - 1) * stride + (k - 1) * dilation + 1 - size, 0)
        result.append(same_pads(total, auto_pad == "SAME_UPPER"))
    return result


def pool_size(size: int, k: int, stride: int, dilation: int, pad: tuple[int, int], ceil: bool) -> int:
    """Number of windows. With `ceil`, a window that would start in the end padding is dropped."""
    span = size + pad[0] + pad[1] - ((k - 1) * dilation + 1)
    if not ceil:
        return span // stride + 1
    count = -(-span // stride) + 1
    return count - 1 if (count - 1) * stride >= size + pad[0] else count


@dataclass(frozen=True)
class WindowTable:
    """One axis of a pooling: for window o and tap k the input index, and where the tap counts.

    index: [windows, taps], clipped into the input; inside: the tap lies on the input; padded: on the input or its pads.
    """

    index: np.ndarray[Any, Any]
    inside: np.ndarray[Any, Any]
    padded: np.ndarray[Any, Any]


def window_table(size: int, k: int, stride: int, dilation: int, pad: tuple[int, int], ceil: bool) -> WindowTable:
    """The table of an axis of `size` elements for windows of `k` taps."""
    windows = pool_size(size, k, stride, dilation, pad, ceil)
    index = np.arange(windows)[:, None] * stride - pad[0] + np.arange(k)[None, :] * dilation
    inside = (index >= 0) & (index < size)
    padded = (index >= -pad[0]) & (index < size + pad[1])
    return WindowTable(np.clip(index, 0, max(size - 1, 0)), inside, padded)


def combine(tables: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
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
