from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from bricolage.costs.latency import QUANTILE, Latency, enough, interval_ranks
from bricolage.measure.statistics import Ratio, UncertainValue, paired_ratio, pool_estimates, significant

times = st.floats(1e-4, 1e4)


@given(st.integers(1, 400), st.sampled_from([0.5, QUANTILE, 0.1]))
def test_the_ranks_are_the_tightest_that_hold_95_percent(count: int, quantile: float) -> None:
    low, high = interval_ranks(count, quantile)
    below = binom(count, quantile)
    assert low == 0 or below.cdf(low) <= 0.025 + 1e-12
    assert below.cdf(low + 1) > 0.025
    assert high == count - 1 or below.sf(high) <= 0.025 + 1e-12
    assert below.sf(high - 1) > 0.025 or low == high


@given(st.integers(1, 400))
def test_the_ranks_of_a_median_are_symmetric(count: int) -> None:
    low, high = interval_ranks(count)
    assert low + high == count - 1


@pytest.mark.parametrize("quantile", [0.5, QUANTILE])
def test_the_normal_approximation_joins_the_exact_ranks(quantile: float) -> None:
    low, high = interval_ranks(1001, quantile)
    assert abs(low - (int(binom.ppf(0.025, 1001, quantile)) - 1)) <= 1
    assert abs(high - int(binom.ppf(0.975, 1001, quantile))) <= 1
    assert [interval_ranks(count)[0] for count in (1, 5, 6, 8, 9)] == [0, 0, 0, 0, 1]


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
    """A/A test: one end of a 95 % interval is missed 10 times in 400, so one of two equals may win so often."""
    generator = np.random.default_rng(7)
    false_alarms = 0
    for _ in range(400):
        one, two = (generator.lognormal(0.0, 0.05, size=(25, 1)).tolist() for _ in range(2))
        false_alarms += significant(paired_ratio(one, two))
    assert false_alarms <= 16


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
    for trial in range(100):
        luck = np.exp(rng.normal(0, 0.03, (2, 6)))[:, owners] * np.exp(rng.normal(0, 0.01, (2, 48)))
        before, after = ([[float(ms)] for ms in times] for times in luck)
        ratio = paired_ratio(before, after, trial, owners.tolist())
        covered += ratio.low <= 1.0 <= ratio.high
        plain = paired_ratio(before, after, trial)
        alone += plain.low <= 1.0 <= plain.high
        assert ratio.rounds == 48
    assert covered > 85, "equal programs are told to be equal"
    assert alone < covered - 10, "as they are not where rounds of one process count as independent"


def test_one_process_is_what_no_process_is() -> None:
    before, after = [[1.0], [1.2], [0.9], [1.1]], [[0.8], [1.0], [0.9], [0.7]]
    assert paired_ratio(before, after, 3, [0, 0, 0, 0]) == paired_ratio(before, after, 3)


# --- beside other processes -----------------------------------------------------------------------------------------


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[list[float], list[float], list[bool]]:
    """Times of an undisturbed machine, the same with time added to at most 60 % of them, and to which."""
    true = draw(st.lists(st.floats(0.5, 2.0), min_size=10, max_size=60))
    hit = draw(st.lists(st.booleans(), min_size=len(true), max_size=len(true)))
    for number in range(len(true)):
        if sum(hit) > 0.6 * len(true):
            hit[number] = False
    added = draw(st.lists(st.floats(0.0, 1e6), min_size=len(true), max_size=len(true)))
    return true, [t + a * h for t, a, h in zip(true, added, hit, strict=True)], hit


@given(neighbours())
def test_noise_of_any_size_on_three_rounds_of_five_leaves_the_estimate_among_the_undisturbed(
    given_times: tuple[list[float], list[float], list[bool]],
) -> None:
    """Whether or not it is known which rounds were disturbed."""
    true, seen, hit = given_times
    clean = [time for time, bad in zip(true, hit, strict=True) if not bad]
    for flags in (hit, [True] * len(seen)):
        found = Latency.of_rounds([[time] for time in seen], flags)
        assert found.low_ms <= found.median_ms <= found.high_ms
        if any(flags):
            assert min(true) <= found.median_ms <= max(clean) + 1e-9


@given(st.lists(times, min_size=1, max_size=60))
def test_undisturbed_rounds_count_as_they_ever_did(samples: list[float]) -> None:
    assert Latency.of_rounds([[one] for one in samples], [False] * len(samples)) == Latency.of(samples)
    ratios = [
        paired_ratio([[2.0]] * len(samples), [[one] for one in samples], 1, None, bad)
        for bad in ([], [False] * len(samples))
    ]
    assert ratios[0] == ratios[1]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.4, 0.6])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("known", [True, False], ids=["known", "all suspect"])
def test_two_programs_that_differ_by_a_fifth_keep_their_order(share: float, scale: float, known: bool) -> None:
    """Beside noise that only adds, of any size and on up to 60 % of the rounds of each."""
    generator = np.random.default_rng(5)
    for _ in range(5):
        sides, flags = [], np.zeros(40, bool)
        for base in (1.2, 1.0):
            hit = generator.random(40) < share * 0.9  # so that chance seldom makes it more than 60 %
            hit &= np.cumsum(hit) <= 24
            seen = base * generator.lognormal(0.0, 0.02, 40) + hit * generator.exponential(scale, 40)
            sides.append(seen)
            flags |= hit
        disturbed = list(flags if known else np.ones(40, bool))
        slow, fast = (Latency.of_rounds([[t] for t in seen], disturbed) for seen in sides)
        assert fast.median_ms < slow.median_ms
        ratio = paired_ratio([[t] for t in sides[0]], [[t] for t in sides[1]], 0, None, disturbed)
        assert 1.1 < ratio.value < 1.3


def test_a_low_quantile_stands_what_a_median_does_not_and_scatters_less_than_the_minimum() -> None:
    """The experiment behind `QUANTILE`: errors of estimators of an undisturbed median, by the share of disturbed rounds."""
    generator = np.random.default_rng(11)

    def errors(share: float, count: int = 21, repeats: int = 2000) -> dict[str, float]:
        clean = generator.lognormal(0.0, 0.03, (repeats, count))
        hit = generator.random((repeats, count)) < share
        seen = clean * (1 + hit * generator.exponential(0.5, (repeats, count)))
        found = {
            "median": np.median(seen, axis=1),
            "quantile": np.quantile(seen, QUANTILE, axis=1),
            "minimum": seen.min(axis=1),
        }
        return {name: float(np.sqrt(np.mean(np.log(value) ** 2))) for name, value in found.items()}

    some, most = errors(0.3), errors(0.6)
    assert some["quantile"] < some["minimum"] and most["quantile"] < most["minimum"]
    assert most["quantile"] < most["median"] / 3
    quiet = errors(0.0)
    assert quiet["median"] < quiet["quantile"], "which is why undisturbed rounds have their median"


def test_enough_undisturbed_rounds_speak_for_all() -> None:
    assert enough(3, 7) and enough(3, 9) and enough(20, 60)
    assert not enough(2, 2) and not enough(2, 7) and not enough(3, 10) and not enough(0, 0)
    rounds = [[1.0], [1.1], [1.2], [50.0], [60.0]]
    assert Latency.of_rounds(rounds, [False, False, False, True, True]) == Latency.of([1.0, 1.1, 1.2])
    assert Latency.of_rounds(rounds, [False, True, True, True, True]).samples == 5


# --- evidence from several sources ----------------------------------------------------------------------------------

estimates = st.builds(
    lambda value, low, high: UncertainValue(value, value * low, value * high),
    st.floats(0.01, 100), st.floats(0.2, 1.0), st.floats(1.0, 5.0),
)  # fmt: skip


@given(st.lists(estimates, min_size=1, max_size=5), st.randoms())
def test_a_pooled_estimate_lies_among_its_sources_whatever_their_order(
    sources: list[UncertainValue], rng: random.Random
) -> None:
    found = pool_estimates(sources)
    assert min(one.value for one in sources) * 0.999 <= found.value <= max(one.value for one in sources) * 1.001
    assert found.low <= found.value <= found.high
    shuffled = sources.copy()
    rng.shuffle(shuffled)
    assert pool_estimates(shuffled).value == pytest.approx(found.value)


def test_the_sure_source_weighs_more_and_contradiction_widens() -> None:
    sure, vague = UncertainValue(1.0, 0.99, 1.01), UncertainValue(1.2, 0.7, 2.0)
    assert pool_estimates([sure, vague]).value == pytest.approx(1.0, abs=0.01)
    agreeing, contradicting = pool_estimates([sure, sure]), pool_estimates([sure, UncertainValue(2.0, 1.98, 2.02)])
    assert agreeing.high / agreeing.low <= sure.high / sure.low
    assert contradicting.low < 1.1 and contradicting.high > 1.8 and contradicting.value == pytest.approx(2**0.5)
    with pytest.raises(ValueError, match="positive"):
        pool_estimates([])
    with pytest.raises(ValueError, match="positive"):
        pool_estimates([UncertainValue(1.0, 0.0, 2.0)])


@given(estimates, estimates)
def test_ratios_of_estimates_invert(one: UncertainValue, other: UncertainValue) -> None:
    there, back = one.over(other), other.over(one)
    assert there.value * back.value == pytest.approx(1.0) and there.spread == pytest.approx(back.spread)
    assert one.widened(0.3).spread >= max(0.3, one.spread) - 1e-9
