"""What a layer alone moves on a machine with a buffer before its memory, in the best of all its blocks: the model of Optimus.

See `group_traffic` for the model, and for layers that are computed together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from bricolage.search.layer_groups.layer_network import Layer


@dataclass(frozen=True)
class MemoryLevels:
    """A buffer before a memory."""

    words: int
    """Capacity of the buffer."""
    buffer_cost: float
    """Of a word that is read or written there."""
    memory_cost: float
    """Of one in the memory behind it."""
    least_channels: int = 1
    """The least block of output channels and of columns: what the arithmetic works on at once."""
    rounds_up: bool = False
    """Whether tiles and blocks of groups are found as fractions that fit and rounded up, as in the authors' program. What it then
    counts with may be more than the buffer holds."""
    passing_free: bool = True
    """Whether a layer without weights of its own is free where it is alone, as in the authors' program. Otherwise it reads and
    writes memory, and element-wise layers may be computed on what a layer stores before it is stored."""


@dataclass(frozen=True)
class GroupCost:
    """What a group takes."""

    cost: float
    """Infinite where it does not fit."""
    memory_words: float = math.inf
    """Of the cost: words that move to and from the memory."""


NOTHING = GroupCost(0.0, 0.0)
IMPOSSIBLE = GroupCost(math.inf)


@cache
def _price_blocks(
    channels_in: int, channels: int, sides: tuple[int, int], taps: int, stride: int, batch: int, levels: MemoryLevels
) -> GroupCost:
    near, far = levels.buffer_cost, levels.memory_cost
    rows, columns = sides
    step = stride**2
    pixels = batch * rows * columns
    operations = pixels * channels * channels_in * taps
    inputs, outputs, weights = channels_in * pixels * step, channels * pixels, channels_in * channels * taps
    outs = np.arange(min(levels.least_channels, channels), channels + 1, dtype=float)[:, None]
    ins = np.arange(1, channels_in + 1, dtype=float)[None, :]
    room = np.floor((levels.words - taps * outs * ins) / (ins * step + outs))
    tiles = _tiles(batch, rows, columns, min(levels.least_channels, columns))
    at = np.searchsorted(tiles, np.minimum(room, pixels), side="right") - 1
    block = np.where((at >= 0) & (room > 0), tiles[np.maximum(at, 0)], np.nan).astype(float)
    reads, sums, filters = operations * step / (taps * outs), operations / (taps * ins), operations / block
    moved = {  # what stays: words to and from the memory, by blocks
        "outputs": reads + outputs + filters,
        "weights": reads + (2 * sums - outputs) + weights,
        "inputs": inputs + (2 * sums - outputs) + filters,
    }
    kept = inputs + outputs + filters  # all channels of the input, or of the output, are there
    inner = near * (reads + 2 * sums - outputs + filters)
    best = IMPOSSIBLE
    for memory in (*moved.values(), np.where((ins == channels_in) | (outs == channels), kept, np.nan)):
        cost = far * memory + inner
        if np.isnan(cost).all():
            continue
        where = int(np.nanargmin(cost))
        if cost.flat[where] < best.cost:
            best = GroupCost(float(cost.flat[where]), float(np.broadcast_to(memory, cost.shape).flat[where]))
    return best


def alone(layer: Layer, batch: int, levels: MemoryLevels) -> GroupCost:
    """One layer with its blocks, of all whole numbers of channels and of pixels that are a rectangle of rows, columns and images.

    A layer without arithmetic of its own is free, as in the authors' program: it works on what its source writes.
    """
    if not layer.weighted:
        return NOTHING
    groups, sides = layer.groups, (layer.size, layer.width)
    ins, outs = layer.channels_in // groups, layer.channels // groups
    part = _price_blocks(ins, outs, sides, layer.window_taps, layer.stride, batch, levels)
    return GroupCost(groups * part.cost, groups * part.memory_words)


@lru_cache(maxsize=256)
def _tiles(batch: int, most_rows: int, most_columns: int, least_columns: int) -> np.ndarray:
    """All products of images, rows and columns, in ascending order."""
    columns = np.arange(least_columns, most_columns + 1)
    rows = np.arange(1, most_rows + 1)
    flat = np.unique(columns[:, None] * rows[None, :])
    return np.unique(np.arange(1, batch + 1)[:, None] * flat[None, :])
