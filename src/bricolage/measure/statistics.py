"""From samples to statements: a latency with its interval, a ratio with its interval, and when a gain is real.

Latencies are milliseconds. Samples of one round (one turn of a candidate) share the state of the machine, so a round
counts as one observation: its median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

CONFIDENCE = 0.95
THRESHOLD = 0.02
"""A challenger must gain more than this, however sure the gain is."""
_RESAMPLES = 2000


@cache
def interval_rank(count: int) -> int:
    """Zero-based rank k such that the sorted samples k and count - 1 - k enclose the median with 95 % confidence.

    The number of samples below the median is binomial(count, 1/2); k is the largest rank whose two tails together hold
    at most 5 % (Conover, Practical Nonparametric Statistics, section 3.2). Below 6 samples no rank reaches 95 %: the
    answer is 0, the whole range of the samples, which holds the median with probability 1 - 2^(1 - count).
    """
    tail = (1.0 - CONFIDENCE) / 2.0
    if count > 1000:  # the normal approximation is within one rank here
        return max(0, math.floor(count / 2 - 1.96 * math.sqrt(count) / 2) - 1)
    whole = 2**count
    below, rank = 0, 0
    for k in range(count // 2):
        below += math.comb(count, k)
        if below > tail * whole:
            break
        rank = k
    return rank


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
        rank = interval_rank(len(ordered))
        return cls(statistics.median(ordered), ordered[rank], ordered[len(ordered) - 1 - rank], len(ordered))

    @classmethod
    def of_rounds(cls, rounds: Sequence[Sequence[float]]) -> Latency:
        """From rounds of samples; every round counts once, by its median.

        Raises:
            ValueError: there are no rounds, or one is empty or not finite.
        """
        return cls.of([statistics.median(samples) if samples else math.nan for samples in rounds])

    @property
    def width(self) -> float:
        """Width of the interval relative to the median."""
        return (self.high_ms - self.low_ms) / self.median_ms if self.median_ms > 0 else 0.0

    def overlaps(self, other: Latency) -> bool:
        """Whether the two intervals touch, so that the order of the medians may be chance."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms

    def __str__(self) -> str:
        return f"{self.median_ms:.4g} ms [{self.low_ms:.4g}, {self.high_ms:.4g}]"


@dataclass(frozen=True)
class Ratio:
    """Speed-up of a challenger: incumbent's time / challenger's time, with a 95 % interval. Above 1 the challenger is
    faster."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def inverse(self) -> Ratio:
        """The same comparison the other way round."""
        return Ratio(1.0 / self.value, 1.0 / self.high, 1.0 / self.low, self.rounds)

    def through(self, other: Ratio) -> Ratio:
        """The product: from A/B and B/C to A/C. The interval is the product of the bounds, which is conservative."""
        return Ratio(
            self.value * other.value, self.low * other.low, self.high * other.high, min(self.rounds, other.rounds)
        )

    def __str__(self) -> str:
        return f"{self.value:.3f}× [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(
    incumbent: Sequence[Sequence[float]],
    challenger: Sequence[Sequence[float]],
    seed: int = 0,
    processes: Sequence[int] | None = None,
) -> Ratio:
    """Speed-up of the challenger from interleaved rounds: round i of both ran side by side, so drift cancels in its
    ratio.

    The value is the median of the rounds' ratios; the interval is the percentile bootstrap of that median (Efron and
    Tibshirani, An Introduction to the Bootstrap, chapter 13), the same for the same seed. Where the rounds ran in several
    `processes` (for each round, which), the value is the median of the processes' medians, and whole processes are drawn, then
    rounds within them: what a process was lucky with, its pages in memory say, it keeps in all its rounds.

    Raises:
        ValueError: the numbers of rounds differ, or are 0, or a sample is not positive.
    """
    if len(incumbent) != len(challenger) or not incumbent:
        raise ValueError("a paired ratio needs the same number of rounds on both sides, at least one")
    before = np.array([statistics.median(samples) for samples in incumbent])
    after = np.array([statistics.median(samples) for samples in challenger])
    if not (np.all(before > 0) and np.all(after > 0)):
        raise ValueError("a ratio needs positive times")
    ratios = before / after
    owners = np.zeros(len(ratios), int) if processes is None else np.asarray(processes)
    own = [ratios[owners == owner] for owner in np.unique(owners)]
    rng = np.random.default_rng(seed)
    medians = np.array([np.median(one[rng.integers(0, len(one), size=(_RESAMPLES, len(one)))], axis=1) for one in own])
    drawn = rng.integers(0, len(own), size=(len(own), _RESAMPLES))
    low, high = np.quantile(
        np.median(np.take_along_axis(medians, drawn, axis=0), axis=0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    )
    value = float(np.median([np.median(one) for one in own]))
    return Ratio(value, min(float(low), value), max(float(high), value), len(ratios))


def significant(ratio: Ratio, threshold: float = THRESHOLD) -> bool:
    """Whether the challenger replaces the incumbent: its gain exceeds both the threshold and the noise (the distance
    from the value down to the low end of the interval)."""
    gain = ratio.value - 1.0
    return gain > threshold and gain > ratio.value - ratio.low
