"""Speed-up curves: interpolation, and climbing against the whole curve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.models.speedup import SpeedupCurve, climb


def test_times_are_linear_between_the_counts_measured_and_constant_outside() -> None:
    curve = SpeedupCurve(((2, 10.0), (4, 6.0), (8, 7.0)))
    assert [curve.at(count) for count in (1, 2, 3, 4, 6, 8, 20)] == [10.0, 10.0, 8.0, 6.0, 6.5, 7.0, 7.0]
    assert curve.best(8) == 4 and curve.best(3) == 3 and SpeedupCurve(((1, 3.0),)).best(8) == 1


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (1, 1.0)), ((1, -1.0),), ((1, float("nan")),)])
def test_what_is_no_curve_is_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"ascend|negative"):
        SpeedupCurve(points)


@pytest.mark.parametrize(("start", "step"), [(0, 1), (9, 1), (1, 0)])
def test_a_climb_that_leads_nowhere_is_refused(start: int, step: int) -> None:
    with pytest.raises(ValueError, match="cannot climb"):
        climb(lambda _: 1.0, 8, start=start, step=step)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12, unique=True), st.integers(1, 4))
def test_on_a_curve_with_one_valley_a_climb_finds_the_best_of_what_it_may_measure(times: list[int], step: int) -> None:
    falling = sorted(times, reverse=True)
    valley = falling[: len(times) // 2 + 1] + sorted(falling[len(times) // 2 + 1 :], key=lambda ms: ms)
    if len(valley) > len(times) // 2 + 1:
        lowest = valley[len(times) // 2]
        valley[len(times) // 2 + 1 :] = [lowest + ms for ms in valley[len(times) // 2 + 1 :]]
    asked: list[int] = []

    def measure(count: int) -> float:
        asked.append(count)
        return float(valley[count - 1])

    curve = climb(measure, len(valley), step=step)
    reachable = sorted({*range(1, len(valley) + 1, step), len(valley)})
    assert min(ms for _, ms in curve.points) == min(valley[count - 1] for count in reachable)
    assert asked == [count for count, _ in curve.points] and len(asked) <= len(reachable)
    if step == 1:
        best = curve.best(len(valley))
        assert valley[best - 1] == min(valley), "against the full curve"
