from __future__ import annotations

import importlib
import math
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.costs.database import Database
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.device import memory
from bricolage.device.host import host
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.race import _beaten, race
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec, Limits, Regime
from bricolage.measure.worker_process import WorkerProcess
from tests.measure.test_measurer import step

race_module = importlib.import_module("bricolage.measure.race")


def run(pool: Pool, directory: Path, processes: int = 1, seconds: float = 120, **contestants: str) -> Race:
    """Races name="backend config" on a Relu of 1024 elements."""
    region = relu_region(directory, "x", "y", 1024)
    specs = {
        name: CandidateSpec("relu", (step(*words.partition(" ")[::2], region),), ("y",), 1, True, host())
        for name, words in contestants.items()
    }
    expected = vector(directory, ("y",), 1024, rectified=True)
    with Database() as database:
        measurer = Measurer(database, pool, directory, limits=Limits(10, 10), cores=2)
        return race(
            measurer,
            specs,
            vector(directory, ("x",), 1024),
            expected,
            1e-6,
            rounds=12,
            seconds=seconds,
            warm_s=0.01,
            processes=processes,
        )


def test_the_fastest_wins_and_ratios_are_paired(pool: Pool, tmp_path: Path) -> None:
    # Milliseconds asleep: so many that a busy machine's are few beside them.
    result = run(pool, tmp_path, slow="honest 30", fast="twin 6", hopeless="honest 120")
    assert result.fastest == "fast"
    ratio = result.ratio("fast", "slow")
    assert ratio is not None and ratio.value > 1
    assert ratio.inverse.value == pytest.approx(1 / ratio.value)
    assert len(result.samples("fast")) == len(result.samples("slow")) == 12
    assert len(result.samples("hopeless")) == 7
    assert set(result.first_ms) == {"slow", "fast", "hopeless"}
    assert not pool._workers  # all have been sent home


@pytest.mark.usefixtures("unbeaten")
def test_several_processes_share_the_rounds(pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def noted(regime: Regime) -> WorkerProcess:
        worker = start(regime)
        started.append(worker.process.pid)
        return worker

    start = pool._start
    monkeypatch.setattr(pool, "_start", noted)
    result = run(pool, tmp_path, processes=2, slow="honest 2.0", fast="twin 1.0", wrong="wrong")
    assert result.processes == (0,) * 6 + (1,) * 6
    assert len(result.samples("fast")) == len(result.samples("slow")) == 12
    cost = result.costs["fast"]
    assert cost.latency is not None and 3 <= cost.latency.samples <= 12 and cost.outcome == "ok"
    assert result.costs["wrong"].outcome == "wrong" and set(result.first_ms) >= {"slow", "fast"}
    ratio = result.ratio("fast", "slow")
    assert ratio is not None and 1 <= ratio.rounds <= 12, "undisturbed ones alone, where there are enough of them"
    assert len(set(started)) >= 4


@pytest.mark.usefixtures("unbeaten")
def test_who_gets_ready_slowly_has_one_process(pool: Pool, tmp_path: Path) -> None:
    result = run(pool, tmp_path, 3, 1.8, quick="honest 1.0", other="twin 1.0", slow="slow 0.5", wrong="wrong")
    assert result.processes == (0,) * 4 + (1,) * 4 + (2,) * 4
    assert len(result.samples("quick")) == 12 and len(result.samples("slow")) == 4
    ratio = result.ratio("slow", "quick")
    assert ratio is not None and 1 <= ratio.rounds <= 4, "by the rounds that both took part in, undisturbed ones alone"


def steady(**ms: float) -> Race:
    """A race of ten rounds, in which nobody varies much."""
    rounds = tuple({name: (own * (1 + 0.001 * (number % 3)),) for name, own in ms.items()} for number in range(10))
    costs = {name: Cost("ok", Latency(own, own, own, 10)) for name, own in ms.items()}
    return Race(rounds, costs, {})


def test_who_is_clearly_beaten_does_not_start_again() -> None:
    part = steady(fast=1.0, near=1.05, beaten=1.5, leader=1.6)
    assert _beaten([part], ["fast", "near", "beaten", "leader", "absent"], "leader") == {"beaten"}
    shaken = replace(part, costs={**part.costs, "beaten": replace(part.costs["beaten"], disturbed=True)})
    assert not _beaten([shaken], ["fast", "near", "beaten"], None), "a disturbed race says nothing of it"
    other = steady(fast=1.4, near=1.0, beaten=1.04, leader=1.6)
    assert not _beaten([part, other], ["beaten"], None), "in the other process nobody was clearly faster"


@pytest.fixture
def unbeaten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone starts again, whatever the samples of a busy machine say."""
    monkeypatch.setattr(race_module, "_BEATEN", math.inf)


@pytest.mark.usefixtures("unbeaten")
def test_nobody_starts_again_without_the_incumbent(pool: Pool, tmp_path: Path) -> None:
    result = run(pool, tmp_path, 4, 2.4, incumbent="slow 0.5", one="honest 1.0", other="twin 1.0")
    assert all(len(result.samples(name)) == 3 for name in ("incumbent", "one", "other"))


def test_rogues_drop_out_with_their_reason(pool: Pool, tmp_path: Path) -> None:
    result = run(pool, tmp_path, good="honest 0.3", wrong="wrong", crash="segfaults", later="segfaults-later")
    outcomes = {name: cost.outcome for name, cost in result.costs.items()}
    assert outcomes == {"good": "ok", "wrong": "wrong", "crash": "crashed", "later": "crashed"}
    assert not result.samples("wrong") and result.fastest == "good"
    assert result.costs["wrong"].reason and result.ratio("wrong", "good") is None


def test_when_memory_is_short_heats_share_the_incumbent(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    monkeypatch.setattr(pool, "_reserve", -1)
    result = run(pool, tmp_path, incumbent="honest 30", one="twin 10", two="twin 27")
    together = {frozenset(round_) for round_ in result.rounds}
    assert together == {frozenset({"incumbent", "one"}), frozenset({"incumbent", "two"})}
    assert result.ratio("one", "two") is None
    ratio = result.ratio("one", "two", through="incumbent")
    assert ratio is not None and ratio.value > 1


def test_nobody_arrives(pool: Pool, tmp_path: Path) -> None:
    result = run(pool, tmp_path, crash="segfaults")
    assert result.fastest is None and result.rounds == () and result.costs["crash"].outcome == "crashed"


# --- beside other processes -----------------------------------------------------------------------------------------


def made_up(disturbed: bool, **medians: list[float]) -> Race:
    """A race of so many rounds, in all of which everyone was disturbed, or nobody."""
    count = len(next(iter(medians.values())))
    rounds = tuple({name: (times[number],) for name, times in medians.items()} for number in range(count))
    flags = [disturbed] * count
    costs = {
        name: Cost("ok", Latency.of_rounds([[ms] for ms in times], flags), disturbed=disturbed)
        for name, times in medians.items()
    }
    return Race(rounds, costs, {}, (), (frozenset(medians),) * count if disturbed else ())


def test_who_may_be_fastest_in_a_disturbed_race_goes_on() -> None:
    near = {"one": [1.0, 1.5, 3.0] * 3, "two": [1.01, 1.4, 4.0] * 3, "far": [9.0, 9.1, 9.2] * 3}
    assert set(made_up(True, **near).undecided) == {"one", "two"} and made_up(True, **near).inconclusive
    assert made_up(False, **near).undecided == () and not made_up(False, **near).inconclusive
    sure = {"one": [1.0] * 9, "two": [1.5] * 9}
    assert made_up(True, **sure).undecided == () and made_up(True, **sure).inconclusive
    narrow = {"one": [1.0] * 9, "two": [1.001] * 9}
    assert made_up(True, **narrow).undecided == (), "what they differ by does not matter"
    assert made_up(True, one=[1.0] * 9).undecided == () and Race((), {}, {}).undecided == ()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="disturbance is seen by Linux's counters")
def test_a_disturbed_race_goes_on_as_long_as_there_is_time(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[set[str]] = []

    def once(measurer: Measurer, contestants: dict[str, CandidateSpec], *_: object, **named: object) -> Race:
        held.append(set(contestants))
        time.sleep(0.3)
        return made_up(True, one=[1.0, 1.3, 0.9, 1.2], other=[1.1, 0.9, 1.3, 1.0], slow=[9.0, 9.0, 9.1, 9.0])

    monkeypatch.setattr(race_module, "_once", once)
    region, inputs = relu_region(tmp_path, "x", "y", 1024), vector(tmp_path, ("x",), 1024)
    specs = {
        name: CandidateSpec("relu", (step(backend, "1", region),), ("y",), 1, True, host())
        for name, backend in (("one", "honest"), ("other", "twin"), ("slow", "slow"))
    }
    with Database() as database:
        measurer = Measurer(database, pool, tmp_path, cores=1)
        race(measurer, specs, inputs, None, 1e-6, seconds=60, left=lambda: 59.0, incumbent="one")
        assert held == [{"one", "other", "slow"}], "for another part there is no time"
        held.clear()
        ran = race(measurer, specs, inputs, None, 1e-6, seconds=60, left=lambda: 1000.0, incumbent="one")
    assert held == [{"one", "other", "slow"}, {"one", "other"}], "those that may be the fastest, as long again"
    assert ran.inconclusive and all(ran.noisy(name) for name in specs)
