"""What was achieved before says what can be expected: against scipy, where too little is known, and one vote a network."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from bricolage.base.codec import decode, encode
from bricolage.costs.decision_log import Attempt, Compiling, NetworkTimes, UnusableLine, read_lines
from bricolage.costs.models.track_record import SHIPPED, DecisionSubject, TrackRecord, shipped_record, student_quantile
from bricolage.graph.network_kind import NetworkKind


def least(known: TrackRecord, name: str, kind: NetworkKind, measured: dict[str, float], risk: float) -> float | None:
    found = known.expect(name, DecisionSubject(kind), measured)
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
    assert (few.seen("slow", DecisionSubject("matrix")), few.seen("slow", DecisionSubject("other"))) == (4, 0)
    assert (few.compile_s("slow", 10), few.compile_s("quick", 10)) == (7.0, None)


@given(st.lists(st.floats(0.5, 4.0), min_size=4, max_size=12), st.floats(0.01, 0.5), st.floats(0.01, 0.5))
def test_less_risk_is_more_optimistic(ratios: list[float], one: float, other: float) -> None:
    found = record(*ratios)
    low, high = (least(found, "slow", "matrix", {"quick": 1.0}, risk) for risk in sorted((one, other)))
    assert low is not None and high is not None and low <= high * (1 + 1e-12)


@given(st.lists(st.floats(0.5, 4.0), min_size=4, max_size=12), st.floats(0.02, 0.98))
def test_the_chance_to_be_faster_than_a_bound_is_its_risk(ratios: list[float], risk: float) -> None:
    found = record(*ratios).expect("slow", DecisionSubject("matrix"), {"quick": 1.0})
    assert found is not None and found.chance(found.least_ms(risk)) == pytest.approx(risk, abs=0.02)


def attempts(kind: NetworkKind, incumbent: str, *gains: float, processor: str = "") -> list[Attempt]:
    """On a network for each gain."""
    return [Attempt("way", f"{kind} {n}", kind, incumbent, gain, processor=processor) for n, gain in enumerate(gains)]


def test_ways_are_judged_where_they_are_alike() -> None:
    found = TrackRecord(
        attempts=(
            *attempts("convolutional", "a", 0.0, 0.0, 0.0, 0.0),
            *attempts("matrix", "a", 0.0, 0.3),
            *attempts("matrix", "b", 0.2),
        )
    )
    convolutional = found.tries("way", DecisionSubject("convolutional"), "a")
    assert (convolutional.networks, convolutional.won, convolutional.gains) == (4, 0.0, ()) and convolutional.is_known
    matrix = found.tries("way", DecisionSubject("matrix"), "a")
    assert (matrix.networks, matrix.won, matrix.gains) == (2, 1.0, (0.3,)), "networks of other kinds have no vote"
    assert matrix.chance == pytest.approx(1.5 / 3) and not matrix.is_known
    assert not found.tries("way", DecisionSubject("matrix"), "c").networks
    assert not found.tries("other", DecisionSubject("matrix"), "a").networks
    unknown = found.tries("way", DecisionSubject("matrix"), "c")
    assert unknown.chance == 0.5 and not unknown.is_known, "of what was never tried nothing is known"


def test_one_network_is_one_vote() -> None:
    """However often it was decided on, and whoever led; of equals the newest counts."""
    often = [Attempt("way", "often", "matrix", "a", gain) for gain in (0.3, 0.3, 0.3, 0.0)]
    found = TrackRecord(attempts=(*often, *attempts("matrix", "a", 0.1, 0.0, 0.0, 0.0)))
    tries = found.tries("way", DecisionSubject("matrix"), "a")
    assert (tries.networks, tries.won, tries.gains) == (5, 1.0, (0.1,))
    times = [NetworkTimes("often", "matrix", "here", {"quick": 1.0, "slow": 9.0})] * 20
    few = TrackRecord((*record(1.2, 1.3, 1.25).networks, *times))
    assert few.seen("slow", DecisionSubject("matrix")) == 4
    expected = few.expect("slow", DecisionSubject("matrix"), {"quick": 1.0})
    assert expected is not None and expected.freedom == 3


def test_the_network_at_hand_never_votes() -> None:
    found = TrackRecord(record(1.2, 1.3, 1.25, 1.1).networks, attempts=tuple(attempts("matrix", "a", 0.3, 0.3, 0.3)))
    own = DecisionSubject("matrix", "matrix 1")
    assert (
        found.tries("way", own, "a").networks
        == 2
        < found.tries("way", DecisionSubject("matrix", "another"), "a").networks
    )
    assert found.expect("slow", DecisionSubject("matrix", "3"), {"quick": 1.0}) is None, "three others are too few"
    assert found.expect("slow", DecisionSubject("matrix", "another"), {"quick": 1.0}) is not None


def test_other_processors_shrink_this_ones_vote() -> None:
    """This one's counts twice as much as the mean of the others'; where it has none, theirs stand for it."""
    lines = [
        *attempts("matrix", "a", 0.3, processor="here"),
        *attempts("matrix", "a", 0.0, 0.3, processor="there"),
        *attempts("matrix", "a", 0.0, 0.0, processor="elsewhere"),
    ]
    found = TrackRecord(attempts=tuple(lines))
    tries = found.tries("way", DecisionSubject("matrix", processor="here"), "a")
    assert tries.networks == 2 and tries.won == pytest.approx(2 / 3 + 1 / 2)
    assert found.tries("way", DecisionSubject("matrix", processor="unheard of"), "a").won == pytest.approx(
        1 / 3 + 1 / 2
    )


def test_a_gain_within_the_noise_is_none() -> None:
    sure, unsure = (
        Attempt("way", "n", "matrix", "a", 0.05, interval=interval) for interval in ((0.01, 0.09), (-0.01, 0.1))
    )
    assert sure.won and not unsure.won and not Attempt("way", "n", "matrix", "a", 0.02).won


def test_a_search_that_had_longer_speaks_only_against_a_shorter_one() -> None:
    def chance(seconds: float, *attempts: tuple[float, float]) -> float:
        made = tuple(Attempt("way", str(n), "matrix", "a", gain, had) for n, (gain, had) in enumerate(attempts))
        return TrackRecord(attempts=made).tries("way", DecisionSubject("matrix"), "a", seconds).chance

    assert chance(10.0, (0.1, 100.0)) == 0.5, "it may have gained in the end alone"
    assert chance(10.0, (0.0, 100.0)) == 0.25 == chance(10.0, (0.0, 10.0))
    assert chance(100.0, (0.1, 10.0)) == 0.75 == chance(10.0, (0.1, 20.0))
    assert chance(100.0, (0.0, 10.0)) == 0.5, "more time may find something"


def test_the_one_that_is_shipped_can_be_read_and_leaves_something_out() -> None:
    found = shipped_record()
    assert decode(TrackRecord, encode(found)) == found and len(found.digest) == 16
    quick = {"native f32": 1.0, "openvino f32": 1.1, "onnxruntime f32": 1.2}
    assert (least(found, "xla f32", "convolutional", quick, 0.1) or 0.0) > 1.0
    lines = list(read_lines(SHIPPED.read_text(encoding="utf-8").splitlines()))
    assert not [line for line in lines if isinstance(line, UnusableLine)]
    assert len({(one.network, one.kind) for one in found.attempts}) == len({one.network for one in found.attempts})


def test_wins_that_were_lost_once_are_in_the_log() -> None:
    """They were recorded as no gain, since both decisions shipped the very plan that the way had made."""
    wins = {(one.way, one.name, one.incumbent) for one in shipped_record().attempts if one.won}
    assert ("rewritten graphs", "conformer", "native") in wins
    assert ("rewritten graphs", "resnet3d-50", "onnxruntime") in wins
    assert ("tailored graphs", "bert-base", "onnxruntime") in wins


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
