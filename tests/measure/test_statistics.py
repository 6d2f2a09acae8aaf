from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from bricolage.measure.statistics import Latency, Ratio, interval_ranks, paired_ratio, significant

times = st.floats(1e-4, 1e4)


@given(st.integers(6, 400))
def test_the_rank_is_the_tightest_that_holds_95_percent(count: int) -> None:
    rank = interval_rank(count)
    assert 1 - 2 * binom.cdf(rank, count, 0.5) >= 0.95 - 1e-12
    assert 1 - 2 * binom.cdf(rank + 1, count, 0.5) < 0.95


def test_the_normal_approximation_joins_the_exact_rank() -> None:
    exact = int(binom.ppf(0.025, 1001, 0.5)) - 1
    assert abs(interval_rank(1001) - exact) <= 1
    assert [interval_rank(count) for count in (1, 5, 6, 8, 9)] == [0, 0, 0, 0, 1]


@given(st.lists(times, min_size=1, max_size=60))
def test_a_latency_holds_its_median_and_ignores_order(samples: list[float]) -> None:
    latency = Latency.of(samples)
    assert min(samples) <= latency.low_ms <= latency.median_ms <= latency.high_ms <= max(samples)
    shuffled = samples.copy()
    random.Random(1).shuffle(shuffled)
    assert Latency.of(shuffled) == latency


def test_the_interval_covers_the_true_median_95_times_of_100() -> None:
    generator = np.random.default_rng(3)
    hits = sum(
        latency.low_ms <= 1.0 <= latency.high_ms
        for latency in (Latency.of(list(generator.lognormal(0.0, 0.5, 25))) for _ in range(2000))
    )
    assert hits / 2000 >= 0.94


def test_rounds_count_once_however_many_samples_they_have() -> None:
    latency = Latency.of_rounds([[1.0, 1.0, 9.0], [2.0], [3.0, 3.0]])
    assert (latency.median_ms, latency.samples) == (2.0, 3)


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_no_latency_from_nothing(samples: list[float]) -> None:
    with pytest.raises(ValueError):
        Latency.of(samples)


@given(st.lists(times, min_size=1, max_size=30), st.floats(0.5, 2.0))
def test_drift_cancels_in_a_paired_ratio(drift: list[float], speedup: float) -> None:
    ratio = paired_ratio([[speedup * d] for d in drift], [[d] for d in drift])
    assert ratio.value == pytest.approx(speedup) and ratio.low == pytest.approx(speedup)
    assert ratio.low <= ratio.value <= ratio.high and ratio.rounds == len(drift)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=30), st.integers(0, 5))
def test_the_bootstrap_is_seeded(pairs: list[tuple[float, float]], seed: int) -> None:
    before, after = [[a] for a, _ in pairs], [[b] for _, b in pairs]
    assert paired_ratio(before, after, seed) == paired_ratio(before, after, seed)


def test_a_race_against_itself_is_rarely_significant() -> None:
    """A/A test: one end of a 95 % interval is missed 25 times in 1000, so one of two equals may win so often."""
    generator = np.random.default_rng(7)
    false_alarms = 0
    for _ in range(1000):
        one, two = (generator.lognormal(0.0, 0.05, size=(25, 1)).tolist() for _ in range(2))
        false_alarms += significant(paired_ratio(one, two))
    assert false_alarms <= 40


@given(st.floats(0.3, 3.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5))
def test_significant_means_beyond_the_threshold_and_the_noise(value: float, below: float, above: float) -> None:
    ratio = Ratio(value, value - below * value, value + above, 20)
    gain = value - 1.0  # as rounded: 1.02 - 1.0 is a little more than 0.02
    assert significant(ratio) == (gain > 0.02 and value - ratio.low < gain)
    assert not (significant(ratio) and significant(ratio.inverse))


def test_ratios_refuse_what_is_not_paired() -> None:
    with pytest.raises(ValueError):
        paired_ratio([[1.0]], [[1.0], [2.0]])
    with pytest.raises(ValueError):
        paired_ratio([[0.0]], [[1.0]])


def test_ratios_compose() -> None:
    assert Ratio(2.0, 1.5, 2.5, 9).through(Ratio(1.1, 1.0, 1.2, 5)) == Ratio(2.2, 1.5, 3.0, 5)


def test_what_a_process_is_lucky_with_widens_the_interval() -> None:
    rng, covered, alone = np.random.default_rng(0), 0, 0
    owners = np.repeat(np.arange(6), 8)
    for trial in range(200):
        luck = np.exp(rng.normal(0, 0.03, (2, 6)))[:, owners] * np.exp(rng.normal(0, 0.01, (2, 48)))
        before, after = ([[float(ms)] for ms in times] for times in luck)
        ratio = paired_ratio(before, after, trial, owners.tolist())
        covered += ratio.low <= 1.0 <= ratio.high
        plain = paired_ratio(before, after, trial)
        alone += plain.low <= 1.0 <= plain.high
        assert ratio.rounds == 48
    assert covered > 170, "equal programs are told to be equal"
    assert alone < covered - 20, "as they are not where rounds of one process count as independent"


def test_one_process_is_what_no_process_is() -> None:
    before, after = [[1.0], [1.2], [0.9], [1.1]], [[0.8], [1.0], [0.9], [0.7]]
    assert paired_ratio(before, after, 3, [0, 0, 0, 0]) == paired_ratio(before, after, 3)
