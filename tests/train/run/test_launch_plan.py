"""Plans that are run: checked, raced, refused; and processes that die or hang."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from benchmarks.training.layout_runs import plan_spec
from bricolage.errors import DifferentDevices, TrainingWorkerFailed
from bricolage.train.run.document import FullyShardedPlan, TrainingPlan, table_of, write_plan
from bricolage.train.run.launch_plan import launch_plan, read_result
from tests.train.run.made import plan
from tests.train.sharded.ranks import group

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def written(made: TrainingPlan, folder: Path) -> Path:
    write_plan(made, folder)
    return folder


def test_the_fastest_way_is_kept_and_wrong_gradients_are_not(tmp_path: Path) -> None:
    made = plan(2, "perceptrons", layers=2)
    layouts = plan_spec(made.step, group(2))
    assert layouts.divides
    divided = replace(made, layouts=layouts, fully_sharded=FullyShardedPlan(24.0, 1.0, 1e6))
    good = launch_plan(written(divided, tmp_path), seconds=0.1, pipelines=2)
    assert good is not None and good == read_result(tmp_path)
    ways = {"pipeline", "pipeline 2", "data parallel", "single process", "sharded", "fully sharded"}
    assert set(good.measured) == set(good.predicted_ms) == ways
    assert good.kept == min(good.measured, key=lambda one: good.measured[one].median_ms)
    assert all(one.accepted for one in good.checks.values()) and not good.failures
    assert good.error("pipeline") is not None and len(good.passes["pipeline"]) == 2
    # Sums over micro-batches are no means: what is divided differs from the whole.
    other = replace(
        plan(2, "perceptrons", loss="code.py:total_loss", layers=2),
        layouts=replace(layouts, operators=layouts.operators[1:]),
    )
    bad = launch_plan(written(other, tmp_path), seconds=0.1)
    assert bad is not None and set(bad.failures) == {"pipeline", "data parallel", "sharded"}
    assert "does not know" in bad.failures["sharded"], "layouts of another step"
    assert bad.kept == "single process" and set(bad.measured) == {"single process"}


def test_plans_for_other_devices_are_refused(tmp_path: Path) -> None:
    made = plan(2)
    others = {
        "is for 2 processes on one machine, another": replace(
            made, made=replace(made.made, host="another", fingerprint="?")
        ),
        "of 99 cores": replace(made, devices=replace(made.devices, cores=99)),
        "gpu": replace(made, devices=replace(made.devices, kind="gpu", here=False)),
    }
    for told, one in others.items():
        with pytest.raises(DifferentDevices, match=told):
            launch_plan(written(one, tmp_path))


def test_a_process_that_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")  # of the processes that are started
    with pytest.raises(TrainingWorkerFailed, match="process [01] of 2"):
        launch_plan(written(plan(2, batch="dying"), tmp_path), seconds=0.1, timeout_s=20.0)


@pytest.mark.slow  # nine seconds; ranks that we start take the same way
def test_torchrun_starts_a_plan(tmp_path: Path) -> None:
    folder = written(plan(2), tmp_path)
    command = [*TORCHRUN, "-m", "bricolage.train", "run", str(folder), "--seconds", "0.1", "--timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "pipeline: " in done.stdout and "gradients within" in done.stdout
    assert (folder / "result.json").is_file()


@pytest.mark.slow
def test_a_rank_that_waits_in_vain_for_another_says_so(tmp_path: Path) -> None:
    folder = written(plan(2, batch="hanging"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    where = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "bricolage.train", "run", str(folder), "--timeout", "4"]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **where, "RANK": rank}, stderr=subprocess.PIPE, text=True)
        for rank in ("0", "1")
    ]
    try:
        _, told = ranks[0].communicate(timeout=120)
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    assert ranks[0].returncode == 1
    assert "rank 0: another rank ended, or did not answer for 4 s" in told, told[-2000:]


def test_weights_with_versions_change_as_they_do_one_by_one(tmp_path: Path) -> None:
    made = plan(2, "perceptrons")
    several = [
        replace(made.pipelines[0], schedule=name, micro_batches=8, stages=2, devices=2, replicas=1, begins=(0, 2))
        for name in ("pipedream", "2bw", "pipemare")
    ]
    assert [max(one.version for row in table_of(some).rows for one in row) for some in several] == [7, 2, 7]
    made = replace(made, chosen=several[0], runner_ups=tuple(several[1:]))
    found = launch_plan(written(made, tmp_path), seconds=0.0, pipelines=3)
    assert found is not None and set(found.engines.values()) == {"loop"} and len(found.engines) == 3
    assert all(one.accepted for one in found.checks.values()) and not found.failures, found.checks
