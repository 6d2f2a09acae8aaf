"""The Pareto front against brute force."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bricolage.search.placement.pareto import front

NUMBERS = st.one_of(st.integers(0, 5).map(float), st.floats(0.0, 1e9))
POINTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(NUMBERS, NUMBERS), max_size=12)


def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other


@given(POINTS)
def test_the_front_is_what_nothing_beats(points: dict[str, tuple[float, float]]) -> None:
    wanted = {point for point in points.values() if not any(beats(other, point) for other in points.values())}
    found = front(points)
    assert {points[name] for name in found} == wanted
    assert len(found) == len(wanted), "of equal points one stands for all"
    assert all(name == min(n for n, point in points.items() if point == points[name]) for name in found)
    assert [points[name][0] for name in found] == sorted((gain for gain, _ in wanted), reverse=True)
