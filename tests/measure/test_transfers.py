from __future__ import annotations

from pathlib import Path

import pytest

from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Limits
from bricolage.measure.transfers import TransferMeasurer, adjacent_pairs
from bricolage.work.implementation import Endpoint
from tests.measure.test_measurer import installed


def ends(*names: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(name) for name in names)


def test_pairs_that_share_a_process_follow_each_other() -> None:
    a, b, c = ends("a", "b", "c")
    assert adjacent_pairs([a, b, c]) == [(a, b), (b, a), (a, c), (c, a), (b, c), (c, b)]


def test_measured_once_and_failures_keep_their_reason(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path, limits=Limits(10, 10))
        transfers = TransferMeasurer(measurer, 1, host(), sizes=(4096, 1 << 20))
        pairs = [ends("honest", "twin"), ends("twin", "honest"), ends("honest", "segfaults")]
        costs = transfers.costs(pairs)
        assert set(costs.table) == set(pairs[:2])
        assert all(0.0 <= costs(*pair, 1 << 20).ms < 5.0 for pair in pairs[:2])
        assert "crashed" in costs.failures[pairs[2]]
        assert transfers.costs(pairs, should_stop=lambda: True) == costs
        fresh = transfers.costs([ends("twin", "wrong")], should_stop=lambda: True)
        assert fresh.table == {} and fresh.failures == {}


@pytest.mark.skipif(len(installed()) < 2, reason="needs two engines")
def test_real_engines_hand_over(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer, pair = Measurer(database, pool, tmp_path), ends("onnxruntime", "openvino")
        costs = TransferMeasurer(measurer, 1, host(), sizes=(4096, 1 << 20)).costs([pair])
        assert not costs.failures
        assert 0 <= costs(*pair, 4096).ms < 5
