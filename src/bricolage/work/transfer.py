"""Boundary costs: what it takes to hand a tensor from one backend to another."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class BoundaryCosts(Protocol):
    """A pure function: the time in ms to hand `size` bytes from `producer` to `consumer` (backend names)."""

    def __call__(self, producer: str, consumer: str, size: int, /) -> float: ...


@dataclass(frozen=True)
class NoBoundaryCosts:
    """Handing over is free; the model is then purely additive."""

    def __call__(self, producer: str, consumer: str, size: int, /) -> float:  # noqa: ARG002 - the protocol's shape
        return 0.0


@dataclass(frozen=True)
class TableBoundaryCosts:
    """Measured costs for each ordered pair of backends.

    `table` maps (producer, consumer) to points (bytes, ms) in ascending order of bytes. Between two points the cost is
    linear in log2(bytes); below the first it is constant; above the last it continues with the slope in bytes of the
    last two points, so a zero-copy hand-over stays constant and a copy keeps growing with its size. A pair that was
    never measured costs nothing within one backend, and otherwise as much as the most expensive measured pair, so that
    a placement never counts on a hand-over that nobody has seen.
    """

    table: Mapping[tuple[str, str], Sequence[tuple[int, float]]]

    def __call__(self, producer: str, consumer: str, size: int, /) -> float:
        points = self.table.get((producer, consumer))
        if points:
            return interpolate(points, size)
        if producer == consumer:
            return 0.0
        return max((interpolate(known, size) for known in self.table.values() if known), default=0.0)


def interpolate(points: Sequence[tuple[int, float]], size: int) -> float:
    """Cost in ms of `size` bytes from at least one (bytes, ms) point in ascending order; see `TableBoundaryCosts`."""
    size = max(size, 1)
    after = bisect.bisect_left(points, size, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    low_bytes, low_ms = points[after - 1]
    if after == len(points):
        if len(points) == 1:
            return low_ms
        earlier_bytes, earlier_ms = points[-2]
        slope = (low_ms - earlier_ms) / (low_bytes - earlier_bytes)
        return low_ms + max(slope, 0.0) * (size - low_bytes)
    high_bytes, high_ms = points[after]
    low_bytes = max(low_bytes, 1)
    share = math.log2(size / low_bytes) / math.log2(high_bytes / low_bytes) if high_bytes > low_bytes else 1.0
    return low_ms + share * (high_ms - low_ms)
