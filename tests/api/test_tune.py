"""`tune` and `bricolage tune` on a real backend: what is found is kept, raced, right, and taken up by decisions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import bricolage
from bricolage import errors
from bricolage.api.tune import tune
from bricolage.backends import registry
from bricolage.base.codec import decode
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.costs.database import Database
from bricolage.driver.model_tuning import Tuned
from bricolage.errors import BadOption, NoBackend
from bricolage.tune.kernel_search import Snapshot
from bricolage.tune.tuning_options import TuningOptions
from tests.backends import regions

pytestmark = pytest.mark.usefixtures("light_reference")
OPTIONS = Options(backends=("native",), threads=1, budget_s=60.0, rewrite=False)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return regions.conv_net(tmp_path).path


def test_what_is_found_is_right_and_taken_up(model: Path) -> None:
    seen: list[Snapshot] = []
    tuning = TuningOptions(rounds=2, final_rounds=3, least_gain=1e-9, trials=6)
    found = tune(model, OPTIONS, tuning=tuning, told=lambda _, snapshot: seen.append(snapshot))
    first = found.implementations[0]
    assert first.tuned.tasks and sum(task.trials for task in first.tuned.tasks) >= 3 and seen
    assert all(before.trials < 6 for one in found.implementations for before in one.curve[:-1]), (
        "it ended with the trials"
    )
    assert first.variant == "original" and tuple(seen[: len(first.curve)]) == first.curve
    with Database() as database:
        version = registry.version("native")
        assert database.has_trials("native", version, registry_device(), 1)
    again = tune(model, OPTIONS, tuning=TuningOptions(rounds=2, final_rounds=3, trials=1))
    assert sum(task.trials for task in again.implementations[0].tuned.tasks) <= sum(t.trials for t in first.tuned.tasks)
    executable = bricolage.optimize(model, dataclasses.replace(OPTIONS, budget_s=4.0))
    x = regions.noise(1, 8, 32, 32)
    assert regions.error(list(executable(x)), regions.reference(regions.RegionModel(model), x)) < 1e-5


def registry_device() -> str:
    from bricolage.device.host import host

    return host().fingerprint()


def test_what_cannot_be_tuned_is_told(model: Path) -> None:
    with pytest.raises(NoBackend, match="can be tuned"):
        tune(model, Options(backends=("torch",), threads=1, budget_s=20.0, rewrite=False))
    with pytest.raises(BadOption, match="budget"):
        tune(model, Options(backends=("native",), budget_s=1.0))


def command(*words: str) -> Any:
    return CliRunner().invoke(app, ["tune", *words])


def test_the_command_line(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "tuning.html"
    words = ["--backend", "native", "--threads", "1", "--no-rewrite"]
    ran = command(
        str(model), *words, "--budget", "60s", "--trials", "3", "--report", str(page), "--require-gain", "--json"
    )
    assert ran.exit_code in (errors.OK, errors.NO_GAIN), ran.stderr
    found = decode(Tuned, json.loads(ran.stdout))
    assert (ran.exit_code == errors.OK) == any(
        one.gain is not None and one.gain.low > 1 for one in found.implementations
    )
    assert (
        "tuning kernels" in ran.stderr and f"wrote {page}" in ran.stderr and "Task" in page.read_text(encoding="utf-8")
    )
    again = command(str(model), *words, "--budget", "60s", "--trials", "1", "--resume", "--technique", "random")
    assert again.exit_code == errors.OK and "Kernels" in again.stdout, again.stderr
    for wrong, reason in (
        ([str(tmp_path / "none.onnx")], "none.onnx"),
        ([str(model), "--technique", "prayer"], "technique"),
        ([str(model), "--budget", "1s"], "budget"),
        ([str(model), "--report", str(model)], "overwrite"),
    ):
        ran = command(*wrong, "--backend", "native")
        assert ran.exit_code == 2 and reason in ran.stderr, ran.stderr
