"""Memory that is alive over time: the curve of its bytes, and its peak.

Predictions of memory list lifetimes: of tensors between regions, in milliseconds or steps; of a
training step's storages, in operators; of a pipeline stage's activations, in milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

Label = TypeVar("Label")


@dataclass(frozen=True)
class Lifetime:
    """`bytes` of memory that are taken at `start` and given back at `end`: milliseconds, or numbers of steps. What ends at a moment
    makes room for what starts then."""

    bytes: int
    start: float
    end: float = math.inf

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both are alive at some moment."""
        return self.start < other.end and other.start < self.end


def curve(lifetimes: Iterable[Lifetime]) -> list[tuple[float, int]]:
    """Bytes that are alive from a moment on, at each moment at which that changes; before the first there are none."""
    changes: dict[float, int] = {}
    for lifetime in lifetimes:
        if lifetime.start < lifetime.end:
            changes[lifetime.start] = changes.get(lifetime.start, 0) + lifetime.bytes
            changes[lifetime.end] = changes.get(lifetime.end, 0) - lifetime.bytes
    levels, alive = [], 0
    for moment, change in sorted(changes.items()):
        alive += change
        if change and moment < math.inf:
            levels.append((moment, alive))
    return levels


def peak(lifetimes: Iterable[Lifetime], at: Iterable[float] | None = None) -> int:
    """The most bytes that are alive at a moment; at one of the moments `at`, if they are given."""
    steps = curve(lifetimes)
    if at is None:
        return max((size for _, size in steps), default=0)
    places = (bisect_right(steps, moment, key=itemgetter(0)) for moment in at)
    return max((steps[place - 1][1] for place in places if place), default=0)


def alive(labelled: Iterable[tuple[Label, Lifetime]], at: float) -> dict[Label, int]:
    """Bytes that are alive at a moment, by label; labels of which nothing is alive are left out."""
    bytes_by_label: dict[Label, int] = {}
    for label, lifetime in labelled:
        if lifetime.start <= at < lifetime.end:
            bytes_by_label[label] = bytes_by_label.get(label, 0) + lifetime.bytes
    return bytes_by_label
