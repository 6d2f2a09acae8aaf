"""Kills of drivers and of jobs that are processes of this machine; the benchmark does the same on Ray nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cluster_real import kills
from benchmarks.cluster_real.served import LocalNodes
from benchmarks.cluster_real.workload import drawn


def test_the_same_seed_draws_the_same_jobs() -> None:
    assert drawn(24, 1) == drawn(24, 1) and drawn(24, 1) != drawn(24, 2)
    assert {job.spec.devices for job in drawn(24, 1)} == {1, 2, 4}


@pytest.mark.slow
def test_kills_lose_no_job_and_no_saved_step(tmp_path: Path) -> None:
    found = kills.run(tmp_path, LocalNodes(), count=6, kills=4, every_s=2.0, seed=3)
    assert found.kills == {"job": 2, "driver": 2}
    assert (found.lost, found.wrong, found.checkpoints_lost) == (0, 0, 0)
