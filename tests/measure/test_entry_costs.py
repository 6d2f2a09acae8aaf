from __future__ import annotations

from pathlib import Path

from bricolage.measure.database import Database
from bricolage.measure.entry_costs import fixed_costs
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool


def test_fixed_costs_are_measured_and_the_failing_absent(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path)
        found = fixed_costs(measurer, [("honest", ""), ("honest", "0.2"), ("raises", "")], 1)
        assert set(found) == {("honest", ""), ("honest", "0.2")}
        assert 0 < found["honest", ""] < found["honest", "0.2"] < 1
