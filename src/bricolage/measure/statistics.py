"""From latencies to statements: a ratio with its interval, what several sources say together, and when a gain is real."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.costs.latency import CONFIDENCE, QUANTILE, enough
from bricolage.work.gain import LEAST_GAIN

_RESAMPLES = 2000
_NORMAL = 1.96
"""Standard deviations from the mean to the end of a 95 % interval."""
_LEAST_SPREAD = 0.005
"""Standard deviation, in logarithms, that any ratio has at least, however narrow its interval."""


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
    process_rounds = [(before[owners == owner], after[owners == owner]) for owner in np.unique(owners)]
    rng = np.random.default_rng(seed)
    estimates = np.array(
        [estimate(b, a, rng.integers(0, len(b), size=(_RESAMPLES, len(b)))) for b, a in process_rounds]
    )
    drawn = rng.integers(0, len(process_rounds), size=(len(process_rounds), _RESAMPLES))
    low, high = np.quantile(
        np.median(np.take_along_axis(estimates, drawn, axis=0), axis=0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    )
    value = float(np.median([estimate(b, a, np.arange(len(b))[None])[0] for b, a in process_rounds]))
    return Ratio(value, min(float(low), value), max(float(high), value), len(before))


def _median_ratio(before: np.ndarray, after: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """For each row of rounds drawn, the median of their ratios."""
    ratios: np.ndarray = np.median((before / after)[drawn], axis=1)
    return ratios


def _ratio_of_quantiles(before: np.ndarray, after: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """For each row of rounds drawn, the ratio of both sides' low quantiles."""
    ratio_of_quantiles: np.ndarray = np.quantile(before[drawn], QUANTILE, axis=1) / np.quantile(
        after[drawn], QUANTILE, axis=1
    )
    return ratio_of_quantiles


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


def pool_estimates(estimates: Sequence[UncertainValue]) -> UncertainValue:
    """One estimate from independent sources: the mean of their logarithms, weighted by the inverse of their variances.
    Where the sources scatter more than their intervals explain, the interval is wider by that factor (Birge, Phys. Rev. 40,
    207, 1932; the scale factor of the Particle Data Group).

    Raises:
        ValueError: there are none, or one is not positive.
    """
    if not estimates or not all(
        0.0 < estimate.low <= estimate.value <= estimate.high < math.inf for estimate in estimates
    ):
        raise ValueError("estimates must be positive, and at least one")
    if len(estimates) == 1:
        return estimates[0]
    values, weights = (
        np.log([estimate.value for estimate in estimates]),
        np.array([estimate.spread**-2 for estimate in estimates]),
    )
    mean = float(weights @ values / weights.sum())
    scatter = float(weights @ (values - mean) ** 2) / (len(estimates) - 1)
    return _around(mean, math.sqrt(max(1.0, scatter) / float(weights.sum())))


def significant(ratio: Ratio, threshold: float = LEAST_GAIN) -> bool:
    """Whether the challenger replaces the incumbent: its gain exceeds both the threshold and the noise (the distance
    from the value down to the low end of the interval)."""
    gain = ratio.value - 1.0
    return gain > threshold and gain > ratio.value - ratio.low
