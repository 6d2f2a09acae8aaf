"""How a tensor lies on p devices, and what it takes to change that.

A layout is a word: "S(i)", divided along axis i; "R", whole on each device; "P", on each a summand of the same shape. OneFlow calls
them S, B and P (Yuan et al., arXiv 2110.15032), DTensor Shard, Replicate and Partial. The table of bytes is computed for rings of
equal devices. On these, OneFlow's code charges P to B (p - 1) T, half of an all-reduce, and S to P (p - 1) T where nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from bricolage.device.collective import Ring

Layout: TypeAlias = str
"""On one axis of devices; on several axes one word for each."""
REPLICATED: Layout = "R"
PARTIAL: Layout = "P"
MEAN: Layout = "P(avg)"
"""Summands whose mean is wanted, as each device's loss is one of the whole."""
_WORDS = (REPLICATED, PARTIAL, MEAN)


def split_along(axis: int) -> Layout:
    """Divided along an axis."""
    return f"S({axis})"


def split_axis(layout: Layout) -> int | None:
    """The axis along which it is divided; None where it is not.

    Raises:
        ValueError: it is no layout.
    """
    if layout in _WORDS:
        return None
    if layout.startswith("S(") and layout.endswith(")") and layout[2:-1].isdigit():
        return int(layout[2:-1])
    raise ValueError(f"'{layout}' is no layout: use S(axis), R, P or P(avg)")


def is_partial(layout: Layout) -> bool:
    """Whether each device has a summand."""
    return layout in (PARTIAL, MEAN)


def held_bytes(layout: Layout, size: float, workers: int) -> float:
    """Bytes on each of the devices, of a tensor of `size` bytes."""
    return size if split_axis(layout) is None else size / workers


def splits(shape: Sequence[int], workers: int) -> list[Layout]:
    """Along each axis that p devices divide evenly."""
    return [split_along(axis) for axis, length in enumerate(shape) if length and length % workers == 0]


def packed_bytes(source: Layout, target: Layout, size: float, workers: int) -> float:
    """Bytes that each device copies within its memory for a conversion: what is sent or received lies in one piece only if it is
    divided along the first axis (as Zhao et al., PPoPP 2021, lay out ghost zones so that nothing is packed)."""
    if source in (target, REPLICATED) or is_partial(target):
        return 0.0
    ways_in, ways_out = split_axis(source), split_axis(target)
    if ways_in is not None and ways_out is not None:
        return size / workers * ((ways_in > 0) + (ways_out > 0))
    return size if (ways_in or 0) > 0 or (ways_out or 0) > 0 else 0.0


def conversion_ms(source: Layout, target: Layout, size: float, ring: Ring) -> float:
    """Milliseconds of a conversion of a tensor of `size` bytes among the devices of a ring, packing included.

    Summands are made of whole tensors alone, without a message: one device keeps it, the others have zeros. Infinite where they are
    wanted of parts, or a mean of a sum.
    """
    if source in (target, REPLICATED):
        return 0.0
    if is_partial(target):
        return math.inf
    packing = ring.copy_ms(packed_bytes(source, target, size, ring.workers))
    if is_partial(source):
        ms = ring.all_reduce_ms(size) if target == REPLICATED else ring.reduce_scatter_ms(size)
    else:
        ms = ring.all_gather_ms(size) if target == REPLICATED else ring.all_to_all_ms(size)
    return ms + packing
