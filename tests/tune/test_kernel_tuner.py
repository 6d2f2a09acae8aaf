"""Kernel tuning in real workers, on a backend with made-up times that notes what is tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.costs.database import Database
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.errors import BadOption
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, TimingPolicy
from bricolage.plan.program_step import Step
from bricolage.tune.kernel_search import Snapshot, TuningResult
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.tune.techniques import TECHNIQUES
from bricolage.tune.tuning_options import TuningOptions
from bricolage.work.implementation import Implementation, KernelConfig
from tests.measure import rogues

POLICY = TimingPolicy(rounds=7, most_rounds=7, seconds=3.0)
FOUND = KernelConfig("f32", (("0.n", 5), ("1.n", 5)))
ALL_TRIALS = 8 + 5
"""Points of both tasks but the usual ones."""


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


def tuner(
    measurer: Measurer, device: Device | None = None, threads: int = 1, options: TuningOptions | None = None
) -> KernelTuner:
    return KernelTuner(measurer, device or host(), threads, options or TuningOptions())


def tune(
    measurer: Measurer, step: Step, key: str = "a relu", version: str = "1.0", seconds: float = 60.0
) -> KernelConfig:
    return tuner(measurer).tune(step, key, version, Deadline(seconds)).implementation.config


def search(
    measurer: Measurer, step: Step, options: TuningOptions, key: str = "a relu", version: str = "1.0"
) -> TuningResult:
    return tuner(measurer, options=options).search(step, key, version, Deadline(60.0))


def configured(step: Step, name: str) -> Step:
    return replace(step, implementation=replace(step.implementation, config=KernelConfig(name)))


@pytest.mark.parametrize(
    "technique", ["bandit", *(pytest.param(one, marks=pytest.mark.slow) for one in TECHNIQUES if one != "bandit")]
)
def test_a_search_finds_what_is_faster_and_says_how_sure(measurer: Measurer, step: Step, technique: str) -> None:
    seen: list[Snapshot] = []
    options = TuningOptions(technique=technique)
    found = tuner(measurer, options=options).search(step, "a relu", "1.0", Deadline(60.0), seen.append)
    assert found.tuned.implementation == Implementation("tunes", FOUND) and not found.reason
    first, second = found.tuned.tasks
    assert (first.name, first.kernels, first.usual_ms, first.ms, first.gain) == ("first", 2, 4.0, 2.0, 2.0)
    assert first.choice == (("n", 5),) and first.gain_ci == (2.0, 2.0)
    assert (second.choice, second.gain, second.ms) == ((), None, 1.0), "what is slower than usual is not chosen"
    assert first.trials + second.trials == ALL_TRIALS and first.failed == 1, "each choice is tried once"
    assert tuple(seen) == found.curve
    assert [one.best_ms for one in seen] == sorted((one.best_ms for one in seen), reverse=True)
    assert seen[-1].best_ms == 3.0 and seen[-1].usual_ms == 5.0 and seen[-1].saved == pytest.approx(0.4)


def test_the_surrogate_learns(measurer: Measurer, step: Step) -> None:
    pytest.importorskip("lightgbm")
    assert search(measurer, step, TuningOptions(technique="surrogate")).tuned.implementation.config == FOUND


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadOption, match="technique"):
        TuningOptions(technique="prayer")
    with pytest.raises(BadOption, match="final rounds"):
        TuningOptions(final_rounds=0)


def test_what_was_found_is_not_searched_again(measurer: Measurer, step: Step, tmp_path: Path) -> None:
    assert tune(measurer, step) == FOUND
    tried = len(rogues.noted("tried"))
    elsewhere = replace(step, path=tmp_path / "the-same-region-with-other-weights.onnx")
    assert tune(measurer, step) == tune(measurer, elsewhere) == FOUND, "a region is its identity"
    with Database() as reopened, Pool(memory_limit=1 << 30) as fresh:
        again = Measurer(reopened, fresh, tmp_path, policy=POLICY)
        assert tune(again, step, seconds=0.0) == FOUND, "what is known needs no time"
    assert len(rogues.noted("tried")) == tried


def test_trials_count_for_every_region_with_the_same_work(measurer: Measurer, step: Step) -> None:
    """A search of another region of the same tasks only confirms; with another version or without `resume` they are hints."""
    assert tune(measurer, step) == FOUND
    opened = [line for line in rogues.noted("tried") if line.endswith(" 7")]
    assert len(opened) == ALL_TRIALS
    assert tune(measurer, step, key="another relu") == FOUND
    assert len([line for line in rogues.noted("tried") if line.endswith(" 7")]) == ALL_TRIALS, "only rounds that decide"
    before = len(rogues.noted("tried"))
    assert search(measurer, step, TuningOptions(resume=False), key="a third").tuned.implementation.config == FOUND
    assert rogues.noted("tried")[before].startswith("first {'n': 5}"), "the best is tried first"
    before = len(rogues.noted("tried"))
    assert tune(measurer, step, version="2.0") == FOUND
    assert rogues.noted("tried")[before].startswith("first {'n': 5}"), "of another build"


def test_what_other_regions_found_is_known_without_a_trial(measurer: Measurer, step: Step) -> None:
    other = tuner(measurer)
    assert other.transferred(step, "another relu", "1.0", Deadline(60.0)) == step.implementation, "nothing is known"
    assert not rogues.noted("opened")
    tune(measurer, step)
    tried = len(rogues.noted("tried"))
    assert other.transferred(step, "another relu", "1.0", Deadline(60.0)).config == FOUND
    assert other.transferred(step, "another relu", "2.0", Deadline(60.0)).config == KernelConfig(), "of that version"
    assert other.transferred(step, "another relu", "1.0", Deadline(0.0)).config == KernelConfig()
    assert len(rogues.noted("tried")) == tried


def test_whatever_times_depend_on_is_searched_for_itself(measurer: Measurer, step: Step) -> None:
    for again in (
        tuner(measurer),
        tuner(measurer, threads=2),
        tuner(measurer, device=host().kept_to("avx2")),
    ):
        assert again.tune(step, "a relu", "1.0", Deadline(60.0)).implementation.config == FOUND
    assert tune(measurer, configured(step, "0.1")).name == "0.1"
    assert [line.split()[:2] for line in rogues.noted("opened")] == [
        ["f32", "1"],
        ["f32", "2"],
        ["f32", "1"],
        ["0.1", "1"],
    ]
    assert rogues.noted("opened")[2].endswith("avx2")


def test_a_search_begins_with_the_base_configuration(measurer: Measurer, step: Step) -> None:
    odd = replace(step, implementation=replace(step.implementation, config=KernelConfig("f32", (("m", 99),))))
    assert tune(measurer, odd) == FOUND
    assert rogues.noted("opened")[0].startswith("f32 1"), "without the parameters that it had"


def test_finding_nothing_better_is_a_result(measurer: Measurer, step: Step) -> None:
    even = configured(step, "even")
    assert tune(measurer, even) == tune(measurer, even) == even.implementation.config
    assert len(rogues.noted("opened")) == 1


def test_without_time_nothing_is_searched(measurer: Measurer, step: Step) -> None:
    assert tune(measurer, step, seconds=0.0) == step.implementation.config
    assert not rogues.noted("opened")
    assert tune(measurer, step) == FOUND, "nothing was stored"


def test_a_stored_configuration_of_another_form_is_searched_again(
    measurer: Measurer, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(measurer.database, "get_config", lambda _: {"name": "f32", "parameters": {"n": 7}})
        assert tune(measurer, step) == FOUND
    assert tune(measurer, step) == FOUND and len(rogues.noted("opened")) == 1


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


@pytest.mark.parametrize("way", ["crash", "hang", "refuse"])
def test_a_choice_that_ends_the_worker_is_found_and_harms_nobody(
    measurer: Measurer, step: Step, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    honest = relu_task(tmp_path, KernelConfig("0.1"), backend="honest")
    (before,) = measurer.measure([honest]).values()
    assert before.outcome == "ok"
    beside = measurer.pool.worker(honest.candidates[0].regime)
    monkeypatch.setattr("bricolage.measure.pool._START_GRACE_S", 3.0)
    monkeypatch.setattr("bricolage.tune.kernel_search._ANSWER_S", 1.0)
    rogue = configured(step, way)
    found = search(measurer, rogue, TuningOptions())
    assert found.tuned.implementation == rogue.implementation
    assert {regime.owner for regime in measurer.pool._workers} == {""}, "the worker of the search has gone"
    assert beside.alive and not beside.paused
    (after,) = measurer.measure([relu_task(tmp_path, KernelConfig("0.1"), 2048, "honest")]).values()
    assert after.outcome == "ok" and measurer.pool.worker(honest.candidates[0].regime) is beside
    if way == "refuse":
        assert "not on Sundays" in found.reason and not rogues.noted("tried")
        return
    first = next(task for task in found.tuned.tasks if task.name == "first")
    assert (first.trials, first.failed) == (8, 2), "the culprit and the one that is refused; all others were timed"
    assert tune(measurer, step) == FOUND, "others are tuned all the same"


def test_an_interrupted_search_keeps_what_it_found(measurer: Measurer, step: Step) -> None:
    def interrupt(seen: Snapshot) -> None:
        if seen.best_ms < seen.usual_ms:
            raise KeyboardInterrupt

    deadline = Deadline(60.0)
    found = tuner(measurer).search(step, "a relu", "1.0", deadline, interrupt)
    assert deadline.interrupted and found.tuned.implementation.config == FOUND, "confirmed all the same"
    done = len(found.curve)
    again = search(measurer, step, TuningOptions(resume=True))
    assert done < 7 and sum(task.trials for task in again.tuned.tasks) < ALL_TRIALS, (
        "and a later one goes on from there"
    )


def test_what_is_tuned_is_what_is_measured(measurer: Measurer, step: Step, tmp_path: Path) -> None:
    found = tune(measurer, step)
    plain, tuned = relu_task(tmp_path, step.implementation.config), relu_task(tmp_path, found)
    assert measurer.key(plain.candidates[0]) != measurer.key(tuned.candidates[0]), "their costs are kept apart"
    for task in (plain, tuned):
        (cost,) = measurer.measure([task]).values()
        assert cost.outcome == "ok", cost.reason
    assert rogues.noted("compiled") == ["f32", 'f32{"0.n": 5, "1.n": 5}']
    odd = relu_task(tmp_path, KernelConfig("f32", (("m", 1),)))
    (cost,) = measurer.measure([odd]).values()
    assert cost.outcome == "refused" and "unknown parameters" in cost.reason
