"""Processes that work together end together."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bricolage.errors import TrainingWorkerFailed
from bricolage.train.team import run_team

pytest.importorskip("torch")


@dataclass(frozen=True)
class Job:
    """The first waits for ever; the other ends without a word as soon as the first is there."""

    rank: int
    place: str


def work(job: Job, folder: Path) -> Job:
    """What the processes do."""
    there = Path(job.place)
    if job.rank == 0:
        Path(folder, "pid").write_text(str(os.getpid()), encoding="utf-8")
        Path(folder, "pid").rename(there)
        time.sleep(600)
    while not there.exists():
        time.sleep(0.01)
    os._exit(7)


def test_where_one_ends_the_others_are_ended(tmp_path: Path) -> None:
    there = tmp_path / "first"
    with pytest.raises(TrainingWorkerFailed, match="process 1 ended with exit code 7"):
        run_team(work, [Job(rank, str(there)) for rank in range(2)], Job, 1, 300)
    assert not psutil.pid_exists(int(there.read_text(encoding="utf-8")))
