"""What was achieved before bounds what can be expected: against scipy, and where too little is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from bricolage.codec import decode, encode
from bricolage.graph.network_kind import NetworkKind
from bricolage.perf.track_record import Attempt, Compiling, NetworkTimes, TrackRecord, shipped, student_quantile


def least(known: TrackRecord, name: str, kind: NetworkKind, measured: dict[str, float], risk: float) -> float | None:
    found = known.expect(name, kind, measured)
    return None if found is None else found.least_ms(risk)


def record(*ratios: float, kind: str = "matrix") -> TrackRecord:
    """Of networks on which "slow" took so many times what "quick" did."""
    networks = [NetworkTimes(str(n), kind, "here", {"quick": 2.0, "slow": 2.0 * r}) for n, r in enumerate(ratios)]  # type: ignore[arg-type]
    return TrackRecord(tuple(networks), {"slow": Compiling(2.0, 0.5)})


@pytest.mark.parametrize("freedom", [3, 4, 7, 20, 200])
@pytest.mark.parametrize("probability", [0.01, 0.05, 0.1, 0.5, 0.9])
def test_quantiles_are_scipys(probability: float, freedom: int) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(
        student.ppf(probability, freedom), rel=0.01, abs=1e-9
    )


def test_a_bound_is_the_prediction_interval_of_the_ratio() -> None:
    ratios = [1.2, 1.5, 1.4, 1.1, 1.6]
    logs = np.log(ratios)
    low = logs.mean() + student.ppf(0.1, 4) * logs.std(ddof=1) * math.sqrt(1.2)
    found = least(record(*ratios), "slow", "matrix", {"quick": 3.0, "unheard of": 0.1}, 0.1)
    assert found == pytest.approx(3.0 * math.exp(low), rel=0.01), "over who is on record alone"


def test_a_bound_holds_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    ratios = np.exp(rng.normal(0.3, 0.2, size=(400, 7)))
    broken = sum(
        row[6] < (least(record(*map(float, row[:6])), "slow", "matrix", {"quick": 1.0}, 0.1) or 0.0) for row in ratios
    )
    assert 20 <= broken <= 60, "a tenth of 400"


def test_too_little_says_nothing() -> None:
    assert least(record(1.5, 1.5, 1.5), "slow", "matrix", {"quick": 1.0}, 0.1) is None
    few = record(1.5, 1.5, 1.5, 1.5)
    assert least(few, "slow", "matrix", {"quick": 1.0}, 0.1) is not None
    assert least(few, "slow", "recurrent", {"quick": 1.0}, 0.1) is None, "another kind of network"
    assert least(few, "slow", "matrix", {"unheard of": 1.0}, 0.1) is None
    assert least(few, "slow", "matrix", {}, 0.1) is None
    assert (few.seen("slow", "matrix"), few.seen("slow", "other")) == (4, 0)
    assert (few.compile_s("slow", 10), few.compile_s("quick", 10)) == (7.0, None)


@given(st.lists(st.floats(0.5, 4.0), min_size=4, max_size=12), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_less_risk_is_more_optimistic(ratios: list[float], one: float, other: float) -> None:
    found = record(*ratios)
    low, high = (least(found, "slow", "matrix", {"quick": 1.0}, risk) for risk in sorted((one, other)))
    assert low is not None and high is not None and low <= high * (1 + 1e-12)


@given(st.lists(st.floats(0.5, 4.0), min_size=4, max_size=12), st.floats(0.02, 0.98))
def test_the_chance_to_be_faster_than_a_bound_is_its_risk(ratios: list[float], risk: float) -> None:
    found = record(*ratios).expect("slow", "matrix", {"quick": 1.0})
    assert found is not None and found.chance(found.least_ms(risk)) == pytest.approx(risk, abs=0.02)


def test_ways_are_judged_where_they_are_alike() -> None:
    def attempts(kind: str, incumbent: str, *gains: float) -> list[Attempt]:
        return [Attempt("way", str(n), kind, incumbent, gain) for n, gain in enumerate(gains)]  # type: ignore[arg-type]

    found = TrackRecord(
        attempts=(
            *attempts("convolutional", "a", 0.0, 0.0, 0.0, 0.0),
            *attempts("matrix", "a", 0.0, 0.3),
            *attempts("matrix", "b", 0.2),
        )
    )
    assert (
        found.tries("way", "convolutional", "a").gains == () and found.tries("way", "convolutional", "a").decisions == 4
    )
    assert found.tries("way", "matrix", "a").decisions == 6, "too few of the kind: those of all kinds"
    assert found.tries("way", "matrix", "a").chance == pytest.approx(1.5 / 7)
    assert found.tries("way", "matrix", "c").decisions == 0 == found.tries("other", "matrix", "a").decisions
    assert found.tries("way", "matrix", "c").chance == 0.5, "of what was never tried nothing is known"


def test_a_search_that_had_longer_speaks_only_against_a_shorter_one() -> None:
    def chance(seconds: float, *attempts: tuple[float, float]) -> float:
        made = tuple(Attempt("way", str(n), "matrix", "a", gain, had) for n, (gain, had) in enumerate(attempts))
        return TrackRecord(attempts=made).tries("way", "matrix", "a", seconds).chance

    assert chance(10.0, (0.1, 100.0)) == 0.5, "it may have gained in the end alone"
    assert chance(10.0, (0.0, 100.0)) == 0.25 == chance(10.0, (0.0, 10.0))
    assert chance(100.0, (0.1, 10.0)) == 0.75 == chance(10.0, (0.1, 20.0))
    assert chance(100.0, (0.0, 10.0)) == 0.5, "more time may find something"


def test_the_one_that_is_shipped_can_be_read_and_leaves_something_out() -> None:
    found = shipped()
    assert decode(TrackRecord, encode(found)) == found and len(found.digest) == 16 and found.source
    quick = {"native f32": 1.0, "openvino f32": 1.1, "onnxruntime f32": 1.2}
    assert (least(found, "xla f32", "convolutional", quick, 0.1) or 0.0) > 1.0
    assert found.tries("mixtures", "convolutional", "native").chance < 0.1


def test_the_bound_is_about_the_one_that_it_follows_most_closely() -> None:
    """By the fastest, the slow one could be anywhere; by its sibling it is known to within a tenth."""
    quick, sibling = [1.0, 3.0, 0.5, 2.0, 4.0], [1.6, 1.5, 1.7, 1.55, 1.65]
    slow = [1.25 * ms for ms in (1.6, 1.55, 1.65, 1.5, 1.7)]
    found = TrackRecord(
        tuple(
            NetworkTimes(str(n), "matrix", "here", {"quick": q, "sibling": b, "slow": s})
            for n, (q, b, s) in enumerate(zip(quick, sibling, slow, strict=True))
        )
    )
    beside = least(found, "slow", "matrix", {"quick": 1.0, "sibling": 1.6}, 0.1)
    assert beside is not None and 1.7 < beside < 2.0
    alone = least(found, "slow", "matrix", {"quick": 1.0}, 0.1)
    assert alone is not None and alone < 1.0
