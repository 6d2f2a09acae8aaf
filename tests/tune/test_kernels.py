"""Kernel tuning in real workers, on a backend that counts its searches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.deadline import Deadline
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.measure.database import Database
from bricolage.measure.loading import CandidateSpec, Limits
from bricolage.measure.measurer import Measurer, RegionTask
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.rounds import TimingPolicy
from bricolage.plan.step import Step
from bricolage.tune.kernels import KernelTuner
from bricolage.work.implementation import Implementation, KernelConfig
from tests.measure import rogues

POLICY = TimingPolicy(rounds=7, most_rounds=7, seconds=3.0)


@pytest.fixture(autouse=True)
def rogue_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path))
    rogues.register_all()
    yield
    registry._sources.cache_clear()  # other tests must not meet the rogues
    registry.get.cache_clear()


@pytest.fixture
def database() -> Iterator[Database]:
    with Database() as opened:
        yield opened


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(memory_limit=1 << 30) as made:
        yield made


@pytest.fixture
def measurer(database: Database, pool: Pool, tmp_path: Path) -> Measurer:
    return Measurer(database, pool, tmp_path, policy=POLICY, limits=Limits(10, 10), cores=2)


@pytest.fixture
def step(tmp_path: Path) -> Step:
    return Step(Implementation("tunes"), relu_region(tmp_path, "x", "y", 1024))


def tune(
    measurer: Measurer,
    step: Step,
    *,
    key: str = "a relu",
    version: str = "1.0",
    device: Device | None = None,
    threads: int = 1,
    seconds: float = 60.0,
) -> Implementation:
    return KernelTuner(measurer, device or host(), threads).tune(step, key, version, Deadline(seconds))


def configured(step: Step, name: str) -> Step:
    return replace(step, implementation=replace(step.implementation, config=KernelConfig(name)))


def number(found: Implementation) -> object:
    return dict(found.config.parameters).get("n")


def test_what_was_found_is_not_searched_again(measurer: Measurer, step: Step, tmp_path: Path) -> None:
    found = tune(measurer, step, threads=2)
    assert found == Implementation("tunes", KernelConfig("f32", (("n", 1),)))
    assert rogues.noted("tuned") == [f"f32 2 {host().isa}"]
    assert tune(measurer, step, threads=2) == found
    elsewhere = replace(step, path=tmp_path / "the-same-region-with-other-weights.onnx")
    assert tune(measurer, elsewhere, threads=2) == found, "a region is its identity"
    with Database() as reopened, Pool(memory_limit=1 << 30) as fresh:
        again = Measurer(reopened, fresh, tmp_path, policy=POLICY)
        assert tune(again, step, threads=2) == found
        assert tune(again, step, threads=2, seconds=0.0) == found, "what is known needs no time"
    assert len(rogues.noted("tuned")) == 1


def test_whatever_times_depend_on_is_searched_for_itself(measurer: Measurer, step: Step) -> None:
    assert number(tune(measurer, step)) == 1
    assert number(tune(measurer, step, key="another relu")) == 2
    assert number(tune(measurer, step, version="2.0")) == 3
    assert number(tune(measurer, step, threads=2)) == 4
    assert number(tune(measurer, step, device=host().kept_to("avx2"))) == 5
    assert number(tune(measurer, configured(step, "0.1"))) == 6
    assert number(tune(measurer, step)) == 1
    assert [line.split() for line in rogues.noted("tuned")][3:5] == [
        ["f32", "2", *host().isa.split()],
        ["f32", "1", "avx2"],
    ]


def test_a_search_begins_with_the_base_configuration(measurer: Measurer, step: Step) -> None:
    odd = replace(step, implementation=replace(step.implementation, config=KernelConfig("f32", (("m", 99),))))
    assert number(tune(measurer, odd)) == 1
    assert rogues.noted("tuned")[0].startswith("f32 1"), "without the parameters that it had"


@pytest.mark.parametrize("ends", ["f32", "crashes"])
def test_a_search_goes_on_from_what_it_found_and_keeps_it(measurer: Measurer, tmp_path: Path, ends: str) -> None:
    path = relu_region(tmp_path, "x", "y", 1024)
    step = Step(Implementation("tunes-on", KernelConfig(ends)), path)
    assert number(tune(measurer, step)) == 3
    assert len(rogues.noted("tuned")) == 4
    assert KernelTuner(measurer, host(), 1).known(step, "a relu", "1.0") == KernelConfig(ends, (("n", 3),))
    assert number(tune(measurer, step)) == 3 and len(rogues.noted("tuned")) == 4, "what is known is not searched again"


def test_finding_nothing_better_is_a_result(measurer: Measurer, step: Step) -> None:
    same = configured(step, "same")
    assert tune(measurer, same) == tune(measurer, same) == same.implementation
    assert len(rogues.noted("tuned")) == 1


def test_without_time_nothing_is_searched(measurer: Measurer, step: Step) -> None:
    assert tune(measurer, step, seconds=0.0) == step.implementation
    assert not rogues.noted("tuned")
    assert number(tune(measurer, step)) == 1, "nothing was stored"


def test_a_stored_configuration_of_another_form_is_searched_again(
    measurer: Measurer, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measurer.database, "get_config", lambda _: {"name": "f32", "parameters": {"n": 7}})
        assert number(tune(measurer, step)) == 1
    assert number(tune(measurer, step)) == 1 and len(rogues.noted("tuned")) == 1


def relu_task(folder: Path, config: KernelConfig, elements: int = 1024, backend: str = "tunes") -> RegionTask:
    path = relu_region(folder, "x", "y", elements)
    steps = (Step(Implementation(backend, config), path),)
    return RegionTask(
        vector(folder, ("x",), elements),
        vector(folder, ("y",), elements, rectified=True),
        1e-6,
        (CandidateSpec(f"relu {elements}", steps, ("y",), 1, False, host()),),
        "these",
    )


@pytest.mark.parametrize("way", ["crash", "hang", "refuse", "stray"])
def test_a_search_that_fails_changes_nothing_and_harms_nobody(
    measurer: Measurer, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    honest = relu_task(tmp_path, KernelConfig("0.1"), backend="honest")
    (before,) = measurer.measure([honest]).values()
    assert before.outcome == "ok"
    beside = measurer.pool.worker(honest.candidates[0].regime)
    if way == "hang":
        monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 0.0)
    rogue = configured(step, way)
    assert tune(measurer, rogue, seconds=6.0 if way == "hang" else 60.0) == rogue.implementation
    assert len(rogues.noted("tuned")) == 1
    assert {regime.owner for regime in measurer.pool._workers} == {""}, "the worker of the search has gone"
    assert beside.alive and not beside.paused
    (after,) = measurer.measure([relu_task(tmp_path, KernelConfig("0.1"), 2048, "honest")]).values()
    assert after.outcome == "ok" and measurer.pool.worker(honest.candidates[0].regime) is beside
    assert number(tune(measurer, step)) == 2, "others are tuned all the same"
    if way != "hang":  # which takes long
        tune(measurer, rogue)
        assert len(rogues.noted("tuned")) == 3, "a failure is nothing to remember"


def test_what_is_tuned_is_what_is_measured(measurer: Measurer, step: Step, tmp_path: Path) -> None:
    tune(measurer, step, key="another relu")
    found = tune(measurer, step)
    assert number(found) == 2
    plain, tuned = relu_task(tmp_path, step.implementation.config), relu_task(tmp_path, found.config)
    assert measurer.key(plain.candidates[0]) != measurer.key(tuned.candidates[0]), "their costs are kept apart"
    for task in (plain, tuned):
        (cost,) = measurer.measure([task]).values()
        assert cost.outcome == "ok", cost.reason
    assert rogues.noted("compiled") == ["f32", 'f32{"n": 2}']
    odd = relu_task(tmp_path, KernelConfig("f32", (("m", 1),)))
    (cost,) = measurer.measure([odd]).values()
    assert cost.outcome == "refused" and "unknown parameters: m" in cost.reason
