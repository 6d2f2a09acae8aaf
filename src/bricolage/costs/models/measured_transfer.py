"""Measured transfer costs, interpolated between sizes."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bricolage.work.cost import Estimate
from bricolage.work.implementation import Endpoint
from bricolage.work.transfer import FREE

_FALLBACK_MS = 0.02
_FALLBACK_MS_PER_BYTE = 1 / 4e6

Pair = tuple[Endpoint, Endpoint]
"""(producer, consumer)."""


@dataclass(frozen=True)
class MeasuredTransferCosts:
    """Cost of handing `size` bytes from `producer` to `consumer`: `costs(producer, consumer, size)`.

    Between measured sizes the cost is linear in bytes, below the smallest it is constant, above the largest it goes on
    with the last slope; it never falls with size. A pair that was not measured costs as much as the worst measured pair
    at that size (0 within one endpoint), and where no pair is measured 20 µs plus a copy at 4 GB/s: a placement must not
    count on a transfer that was never measured.
    """

    table: Mapping[Pair, Sequence[tuple[int, float]]]
    """(bytes, ms) in ascending order of bytes."""
    failures: Mapping[Pair, str] = field(default_factory=dict)
    """Pairs that do not work in one process, with the reason."""

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> Estimate:
        """The time to hand over `size` bytes. Between endpoints that were not measured together the interval begins at the fastest
        pair that was."""
        key = producer, consumer, size
        if key not in self._estimates:
            self._estimates[key] = self._estimate(producer, consumer, size)
        return self._estimates[key]

    def _estimate(self, producer: Endpoint, consumer: Endpoint, size: int) -> Estimate:
        points = self._rising.get((producer, consumer))
        if points is not None:
            return Estimate.of(_interpolate(points, size), "measured")
        if producer == consumer:
            return FREE
        others = [_interpolate(curve, size) for (a, b), curve in self._rising.items() if a != b]
        if not others:
            return Estimate.of(_FALLBACK_MS + size * _FALLBACK_MS_PER_BYTE, "described")
        return Estimate(max(others), min(others), max(others), "composed")

    @cached_property
    def _estimates(self) -> dict[tuple[Endpoint, Endpoint, int], Estimate]:
        """What was asked: searches and simulations ask the same again and again."""
        return {}

    @cached_property
    def _rising(self) -> dict[Pair, list[tuple[int, float]]]:
        """The table with noise that makes a larger tensor cheaper taken out."""
        rising: dict[Pair, list[tuple[int, float]]] = {}
        for pair, points in self.table.items():
            highest = 0.0
            for size, ms in sorted(points):
                highest = max(highest, ms)
                rising.setdefault(pair, []).append((size, highest))
        return rising


def _interpolate(points: Sequence[tuple[int, float]], size: int) -> float:
    after = bisect.bisect_left(points, size, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    if after == len(points):
        if len(points) == 1:
            return points[0][1]
        after -= 1
    (low, low_ms), (high, high_ms) = points[after - 1], points[after]
    return low_ms + (size - low) * (high_ms - low_ms) / (high - low)
