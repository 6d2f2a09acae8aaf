from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.models.measured_transfer import MeasuredTransferCosts
from bricolage.work.cost import Estimate
from bricolage.work.implementation import Endpoint

A, B, C = Endpoint("a"), Endpoint("b"), Endpoint("c")
POINTS = [(1 << 10, 1.0), (1 << 12, 4.0), (1 << 14, 10.0)]
COSTS = MeasuredTransferCosts({(A, B): POINTS})


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 1.0), (100, 1.0), (1 << 10, 1.0), (1 << 11, 2.0), (1 << 12, 4.0), (1 << 13, 6.0), (1 << 14, 10.0)],
)
def test_linear_in_bytes_between_points(size: int, expected: float) -> None:
    assert COSTS(A, B, size).ms == pytest.approx(expected)


def test_beyond_the_last_point_the_slope_goes_on() -> None:
    assert COSTS(A, B, (1 << 14) + 2 * (3 << 12)).ms == pytest.approx(10.0 + 2 * 6.0)
    assert MeasuredTransferCosts({(A, B): [(8, 2.0), (16, 2.0)]})(A, B, 1 << 30).ms == 2.0
    assert MeasuredTransferCosts({(A, B): [(8, 2.0)]})(A, B, 1 << 30).ms == 2.0


@given(
    st.dictionaries(st.integers(0, 1 << 24), st.floats(0, 1e3), min_size=1, max_size=6),
    st.integers(0, 1 << 25),
    st.integers(0, 1 << 25),
)
def test_a_larger_tensor_is_never_cheaper_whatever_the_noise(points: dict[int, float], one: int, other: int) -> None:
    costs = MeasuredTransferCosts({(A, B): sorted(points.items())})
    low, high = sorted((one, other))
    assert costs(A, B, low).ms <= costs(A, B, high).ms * (1 + 1e-9) + 1e-9


def test_unmeasured_pairs_are_pessimistic_except_within_an_endpoint() -> None:
    costs = MeasuredTransferCosts({(A, B): [(1, 2.0)], (B, A): [(1, 5.0)], (B, B): [(1, 0.5)]})
    assert costs(A, B, 7).ms == 2.0
    assert costs(A, C, 7).ms == 5.0
    assert costs(A, A, 7).ms == 0.0
    assert costs(B, B, 7).ms == 0.5
    assert costs(A, B, 7).source == "measured" and costs(A, C, 7) == Estimate(5.0, 2.0, 5.0, "composed")


def test_a_backend_on_another_device_is_another_endpoint() -> None:
    there = Endpoint("a", "cpu:0-1")
    assert MeasuredTransferCosts({(A, there): [(1, 3.0)]})(A, there, 7).ms == 3.0
    assert MeasuredTransferCosts({})(A, there, 0).ms > 0.0


def test_nothing_measured_costs_an_entry_and_a_copy() -> None:
    costs = MeasuredTransferCosts({})
    assert costs(A, B, 0).ms == pytest.approx(0.02)
    assert costs(A, B, 4_000_000).ms == pytest.approx(1.02)
    assert costs(A, A, 4_000_000).ms == 0.0
