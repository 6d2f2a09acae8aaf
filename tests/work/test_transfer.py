from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.work.transfer import NoBoundaryCosts, TableBoundaryCosts, interpolate

POINTS = [(1 << 10, 1.0), (1 << 12, 3.0), (1 << 14, 9.0)]


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 1.0), (100, 1.0), (1 << 10, 1.0), (1 << 11, 2.0), (1 << 12, 3.0), (1 << 13, 6.0), (1 << 14, 9.0)],
)
def test_linear_in_the_logarithm_between_points(size: int, expected: float) -> None:
    assert interpolate(POINTS, size) == pytest.approx(expected)


def test_beyond_the_last_point_the_slope_in_bytes_goes_on() -> None:
    assert interpolate(POINTS, (1 << 14) + 2 * (3 << 12)) == pytest.approx(9.0 + 2 * 6.0)
    assert interpolate([(8, 2.0), (16, 2.0)], 1 << 30) == 2.0
    assert interpolate([(8, 2.0), (16, 1.5)], 1 << 30) == 1.5
    assert interpolate([(8, 2.0)], 1 << 30) == 2.0


@given(st.integers(0, 1 << 24), st.integers(0, 1 << 24))
def test_rising_points_give_a_rising_cost(first: int, second: int) -> None:
    low, high = sorted((first, second))
    assert interpolate(POINTS, low) <= interpolate(POINTS, high) + 1e-12


def test_unmeasured_pairs_are_pessimistic_except_within_a_backend() -> None:
    table = TableBoundaryCosts({("a", "b"): [(1, 2.0)], ("b", "a"): [(1, 5.0)], ("b", "b"): [(1, 0.5)]})
    assert table("a", "b", 7) == 2.0
    assert table("a", "c", 7) == 5.0
    assert table("a", "a", 7) == 0.0
    assert table("b", "b", 7) == 0.5
    assert TableBoundaryCosts({})("a", "b", 7) == 0.0
    assert NoBoundaryCosts()("a", "b", 7) == 0.0
