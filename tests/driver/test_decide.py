"""A whole decision with a made-up measurer: what the plan says of it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.base.efforts import PROFILES
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.driver.decide import compete, decide
from bricolage.driver.whole_models import measure_baselines
from bricolage.errors import NotAccurate
from bricolage.graph.graph import Graph
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.work.implementation import Implementation, KernelConfig
from tests.driver.made_up import Answers, First, Fusing, MadeUpMeasurer, Second, made_up_state, whole
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

FIRST = whole("first")
OPTIONS = Options(threads=1, budget_s=20.0, rewrite=False)


@pytest.fixture
def model() -> Graph:
    w = np.ones((4, 4), np.float32)
    return graph("a=Relu(x) b=MatMul(a,w) y=Exp(b)", "float[4,4] x", "float[4,4] y", w=w)


def decided(folder: Path, model: Graph, answers: Answers | None = None) -> tuple[Bucket, MadeUpMeasurer]:
    state, measurer = made_up_state(folder, model, [First()], answers, options=OPTIONS)
    inputs = {"x": np.ones((4, 4), np.float32)}
    return decide(state.session, state.variants, inputs, "model"), measurer


def test_one_contestant_ships_and_the_plan_says_how_it_was_decided(tmp_path: Path, model: Graph) -> None:
    bucket, measurer = decided(tmp_path, model)
    assert measurer.asked and bucket.race.chosen == bucket.race.best_baseline == "first f32"
    (region,) = bucket.program.regions
    assert region.implementation == FIRST and parse_numbers(region.operators) == (0, 1, 2)
    assert region.cost_ms == 3.0 and region.measured
    assert not bucket.race.significant and not bucket.record.interrupted and bucket.program.variant == ORIGINAL
    assert bucket.race.decided_by == "prior evidence" and bucket.race.speedup_vs_baseline == 1.0
    assert bucket.program.operators == 3 and bucket.verification.bound >= bucket.verification.original_error >= 0.0


def test_every_stage_is_accounted_for(tmp_path: Path, model: Graph) -> None:
    bucket, _ = decided(tmp_path, model)
    assert list(bucket.record.seconds) == list(bucket.record.shares)
    assert {"reference", "baselines", "agenda", "race"} == set(bucket.record.seconds)
    assert all(seconds >= 0 for seconds in bucket.record.seconds.values())
    assert sum(bucket.record.shares.values()) <= OPTIONS.budget_s


def test_what_others_took_is_given_back_and_the_plan_says_how_much(
    tmp_path: Path, model: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = PROFILES["quick"]
    monkeypatch.setitem(PROFILES, "quick", replace(quick, shares=replace(quick.shares, given_back=1.0)))  # type: ignore[arg-type]
    monkeypatch.setattr("bricolage.driver.decide.TimeTaken", lambda _: lambda: 7.0)
    bucket, _ = decided(tmp_path, model)
    assert bucket.race.disturbance.given_back_s == 7.0
    monkeypatch.setattr("bricolage.driver.decide.TimeTaken", lambda _: lambda: 1e9)
    assert decided(tmp_path, model)[0].race.disturbance.given_back_s == OPTIONS.budget_s, "as much again at most"


def test_ctrl_c_keeps_what_is_known_and_the_plan_says_so(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second()], Answers({"second": 0.5}), options=OPTIONS)

    def interrupt(_: CandidateSpec) -> None:
        if len(measurer.asked) == 3:  # while regions are measured
            signal.raise_signal(signal.SIGINT)

    measurer.before = interrupt
    bucket = decide(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model")
    assert bucket.record.interrupted and bucket.race.chosen == "second f32", "the better by what was known then"
    assert [(one.name, one.outcome) for one in bucket.record.agenda] == [("regions", "interrupted")]


def test_nothing_ships_that_is_wrong(tmp_path: Path, model: Graph) -> None:
    with pytest.raises(NotAccurate):
        decided(tmp_path, model, Answers(errors={"first": 0.5}))


def test_a_backend_that_disagrees_with_itself_ships_without_its_optimisations(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"fusing f32": 0.5})
    state, _ = made_up_state(tmp_path, model, [Fusing()], answers, options=OPTIONS)
    bucket = decide(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model")
    assert bucket.race.chosen == "fusing f32-unoptimised"
    (wrong,) = (one for one in bucket.race.contestants if one.name == "fusing f32")
    assert not wrong.accepted and "right without its graph optimisations" in wrong.reason


def test_a_backend_whose_optimisations_refuse_the_graph_takes_part_without_them_and_says_so(
    tmp_path: Path, model: Graph
) -> None:
    answers = Answers(failures={"fusing f32": ("refused", "a rank is wrong")})
    state, _ = made_up_state(tmp_path, model, [Fusing()], answers, options=OPTIONS)
    bucket = decide(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model")
    refused, without = (
        next(one for one in bucket.race.contestants if one.name == name)
        for name in ("fusing f32", "fusing f32-unoptimised")
    )
    assert not refused.accepted and refused.median_ms is None and "a rank is wrong" in refused.reason
    assert (
        without.accepted
        and without.median_ms
        and without.implementation
        == Implementation("fusing", KernelConfig("f32-unoptimised"), state.session.device.name)
    )
    assert "fusing f32 was refused: a rank is wrong" in without.reason


def test_optimisations_that_answer_are_not_tried_without(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [Fusing()], options=OPTIONS)
    decide(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model")
    assert not any("unoptimised" in str(step.implementation) for spec in measurer.asked for step in spec.steps)


@pytest.mark.parametrize("errors", [{"fusing f32": 1e-3}, {"fusing": 0.5}], ids=["rounding", "wrong either way"])
def test_optimisations_are_not_blamed_for_what_is_not_their_fault(
    errors: dict[str, float], tmp_path: Path, model: Graph
) -> None:
    state, _ = made_up_state(tmp_path, model, [Fusing()], Answers(errors=errors), options=OPTIONS)
    with pytest.raises(NotAccurate):
        decide(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model")


@pytest.mark.parametrize("several", [True, False])
def test_variations_on_which_nobody_is_right_are_left_out(
    several: bool, tmp_path: Path, model: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one backend alone is off, it is that backend's fault."""
    state, _ = made_up_state(tmp_path, model, [First(), Second()] if several else [First()], options=OPTIONS)
    oracle, usual = state.oracle, Answers.cost
    assert oracle.variations()
    before = oracle.data(model.everything)

    def cost(answers: Answers, spec: CandidateSpec) -> Cost:
        return replace(usual(answers, spec), excess=0.5 if oracle.variations() else 0.0)

    monkeypatch.setattr(Answers, "cost", cost)
    measure_baselines(state.original, lambda: False)
    assert bool(state.original.times) == several == (not oracle.variations())
    assert (oracle.data(model.everything) != before) == several, "what was judged otherwise is on record for itself"


def test_a_competition_is_baselines_and_a_race(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First()], options=OPTIONS)
    bucket = compete(state.session, state.variants, {"x": np.ones((4, 4), np.float32)}, "model", [])
    assert list(bucket.record.seconds) == ["reference", "baselines", "race"] and bucket.race.chosen == "first f32"
    assert len(measurer.asked) == 1, "no regions"
