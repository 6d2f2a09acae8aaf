from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cluster import gavel, physical, speed, synergy
from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.policy_catalogue import POLICIES

LINE = "LM (batch size 10)\tpython main.py\tlm\t--steps\t1\t{steps}\t{devices}\tstatic\t1\t-1\t0\t{arrival}"
RATES = {"v100": {f"('LM (batch size 10)', {devices})": {"null": 2.0} for devices in (1, 4)}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A trace of three jobs that have the cluster for themselves, and what a run made of them: all 10 % slower."""
    lines = [
        LINE.format(steps=steps, devices=d, arrival=at) for steps, d, at in ((2000, 1, 0), (4000, 4, 0), (1000, 1, 0))
    ]
    (tmp_path / "120_jobs.trace").write_text("\n".join(lines) + "\n")
    (tmp_path / "tacc_throughputs.json").write_text(json.dumps(RATES))
    (tmp_path / "physical").mkdir()
    for policy in ("max_min_fairness", "finish_time_fairness", "allox", "of_another_paper"):
        run = {"policy": policy, "makespan_s": 1.0, "jct_s": [1100.0, 2200.0, 550.0], "round_s": 120}
        (tmp_path / "physical" / f"{policy}.json").write_text(json.dumps(run))
    return tmp_path


def test_the_replay_is_compared_with_the_last_end_of_the_run(folder: Path) -> None:
    rows = physical.rows(folder, folder / "physical", restart_s=20.0)
    assert [row.policy for row in rows] == ["allox", "finish_time_fairness", "max_min_fairness"]
    for row in rows:
        assert (row.run_makespan_s, row.recorded_makespan_s) == (2200.0, 1.0)
        assert row.makespan_error == pytest.approx(1 / 1.1 - 1, abs=1e-9), "nobody waits, so that nothing else differs"
        assert row.mean_jct_error == pytest.approx(1 / 1.1 - 1, abs=1e-9)


def test_the_command_prints_rows(folder: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "benchmarks.cluster",
        "--table",
        "physical",
        "--data",
        str(folder / "physical"),
        "--json",
    ]
    rows = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    assert {"policy", "makespan_error", "mean_jct_error"} <= rows[0].keys()


def test_jobs_are_drawn_in_the_published_order() -> None:
    rates = RateTable({(kind, devices): {"v100": 1.0} for kind, _ in gavel.KINDS for devices in (1, 2, 4, 8)})
    drawn = gavel.drawn(rates, 40, 2.0, 1, several=True)
    random_ = random.Random(3)
    first = random_.uniform(0, 1)
    assert drawn[0].devices == (1 if first < 0.7 else 2 if first < 0.8 else 4 if first < 0.95 else 8)
    long = random_.random() >= 0.8
    assert drawn[0].run_s("v100") == pytest.approx(60 * 10 ** random_.uniform(*((3, 4) if long else (1.5, 3))))
    distributed = dict(gavel.KINDS)
    assert all(distributed[job.kind] for job in drawn if job.devices > 1)
    assert all(job.devices == 1 for job in gavel.drawn(rates, 40, 2.0, 1))
    assert {job.submit_s for job in gavel.drawn(rates, 5, 0.0, 1)} == {0.0}


def test_speed_counts_every_event() -> None:
    rows = speed.rows(200, 64, 0.9, ["fifo", "srtf"])
    assert rows[0].events == 400 and rows[1].events >= 400


def test_rounds_that_choose_batch_sizes_are_timed() -> None:
    rows = list(speed.adaptive_rows(6, 16))
    assert [(row.policy, row.jobs, row.devices) for row in rows] == [("pollux", 6, 16), ("sia", 6, 16)]
    assert all(0.0 < row.round_s < math.inf for row in rows)


def test_synergy_is_compared_with_parts_on_equal_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of eight; half of the jobs use twice the processors, half a third: who gives them away loses nothing."""
    hungry = {"tput": [[0.1, 0.3, 0.3, 0.3, 0.3]] * 2 + [[0.1, 1, 1, 1, 1]] * 3 + [[0.1, 2, 2, 2, 2]] * 4}
    modest = {"tput": [[1.0] * 5] * 9}
    models = {name: hungry if kind == 0 else modest for kind, some in enumerate(synergy.MODELS) for name in some}
    (tmp_path / "models.json").write_text(json.dumps(models))
    assert synergy.profiles(tmp_path / "models.json")["alexnet_1"].demand == (6.0, 62.5)
    monkeypatch.setattr(synergy, "LOADS", (9.0,))
    (row,) = synergy.rows(tmp_path / "models.json", 40, nodes=1, split=(50, 50, 0))
    assert row.jobs_per_hour == 9.0 and row.ratio > 1.0


def test_names_of_policies_are_those_of_the_published_runs_and_figures() -> None:
    names = {physical._plain(name) for name in ("Gandiva-Fair", "AlloX", "MST", "OSSP", "Themis", "Gavel", "Shockwave")}
    assert names <= physical.NAMES.keys()
    assert set(physical.NAMES.values()) <= {one.name for one in POLICIES}
