"""From samples to statements: a latency with its interval, a ratio with its interval, and when a gain is real.

Latencies are milliseconds. Samples of one round (one turn of a candidate) share the state of the machine, so a round
counts as one observation: its median.

Other processes only ever add time. Rounds that they disturbed are left out as long as enough others remain; where they do
not, a low quantile of all stands for the median of an undisturbed machine: as long as no more than `1 - QUANTILE` of the rounds
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
THRESHOLD = 0.02
"""A challenger must gain more than this, however sure the gain is."""
QUANTILE = 0.25
"""Of disturbed rounds. Lower ones stand more disturbed rounds and scatter more."""
_ENOUGH = 3
_ENOUGH_PART = 1 / 3
"""Undisturbed rounds that are enough, and which part of all rounds they must be."""
_RESAMPLES = 2000
_NORMAL = 1.96
"""Standard deviations from the mean to the end of a 95 % interval."""
_LEAST_SPREAD = 0.005
"""Standard deviation, in logarithms, that any ratio has at least, however narrow its interval."""


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
    """Whether so many undisturbed rounds of all can speak for all."""
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
    disturbed: Sequence[bool] = (),
) -> Ratio:
    """Speed-up of the challenger from interleaved rounds: round i of both ran side by side, so drift cancels in its
    ratio.

    The value is the median of the rounds' ratios; the interval is the percentile bootstrap of that median (Efron and
    Tibshirani, An Introduction to the Bootstrap, chapter 13), the same for the same seed. Where the rounds ran in several
    `processes` (for each round, which), the value is the median of the processes' medians, and whole processes are drawn, then
    rounds within them: what a process was lucky with, its pages in memory say, it keeps in all its rounds.

    Rounds in which one of both was `disturbed` are left out where enough others remain. Where they do not, the ratio is that
    of both sides' low quantiles (`Latency.of_disturbed`): neighbours hit one side of a pair as often as the other, so pairs
    would not cancel what they add.

    Raises:
        ValueError: the numbers of rounds differ, or are 0, or a sample is not positive.
    """
    if len(incumbent) != len(challenger) or not incumbent:
        raise ValueError("a paired ratio needs the same number of rounds on both sides, at least one")
    before = np.array([statistics.median(samples) for samples in incumbent])
    after = np.array([statistics.median(samples) for samples in challenger])
    if not (np.all(before > 0) and np.all(after > 0)):
        raise ValueError("a ratio needs positive times")
    owners = np.zeros(len(before), int) if processes is None else np.asarray(processes)
    clean = ~np.asarray(disturbed, bool) if len(disturbed) else np.ones(len(before), bool)
    paired = bool(clean.all()) or enough(int(clean.sum()), len(clean))
    if paired:
        before, after, owners = before[clean], after[clean], owners[clean]
    estimate = _median_ratio if paired else _ratio_of_quantiles
    own = [(before[owners == owner], after[owners == owner]) for owner in np.unique(owners)]
    rng = np.random.default_rng(seed)
    estimates = np.array([estimate(b, a, rng.integers(0, len(b), size=(_RESAMPLES, len(b)))) for b, a in own])
    drawn = rng.integers(0, len(own), size=(len(own), _RESAMPLES))
    low, high = np.quantile(
        np.median(np.take_along_axis(estimates, drawn, axis=0), axis=0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    )
    value = float(np.median([estimate(b, a, np.arange(len(b))[None])[0] for b, a in own]))
    return Ratio(value, min(float(low), value), max(float(high), value), len(before))


def _median_ratio(before: np.ndarray, after: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """For each row of rounds drawn, the median of their ratios."""
    found: np.ndarray = np.median((before / after)[drawn], axis=1)
    return found


def _ratio_of_quantiles(before: np.ndarray, after: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """For each row of rounds drawn, the ratio of both sides' low quantiles."""
    found: np.ndarray = np.quantile(before[drawn], QUANTILE, axis=1) / np.quantile(after[drawn], QUANTILE, axis=1)
    return found


@dataclass(frozen=True)
class UncertainValue:
    """A positive quantity with its 95 % interval, from one source: a time in ms, or a ratio of times."""

    value: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Standard deviation of its logarithm."""
        return max(_LEAST_SPREAD, math.log(self.high / self.low) / (2 * _NORMAL))

    def widened(self, spread: float) -> UncertainValue:
        """With a standard deviation, in logarithms, of at least that."""
        return _around(math.log(self.value), max(self.spread, spread))

    def over(self, other: UncertainValue) -> UncertainValue:
        """The ratio of two independent estimates: this one divided by the other."""
        return _around(math.log(self.value / other.value), math.hypot(self.spread, other.spread))


def _around(mean: float, spread: float) -> UncertainValue:
    reach = _NORMAL * spread
    return UncertainValue(math.exp(mean), math.exp(mean - reach), math.exp(mean + reach))


def pooled(estimates: Sequence[UncertainValue]) -> UncertainValue:
    """One estimate from independent sources: the mean of their logarithms, weighted by the inverse of their variances.
    Where the sources scatter more than their intervals explain, the interval is wider by that factor (Birge, Phys. Rev. 40,
    207, 1932; the scale factor of the Particle Data Group).

    Raises:
        ValueError: there are none, or one is not positive.
    """
    if not estimates or not all(0.0 < one.low <= one.value <= one.high < math.inf for one in estimates):
        raise ValueError("estimates must be positive, and at least one")
    if len(estimates) == 1:
        return estimates[0]
    values, weights = np.log([one.value for one in estimates]), np.array([one.spread**-2 for one in estimates])
    mean = float(weights @ values / weights.sum())
    scatter = float(weights @ (values - mean) ** 2) / (len(estimates) - 1)
    return _around(mean, math.sqrt(max(1.0, scatter) / float(weights.sum())))


def significant(ratio: Ratio, threshold: float = THRESHOLD) -> bool:
    """Whether the challenger replaces the incumbent: its gain exceeds both the threshold and the noise (the distance
    from the value down to the low end of the interval)."""
    gain = ratio.value - 1.0
    return gain > threshold and gain > ratio.value - ratio.low
