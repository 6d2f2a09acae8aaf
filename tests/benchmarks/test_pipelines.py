"""The benchmarks of pipelines: one schedule, all of them, and plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.training import parallel_plans, pipelines
from bricolage.work.pipeline.generators import SCHEDULES


def test_one_schedule_and_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--stages", "4", "--micro-batches", "8"]
    path = tmp_path / "made.csv"
    assert pipelines.main([*asked, "--schedule", "zb-v", "--csv", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["makespan"], found["peak_in_flight"]) == (25.5, [4.0] * 4)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    assert pipelines.main([*asked, "--json", "--times", "1,2,0", "--send", "0.1"]) == 0
    assert {one["schedule"] for one in json.loads(capsys.readouterr().out)} == set(SCHEDULES)
    assert pipelines.main(asked) == 0 and "1f1b" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--stages", "0", "--micro-batches", "8"],
        ["--stages", "4", "--micro-batches", "8", "--times", "1,x,1"],
        ["--stages", "3", "--micro-batches", "8", "--schedule", "chimera"],
        ["--stages", "4", "--micro-batches", "8", "--schedule", "pipedream", "--csv", "never.csv"],
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        pipelines.main(arguments)


def test_plans(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--layers", "4", "--hidden", "256", "--batch", "8", "--devices", "2"]
    assert parallel_plans.main([*small, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    steps = [one["step_ms"] for one in found["plans"]]
    assert steps == sorted(steps) and steps[0] >= found["bound_ms"]
    assert parallel_plans.main(small) == 0 and "data parallel" in capsys.readouterr().out
    divided = ["--sharding", "--devices", "4", "--layers", "2", "--hidden", "256", "--batch", "16", "--groups", "1,2,4"]
    assert parallel_plans.main([*divided, "--json"]) == 0
    plans = {one["plan"]: one for one in json.loads(capsys.readouterr().out)["plans"]}
    assert plans["one group"]["bound_ms"] <= plans["one group"]["step_ms"] <= plans["data parallel"]["step_ms"]
    assert plans["stages on groups"]["stages"] and plans["stages on groups"]["step_ms"] > 0.0
    assert parallel_plans.main([*divided, "--memory", "0.000001"]) == 0 and "does not fit" in capsys.readouterr().out
    assert parallel_plans.main([*small, "--memory", "0.0001"]) == 2 and "no plan fits" in capsys.readouterr().err
