"""From measurements in the database to a model of costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bricolage import errors
from bricolage.api.cost_model import learning_samples
from bricolage.api.optimize import optimize
from bricolage.base.codec import encode
from bricolage.base.options import Options
from bricolage.cli.main import app
from bricolage.costs.database import Cost, CostKey, Database
from bricolage.costs.latency import Latency
from bricolage.costs.models.learned import fitting
from bricolage.costs.models.learned.installed import SHIPPED, model_in_use, own_model
from bricolage.costs.models.learned.model import load_costs
from bricolage.device.host import host
from bricolage.work.cost import Setting
from tests.costs.models.test_learned import made_up

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


pytestmark = pytest.mark.usefixtures("light_reference")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fitting, "_TREES", 60)  # enough for made-up costs; a fifth of the time


def test_what_a_decision_measures_can_be_learnt_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.backends import regions

    # Nothing is learnt from what others disturbed; other tests may disturb everything that it measures.
    monkeypatch.setattr("bricolage.measure.measurer.is_disturbed", lambda _: False)
    model = regions.conv_net(tmp_path).path
    optimize(model, Options(backends=("native", "onnxruntime"), budget_s=20.0, threads=1))
    with Database() as database:
        samples, (device,) = learning_samples(database), database.devices().values()
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
        found = learning_samples(database)
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
    assert told["by_network"]["mape"] < 0.3 and load_costs(file).implementations == ("quick f32", "slow f32")
    assert told["file"] == str(file) and not own_model().exists()


def test_without_a_file_the_model_is_what_decisions_use() -> None:
    pytest.importorskip("lightgbm", exc_type=ImportError)
    with Database() as database:
        count = fill(database)
    before = model_in_use()
    shown = run.invoke(app, ["costs", "train"], env={"COLUMNS": "120"})
    assert shown.exit_code == 0 and f"{count} measurements" in shown.stderr
    assert "6 networks" in shown.stdout and "%" in shown.stdout
    own = model_in_use()
    assert (
        own == load_costs(own_model()) != before
        and own is not None
        and own.implementations == ("quick f32", "slow f32")
    )
    told = own.provenance
    assert (
        told["networks"] == "6" and told["backends"] == "quick 1.0, slow 1.0" and "regret" in told["errors by network"]
    )
    assert "of 6 networks" in own.title


def test_an_own_model_that_cannot_be_used_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    shipped = model_in_use()
    assert shipped is not None and shipped == load_costs(SHIPPED)
    own_model().write_text("{}", encoding="utf-8")
    assert model_in_use() == shipped and "is not a cost model" in caplog.text


def test_a_decision_rests_on_the_model_of_costs(tmp_path: Path) -> None:
    from tests.backends import regions

    model, options = regions.conv_net(tmp_path).path, Options(backends=("native", "onnxruntime"), effort="instant")
    first, again = (optimize(model, options).plan for _ in range(2))
    assert first.buckets == again.buckets, "it is known"
    found = load_costs(SHIPPED)
    own_model().write_text(
        json.dumps(encode(replace(found, spread=dict.fromkeys(found.spread, 5.0)))), encoding="utf-8"
    )
    assert optimize(model, options).plan.buckets != first.buckets
    without = replace(options, backends=("onnxruntime",), effort="quick", budget_s=2.0, predict=False, rewrite=False)
    assert optimize(model, without).plan.buckets[0].record.model_use is None


@pytest.mark.parametrize("backends", [("native", "onnxruntime"), ("onnxruntime",)])
def test_an_instant_decision_is_right_and_says_what_it_rests_on(tmp_path: Path, backends: tuple[str, ...]) -> None:
    from tests.backends import regions

    found = optimize(regions.conv_net(tmp_path).path, Options(backends=backends, effort="instant", threads=1))
    (bucket,) = found.plan.buckets
    assert (
        bucket.race.winner.accepted
        and bucket.race.winner.error is not None
        and bucket.race.winner.error <= bucket.verification.bound
    )
    assert not any(
        cost.alternatives and cost.measured for cost in bucket.program.regions if cost.count < bucket.program.operators
    )
    assert bucket.record.model_use is not None and bucket.record.model_use.model.endswith(
        load_costs(SHIPPED).provenance["made"]
    )


@pytest.mark.parametrize("other", [{"predict": False}, {"objective": "throughput"}], ids=str)
def test_an_instant_decision_needs_no_model_and_may_be_for_throughput(tmp_path: Path, other: dict[str, Any]) -> None:
    from tests.backends import regions

    found = optimize(regions.conv_net(tmp_path).path, Options(effort="instant", backends=("onnxruntime",), **other))
    assert found.plan.buckets[0].race.chosen.startswith("onnxruntime")
    assert (found.plan.operating_point is not None) is ("objective" in other)
