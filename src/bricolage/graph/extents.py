"""How large results are: windows over an axis, their padding, and what a Slice keeps; plain integers.

Source of the formulas: the ONNX operator documentation of Conv, MaxPool, AveragePool and Slice.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def slice_bounds(start: int, stop: int, step: int, size: int) -> tuple[int, int | None]:
    """Bounds of an ONNX Slice as those of a Python slice: clamped, and None for "through element 0" when the step is negative.

    With a negative step a start before the axis is element 0, which Python would leave out. On an empty axis the bounds are
    (-1, None), and nothing is left.
    """
    start = start + size if start < 0 else start
    stop = stop + size if stop < 0 else stop
    if step > 0:
        return min(max(start, 0), size), min(max(stop, 0), size)
    start = min(max(start, 0), size - 1)
    stop = min(max(stop, -1), size - 1)
    return start, None if stop < 0 else stop
