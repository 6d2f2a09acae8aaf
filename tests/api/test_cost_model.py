"""From measurements in the database to a model of costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.api.cost_model import samples_of
from bricolage.api.optimize import optimize
from bricolage.cli.main import app
from bricolage.device.host import host
from bricolage.measure.database import Cost, CostKey, Database
from bricolage.measure.statistics import Latency
from bricolage.options import Options
from bricolage.perf.learned.features import Setting
from bricolage.perf.learned.model import load
from tests.perf.test_learned import made_up

run = CliRunner()


def fill(database: Database, network: str | None = None, device: str = "one") -> int:
    """Stores made-up measurements; how many."""
    samples = [one for one in made_up(count=60) if network is None or one.network == network]
    for one in samples:
        backend, config = one.implementation.split()
        key = CostKey(one.region, backend, "1.0", config, device, one.setting.threads, alone=False)
        database.put(key, Cost("ok", Latency(one.ms, one.ms, one.ms, 9)))
        database.describe(key, lambda workload=one.workload: workload, one.setting.device)  # type: ignore[misc]
    return len(samples)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))


def test_what_a_decision_measures_can_be_learnt_from(tmp_path: Path) -> None:
    from tests.backends import regions

    model = regions.conv_net(tmp_path).path
    optimize(model, Options(backends=("native", "onnxruntime"), budget_s=4.0, threads=1))
    with Database() as database:
        samples, (device,) = samples_of(database), database.devices().values()
    assert device == host() and {one.implementation.split()[0] for one in samples} == {"native", "onnxruntime"}
    assert all(one.setting == Setting(host(), 1) and one.workload.operators for one in samples)
    (network,) = {one.network for one in samples}
    assert len(network) == 32, "all were measured in one model"


def test_what_is_not_comparable_is_left_out() -> None:
    with Database() as database:
        count = fill(database)
        example = next(database.entries()).key
        for change in (
            {"region": "unknown"},
            {"device": "unknown"},
            {"config": 'f32{"1.tile": 2}'},
            {"backend": "a+b"},
        ):
            database.put(CostKey(**{**vars(example), **change}), Cost("ok", Latency(1.0, 1.0, 1.0, 9)))
        database.put(CostKey(**{**vars(example), "version": "2.0"}), Cost("ok", Latency(9.0, 9.0, 9.0, 9)))
        found = samples_of(database)
    assert len(found) == count
    assert [
        one.ms for one in found if (one.region, one.implementation.split()[0]) == (example.region, example.backend)
    ] == [9.0]


def test_the_command_trains_and_says_how_far_off_it_is(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm", exc_type=ImportError)
    file = tmp_path / "model.json"
    nothing = run.invoke(app, ["costs", "train", "-o", str(file)])
    assert nothing.exit_code == errors.USAGE and "at least 50" in nothing.stderr and not file.exists()
    with Database() as database:
        count = fill(database)
    found = run.invoke(app, ["costs", "train", "-o", str(file), "--json"])
    told = json.loads(found.stdout)
    assert found.exit_code == 0 and told["samples"] == count and told["networks"] == 6 and told["by_machine"] is None
    assert told["by_network"]["mape"] < 0.3 and load(file).implementations == ("quick f32", "slow f32")
    shown = run.invoke(app, ["costs", "train", "-o", str(file)], env={"COLUMNS": "120"})
    assert "6 networks" in shown.stdout and "%" in shown.stdout and f"{count} measurements" in shown.stderr
