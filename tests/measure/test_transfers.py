from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.measure.database import Database
from bricolage.measure.loading import Limits
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.transfers import Boundaries, BoundaryCosts, adjacent_pairs
from tests.measure.test_measurer import installed

TABLE = {("a", "b"): [(1000, 1.0), (2000, 3.0)], ("b", "a"): [(1000, 2.0), (2000, 2.0)], ("a", "a"): [(1000, 0.5)]}


def test_linear_in_bytes_between_points_constant_below_and_extended_above() -> None:
    costs = BoundaryCosts(TABLE)
    assert [costs("a", "b", size) for size in (0, 1000, 1500, 2000, 3000)] == [1.0, 1.0, 2.0, 3.0, 5.0]
    assert costs("b", "a", 10**9) == 2.0
    assert costs("a", "a", 10**9) == 0.5


def test_an_unknown_pair_costs_as_much_as_the_worst() -> None:
    costs = BoundaryCosts(TABLE)
    assert costs("a", "c", 1000) == 2.0 and costs("a", "c", 2000) == 3.0
    assert costs("c", "c", 2000) == 0.0
    assert BoundaryCosts({})("a", "b", 4_000_000) == pytest.approx(1.02)


@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.floats(0, 100)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.lists(st.integers(0, 10**8), min_size=2, max_size=10),
)
def test_costs_never_fall_with_size(points: list[tuple[int, float]], sizes: list[int]) -> None:
    costs = BoundaryCosts({("a", "b"): points})
    seen = [costs("a", "b", size) for size in sorted(sizes)]
    assert all(0 <= low <= high * (1 + 1e-9) for low, high in pairwise(seen))


def test_pairs_that_share_a_process_follow_each_other() -> None:
    assert adjacent_pairs(["a", "b", "c"]) == [("a", "b"), ("b", "a"), ("a", "c"), ("c", "a"), ("b", "c"), ("c", "b")]


def test_measured_once_and_failures_keep_their_reason(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path, limits=Limits(10, 10))
        boundaries = Boundaries(measurer, 1, sizes=(4096, 1 << 20))
        pairs = [("honest", "twin"), ("twin", "honest"), ("honest", "segfaults")]
        costs = boundaries.costs(pairs)
        assert set(costs.table) == set(pairs[:2])
        assert all(0.0 <= costs(*pair, 1 << 20) < 5.0 for pair in pairs[:2])
        assert "crashed" in costs.failures["honest", "segfaults"]
        assert boundaries.costs(pairs, should_stop=lambda: True) == costs
        fresh = boundaries.costs([("twin", "wrong")], should_stop=lambda: True)
        assert fresh.table == {} and fresh.failures == {}


@pytest.mark.skipif(len(installed()) < 2, reason="needs two engines")
def test_real_engines_hand_over(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path)
        costs = Boundaries(measurer, 1, sizes=(4096, 1 << 20)).costs([("onnxruntime", "openvino")])
        assert not costs.failures
        assert 0 <= costs("onnxruntime", "openvino", 4096) < 5
