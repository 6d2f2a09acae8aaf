from __future__ import annotations

from pathlib import Path

from bricolage.costs.database import Database
from bricolage.device.host import host
from bricolage.measure.dispatch_overhead import dispatch_overheads
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.work.implementation import Implementation, KernelConfig


def test_fixed_costs_are_measured_and_the_failing_absent(pool: Pool, tmp_path: Path) -> None:
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path)
        plain, slow = Implementation("honest"), Implementation("honest", KernelConfig("0.2"))
        found = dispatch_overheads(measurer, [plain, slow, Implementation("raises")], 1, host())
        assert set(found) == {plain, slow}
        assert 0 < found[plain] < found[slow]
