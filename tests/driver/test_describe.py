"""The regions of a decision as the plan tells them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.base.deadline import Deadline
from bricolage.driver.describe import planned_regions, title
from bricolage.driver.stage import Runner
from bricolage.driver.stages.placing import Placing
from bricolage.driver.stages.profiling import Baselines, Regions
from bricolage.driver.state import DecisionState
from bricolage.graph.graph import Graph, Region
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.work.implementation import Assignment
from tests.driver.made_up import Answers, First, Partial, made_up_state, whole
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

FIRST, PARTIAL = whole("first"), whole("partial")


@pytest.fixture
def state(tmp_path: Path) -> DecisionState:
    """A product between two element-wise stretches, placed: `partial` is twice as fast, and takes no products."""
    w = np.ones((4, 4), np.float32)
    model = graph("a=Relu(x) b=Tanh(a) c=MatMul(b,w) d=Exp(c) y=Relu(d)", "float[4,4] x", "float[4,4] y", w=w)
    made, _ = made_up_state(
        tmp_path, model, [First(), Partial()], Answers({"partial": 0.5}, errors={"first f32": 1e-7})
    )
    Runner([Baselines(), Regions(), Placing()]).run(made, Deadline(100.0))
    return made


def test_a_region_is_told_with_its_evidence(state: DecisionState) -> None:
    variant, search = state.original, state.searches[ORIGINAL]
    placement = (Assignment(0b00011, PARTIAL), Assignment(0b00100, FIRST), Assignment(0b11000, PARTIAL))
    told = planned_regions(variant, placement, search.predictor)
    assert [parse_numbers(region.operators) for region in told] == [(0, 1), (2,), (3, 4)]
    assert [region.title for region in told] == ["Relu, Tanh", "MatMul", "Exp, Relu"]
    assert [region.cost_ms for region in told] == pytest.approx([1.0, 1.0, 1.0])
    assert all(region.measured for region in told)
    fastest = told[0].alternatives
    assert [(one.implementation, one.median_ms) for one in fastest] == [(PARTIAL, 1.0), (FIRST, 2.0)]
    assert fastest[1].error == 1e-7
    assert [one.implementation for one in told[1].alternatives] == [FIRST], "who refuses a region was never tried on it"
    # One thread of control: a region starts when the one before it is done and its input was handed over.
    starts = [region.start_ms for region in told]
    assert starts[0] == 0.0 and starts == sorted(starts)
    assert [region.transfer_ms > 0 for region in told] == [False, True, True]
    assert starts[2] == pytest.approx(2.0 + told[1].transfer_ms), "what it waits for its own input is its own time"


def test_one_region_hands_nothing_over(state: DecisionState) -> None:
    everything = (Assignment(state.original.graph.everything.bits, FIRST),)
    (told,) = planned_regions(state.original, everything, state.searches[ORIGINAL].predictor)
    assert told.transfer_ms == 0.0 and told.count == 5 and told.measured and told.cost_ms == 5.0


def test_what_was_never_measured_is_predicted_and_says_so(state: DecisionState) -> None:
    placement = (Assignment(0b01111, FIRST), Assignment(0b10000, PARTIAL))
    first, _ = planned_regions(state.original, placement, state.searches[ORIGINAL].predictor)
    assert not first.measured and first.alternatives[0].outcome == "predicted"
    without, _ = planned_regions(state.original, placement, None)
    assert without.alternatives == () and without.cost_ms is None and without.start_ms is None


def test_titles_name_what_is_most_frequent(state: DecisionState) -> None:
    assert title(state.original.graph.everything) == "2 Relu, Tanh, MatMul, Exp"
    many: Graph = graph("a=Relu(x) b=Exp(a) c=Tanh(b) d=Abs(c) e=Neg(d) f=Relu(e) y=Sin(f)", "float[4] x", "float[4] y")
    assert title(many.everything).startswith("2 Relu, ") and title(many.everything).endswith(", +2 kinds")
    shaped = graph("a=Flatten(x) y=Relu(a)", "float[4,4] x", "float[4,4] y")
    assert title(shaped.everything) == "Relu", "views are no work"
    assert title(Region(shaped, 1)) == "Flatten"
