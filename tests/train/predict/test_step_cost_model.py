"""Costs of a step's operators, from a profile that is made up."""

from __future__ import annotations

import pytest

from bricolage.costs.latency import Latency
from bricolage.costs.models.roofline import NOMINAL
from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operator_costs import AloneTime, OperatorProfile, OperatorTimings
from bricolage.train.predict.step_cost_model import StepCost, StepCostModel, step_works
from bricolage.work.cost import Work
from bricolage.work.training_step import Phase
from bricolage.work.work_graph import WorkGraph, WorkOperator

pytest.importorskip("torch")


def step(*operators: tuple[str, Phase, str, float]) -> TracedStep:
    """Type, phase and signature of each operator, and its FLOPs."""
    graph = WorkGraph(tuple(WorkOperator("", flops, 100, kind) for kind, _, _, flops in operators), ())
    phases, signatures = tuple(one[1] for one in operators), tuple(one[2] for one in operators)
    return TracedStep(graph, phases, ("layer",) * len(operators), signatures, (), (), {})


SEEN = step(("mm", "forward", "mm 2", 10.0), ("mm", "forward", "mm 2", 10.0), ("add", "backward", "add 2", 1.0))
PROFILE = OperatorProfile(Latency.of([10.0]), {"forward": 8.0, "backward": 1.5}, (3.0, 4.0, 1.0))


def model(**alone: AloneTime | None) -> StepCostModel:
    known: dict[str, AloneTime | None] = {"mm 2": AloneTime(2.0, 4.0), "add 2": None}
    return StepCostModel(SEEN, PROFILE, OperatorTimings(1, known | {k.replace("_", " "): v for k, v in alone.items()}))


def test_an_operator_of_the_profiled_step_costs_what_it_cost_there() -> None:
    found = StepCost.of(SEEN, model(), NOMINAL)
    assert found.operators == pytest.approx((3.5 + 0.5, 3.5 + 0.5, 1.0 + 0.5)), (
        "their median, and the time between operators"
    )
    assert found.sources == {"measured": 3} and sum(found.operators) == pytest.approx(9.5)


def test_recomputing_is_as_forward() -> None:
    (one,) = StepCost.of(step(("mm", "recompute", "mm 2", 10.0)), model(), NOMINAL).operators
    assert one == pytest.approx(4.0)


def test_a_new_operator_lies_between_warm_and_cold_as_its_like_did() -> None:
    """The two products took 3 and 4 ms where they take from 2 to 4 alone: half and all of what caches hold was lost."""
    (one,) = model(mm_4=AloneTime(10.0, 18.0)).estimate(step_works(step(("mm", "forward", "mm 4", 40.0))), NOMINAL)
    assert one is not None and one.source == "composed"
    assert (one.low_ms, one.ms, one.high_ms) == pytest.approx((10.5, 10.0 + 0.75 * 8.0 + 0.5, 18.5))


def test_what_cannot_run_alone_is_scaled_by_its_work() -> None:
    found = StepCost.of(
        step(("add", "backward", "add 8", 4.0), ("never seen", "forward", "?", 9.0)), model(add_8=None), NOMINAL
    )
    assert found.operators == pytest.approx((4.0 + 0.5, 0.5)) and found.sources == {"calibrated": 2}


def test_what_is_no_operator_of_a_step_has_no_cost() -> None:
    assert model().estimate([Work(key="mm 2")], NOMINAL) == [None]
