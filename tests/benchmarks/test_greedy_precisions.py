from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.placement.greedy_precisions import proposals
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.costs.measurements import Measurement, Measurements
from bricolage.work.implementation import Assignment, Implementation, KernelConfig

FULL, LOW = Implementation("engine"), Implementation("engine", KernelConfig("bf16"))


def timed(ms: float, error: float) -> Cost:
    return Cost("ok", Latency(ms, ms, ms, 9), error)


def measured(*segments: Mapping[Implementation, Cost]) -> Measurements:
    """Costs of segments, which are named by their numbers."""
    return Measurements(
        Measurement(str(number), one, cost) for number, costs in enumerate(segments) for one, cost in costs.items()
    )


def propose(gains: list[float], errors: list[float], whole_error: float, bound: float) -> list[tuple[int, ...]]:
    """Segments in low precision of each proposal; segment i is operator i, and costs 100 ms in full precision."""
    baselines = {FULL: timed(100.0 * len(gains), 1e-7), LOW: Cost("wrong", None, whole_error)}
    costs = measured(
        *({FULL: timed(100.0, 1e-7), LOW: timed(100.0 - gain, e)} for gain, e in zip(gains, errors, strict=True))
    )
    segments = [1 << i for i in range(len(gains))]
    proposed = proposals(segments, [str(i) for i in range(len(gains))], baselines, costs, bound)
    found = [proposal.placement for proposal in proposed]
    promises = [proposal.predicted_ms for proposal in proposed]
    assert promises == sorted(promises), "the most promising first"
    for placement in found:
        covered = [one.region for one in placement]
        assert sum(covered) == (1 << len(gains)) - 1 and covered == sorted(covered)
    return [
        tuple(i for i in range(len(gains)) for one in placement if one.region >> i & 1 and one.implementation == LOW)
        for placement in found
    ]


def test_the_most_gainful_segments_that_fit() -> None:
    found = propose([1, 50, 60, 1], [0.01] * 4, whole_error=0.02, bound=0.0145 / 0.9)
    assert (1, 2) in found, "two of four segments use half of the squared error"


def test_an_inaccurate_segment_is_left_out() -> None:
    assert propose([50, 50, 50], [0.001, 0.5, 0.001], whole_error=0.03, bound=0.02) == [(0, 2)]


def test_nothing_to_gain_proposes_nothing() -> None:
    assert propose([-5, -1, -3], [0.01] * 3, whole_error=0.03, bound=0.02) == []


def test_an_accurate_backend_needs_no_mixing() -> None:
    baselines = {FULL: timed(1.0, 1e-7), LOW: timed(0.5, 1e-3)}
    assert proposals([1], ["0"], baselines, measured({FULL: timed(1, 0), LOW: timed(0.5, 1e-3)}), 0.02) == []


def test_unmeasured_segments_stay_in_full_precision() -> None:
    baselines = {FULL: timed(1.0, 1e-7), LOW: Cost("wrong", None, 0.03)}
    costs = measured({FULL: timed(1, 0), LOW: timed(0.5, 1e-3)})
    (found,) = proposals([1, 2], ["0", "1"], baselines, costs, 0.02)
    assert found.placement == (Assignment(1, LOW), Assignment(2, FULL)) and found.predicted_ms == 0.5


def test_full_precision_may_come_from_the_best_backend() -> None:
    other = Implementation("other")
    baselines = {FULL: timed(3.0, 1e-7), other: timed(2.0, 1e-7), LOW: Cost("wrong", None, 0.03)}
    costs = measured({FULL: timed(1, 0), other: timed(0.9, 0), LOW: timed(0.5, 1e-3)})
    found = proposals([1, 2], ["0", "1"], baselines, costs, 0.02)
    assert [proposal.placement for proposal in found] == [
        (Assignment(1, LOW), Assignment(2, other)),
        (Assignment(1, LOW), Assignment(2, FULL)),
    ]


@given(
    st.lists(st.tuples(st.integers(-10, 90), st.floats(1e-4, 1e-2)), min_size=1, max_size=10),
    st.floats(1.01, 5.0),
)
def test_predicted_errors_stay_within_the_bound(segments: list[tuple[int, float]], excess: float) -> None:
    gains, errors = [gain for gain, _ in segments], [error for _, error in segments]
    whole, bound = 0.02 * excess, 0.02
    total = sum(error**2 for error in errors)
    for chosen in propose(gains, errors, whole, bound):
        amplification = max(1.0, whole / total**0.5) if all(gain > 0 for gain in gains) else 1.0
        predicted = amplification * sum(errors[i] ** 2 for i in chosen) ** 0.5
        assert predicted <= 0.9 * bound * (1 + 1e-9)
        assert sum(gains[i] for i in chosen) > 0
