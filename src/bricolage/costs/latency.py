"""A latency with its interval, from samples of which other processes may have made some longer. Milliseconds.

Samples of one round (one turn of a candidate) share the state of the machine, so a round counts as one observation: its median.

Other processes only ever add time. Rounds that they disturbed are left out as long as enough others remain; where they do
not, a low quantile of all estimates the median of an undisturbed machine: as long as no more than `1 - QUANTILE` of the rounds
were disturbed, it lies within the undisturbed ones, however much was added to the others.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95
QUANTILE = 0.25
"""Of disturbed rounds. Lower ones stand more disturbed rounds and scatter more."""
_ENOUGH = 3
_ENOUGH_PART = 1 / 3
"""Undisturbed rounds that are enough, and which part of all rounds they must be."""


@cache
def interval_ranks(count: int, quantile: float = 0.5) -> tuple[int, int]:
    """Zero-based ranks (low, high) such that these of the sorted samples enclose the quantile of their distribution with 95 %
    confidence.

    The number of samples below the quantile is binomial(count, quantile); each rank leaves out at most 2.5 % of its tail
    (Conover, Practical Nonparametric Statistics, section 3.2). Where no rank reaches that, as for the median of fewer
    than 6 samples, it is the first or the last: the whole range of the samples.
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    if count > 1000:  # the normal approximation is within one rank here
        spread = 1.96 * math.sqrt(count * quantile * (1.0 - quantile))
        low = math.floor(count * quantile - spread) - 1
        return max(0, low), min(count - 1, math.ceil(count * quantile + spread))
    chances = [math.comb(count, k) * quantile**k * (1.0 - quantile) ** (count - k) for k in range(count + 1)]
    below, low = 0.0, 0
    for k in range(count):
        below += chances[k]
        if below > tail:
            break
        low = k
    above, high = 0.0, count - 1
    for k in range(count, 0, -1):
        above += chances[k]
        if above > tail:
            break
        high = k - 1
    return low, high


def enough(clean: int, count: int) -> bool:
    """Whether `clean` undisturbed rounds of `count` represent all."""
    return clean >= max(_ENOUGH, count * _ENOUGH_PART)


@dataclass(frozen=True)
class Latency:
    """Median of a measured time with its 95 % interval, in milliseconds."""

    median_ms: float
    low_ms: float
    high_ms: float
    samples: int
    """Independent observations behind the median (rounds, where there were rounds)."""

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency:
        """From independent samples.

        Raises:
            ValueError: there are none, or one is not a finite number.
        """
        if not samples or not all(math.isfinite(sample) for sample in samples):
            raise ValueError("a latency needs finite samples")
        ordered = sorted(samples)
        low, high = interval_ranks(len(ordered))
        return cls(statistics.median(ordered), ordered[low], ordered[high], len(ordered))

    @classmethod
    def of_disturbed(cls, samples: Sequence[float]) -> Latency:
        """From samples of which others may have made any longer: the `QUANTILE`, as an estimate of the median that an
        undisturbed machine would show, with its own interval.

        Raises:
            ValueError: as for `of`.
        """
        if not samples or not all(math.isfinite(sample) for sample in samples):
            raise ValueError("a latency needs finite samples")
        ordered = sorted(samples)
        low, high = interval_ranks(len(ordered), QUANTILE)
        value = float(np.quantile(ordered, QUANTILE))
        return cls(value, ordered[low], max(ordered[high], value), len(ordered))

    @classmethod
    def of_rounds(cls, rounds: Sequence[Sequence[float]], disturbed: Sequence[bool] = ()) -> Latency:
        """From rounds of samples; every round counts once, by its median. `disturbed` says which rounds others disturbed
        (none where it is empty): those are left out where enough others remain.

        Raises:
            ValueError: there are no rounds, or one is empty or not finite.
        """
        medians = [statistics.median(samples) if samples else math.nan for samples in rounds]
        if not any(disturbed):
            return cls.of(medians)
        clean = [median for median, bad in zip(medians, disturbed, strict=True) if not bad]
        return cls.of(clean) if enough(len(clean), len(medians)) else cls.of_disturbed(medians)

    @property
    def width(self) -> float:
        """Width of the interval relative to the median."""
        return (self.high_ms - self.low_ms) / self.median_ms if self.median_ms > 0 else 0.0

    def overlaps(self, other: Latency) -> bool:
        """Whether the two intervals touch, so that the order of the medians may be chance."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms

    def __str__(self) -> str:
        return f"{self.median_ms:.4g} ms [{self.low_ms:.4g}, {self.high_ms:.4g}]"
