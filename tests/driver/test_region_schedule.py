"""The stage that looks for schedules: real stages and searches, a measurer that knows every answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.device.host import host
from bricolage.driver.region_schedule import measured_curves
from bricolage.driver.stage import Runner
from bricolage.driver.stages.profiling import Baselines
from bricolage.driver.stages.scheduling import Scheduling
from bricolage.driver.state import Challenger, DecisionState
from bricolage.graph.graph import Graph
from bricolage.work.implementation import Assignment
from tests.driver.made_up import Answers, First, MadeUpMeasurer, Second, Tiled, made_up_state, whole
from tests.graph.models import graph

pytestmark = [
    pytest.mark.usefixtures("registered"),
    pytest.mark.skipif(len(host().cores) < 2, reason="one core"),
]
CORES = len(host().cores)
W = np.ones((4, 4), np.float32)
FIRST = whole("first")


@pytest.fixture
def fork() -> Graph:
    """Two branches of two operators between a fork and a join."""
    return graph(
        "a=Relu(x) b=MatMul(a,w) c=Tanh(b) d=MatMul(a,v) e=Exp(d) y=Add(c,e)",
        "float[4,4] x",
        "float[4,4] y",
        w=W,
        v=2 * W,
    )


def tried(
    folder: Path, model: Graph, answers: Answers, *challengers: Challenger, seconds: float = 100.0
) -> tuple[DecisionState, MadeUpMeasurer]:
    options = Options(threads=CORES)
    state, measurer = made_up_state(folder, model, [First(), Second()], answers, options=options)
    Runner([Baselines()]).run(state, Deadline(100.0))
    state.challenge(*challengers)
    Runner([Scheduling()]).run(state, Deadline(seconds))
    return state, measurer


def test_branches_are_cut_and_enter_the_race(tmp_path: Path, fork: Graph) -> None:
    state, measurer = tried(tmp_path, fork, Answers({"second": 9.0}, on_one_core=1.0, side_by_side=0.7))
    (attempt,) = state.attempts
    (challenger,) = state.challengers
    assert challenger.name in attempt.verdict and challenger.name.endswith("scheduled")
    assert [one.region for one in challenger.placement] == [0b000001, 0b000110, 0b011000, 0b100000]
    assert challenger.schedule is not None and set(challenger.cores[1]).isdisjoint(challenger.cores[2])
    assert challenger.starts_ms[1] == challenger.starts_ms[2] == pytest.approx(1.0)
    assert attempt.predicted_ms == challenger.predicted_ms == pytest.approx(4.0) and attempt.whole_ms == pytest.approx(
        6.0
    )
    assert attempt.measured_ms == pytest.approx(6.0 * 0.7)
    run = [spec for spec in measurer.asked if spec.cores]
    assert [spec.cores for spec in run] == [challenger.cores]
    assert " on " in run[0].region_key, "the time of a schedule is kept under a key of its own"


def test_parts_that_refuse_what_is_best_for_the_whole_run_otherwise(tmp_path: Path, fork: Graph) -> None:
    answers = Answers({"tiled f32-tiles": 0.9}, wants={"tiled f32-tiles": "MatMul"}, on_one_core=1.0, side_by_side=0.7)
    options = Options(threads=CORES)
    state, _ = made_up_state(tmp_path, fork, [Tiled()], answers, options=options)
    Runner([Baselines(every=True), Scheduling()]).run(state, Deadline(100.0))
    (challenger,) = state.challengers
    configs = [str(one.implementation) for one in challenger.placement]
    assert configs == ["tiled f32", "tiled f32-tiles", "tiled f32-tiles", "tiled f32"]
    other = tmp_path / "other"
    other.mkdir()
    refusing = Answers(wants={"tiled": "MatMul"}, on_one_core=1.0)
    state, _ = made_up_state(other, fork, [Tiled()], refusing, options=options)
    Runner([Baselines(), Scheduling()]).run(state, Deadline(100.0))
    assert not state.challengers and all("fails" in one.verdict for one in state.attempts)


def test_a_chain_is_left_alone(tmp_path: Path) -> None:
    chain = graph("a=Relu(x) b=MatMul(a,w) y=Tanh(b)", "float[4,4] x", "float[4,4] y", w=W)
    stage = Scheduling()
    state, measurer = tried(tmp_path, chain, Answers(on_one_core=1.0))
    assert stage.promise(state) is None and not state.attempts and not state.challengers
    assert all(spec.threads == CORES for spec in measurer.asked)


def test_without_promise_no_branch_is_measured(tmp_path: Path, fork: Graph) -> None:
    state, measurer = tried(tmp_path, fork, Answers(on_one_core=float(CORES)))
    assert not state.challengers and all("at most" in one.verdict for one in state.attempts) and state.attempts
    assert all(len(spec.steps) == 1 and "|" not in spec.region_key for spec in measurer.asked)
    assert len([spec for spec in measurer.asked if spec.threads == 1]) == len(state.attempts), "the whole on one core"


def test_where_one_branch_has_all_the_work_nothing_is_measured(tmp_path: Path) -> None:
    products = " ".join(
        f"p{i + 1}=MatMul(p{i},w)" for i in range(20)
    )  # the lone Relu is nothing beside them on any machine
    uneven = graph(
        f"p0=Relu(x) {products} e=Relu(x) y=Add(p20,e)",
        "float[512,512] x",
        "float[512,512] y",
        w=np.eye(512, dtype=np.float32),
    )
    state, measurer = tried(tmp_path, uneven, Answers(on_one_core=1.0))
    assert all("at most" in one.verdict and one.regions == 1 for one in state.attempts) and state.attempts
    assert not any(spec.device.is_group for spec in measurer.asked)


def test_what_is_slower_than_in_one_piece_is_told(tmp_path: Path, fork: Graph) -> None:
    state, _ = tried(tmp_path, fork, Answers({"second": 9.0}, on_one_core=1.0, side_by_side=1.5))
    assert not state.challengers and [one.verdict for one in state.attempts] == ["measured, it is slower"]


def test_regions_of_a_mixture_are_taken_as_they_are(tmp_path: Path, fork: Graph) -> None:
    mixed = (
        Assignment(0b000001, FIRST),
        Assignment(0b000110, FIRST),
        Assignment(0b011000, whole("second")),
        Assignment(0b100000, FIRST),
    )
    state, _ = tried(tmp_path, fork, Answers(on_one_core=1.0, side_by_side=0.7), Challenger("mixture", mixed, None))
    assert state.attempts[-1].plan == "mixture"
    added = state.challengers[-1]
    assert set(added.placement) == set(mixed) and added.schedule is not None


def test_a_mixture_in_a_row_has_nothing_beside(tmp_path: Path, fork: Graph) -> None:
    row = (Assignment(0b000111, FIRST), Assignment(0b111000, whole("second")))
    state, _ = tried(tmp_path, fork, Answers(on_one_core=float(CORES)), Challenger("row", row, None))
    assert state.attempts[-1].verdict == "each of its regions waits for the one before"


def test_curves_stop_where_no_region_gains() -> None:
    asked: list[int] = []

    def times(cores: int) -> list[float]:
        asked.append(cores)
        return [4.0 / cores, 1.0 + cores, 2.0 if cores < 3 else 3.0]

    first, second, third = measured_curves(times, 6) or []
    assert asked == [1, 2, 3, 4, 5, 6] and first.points[-1] == (6, 4.0 / 6)
    assert second.points == ((1, 2.0), (2, 3.0)) and third.points == ((1, 2.0), (2, 2.0), (3, 3.0))
    asked.clear()
    measured_curves(lambda cores: times(cores)[1:], 6)
    assert asked == [1, 2, 3]
    assert measured_curves(lambda _: None, 6) is None
