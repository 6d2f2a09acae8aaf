"""What a learnt model of costs decides: which regions are measured, and what races where nothing is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement, Measurements
from bricolage.costs.models.forecast import Forecast, _improvement
from bricolage.costs.models.learned.features import NAMES
from bricolage.costs.models.learned.forest import Forest, Tree
from bricolage.costs.models.learned.model import LearnedCosts
from bricolage.driver.agenda import Agenda
from bricolage.driver.decide import decide
from bricolage.driver.expected import estimate_errors, estimate_saving, expected_ms, look_at_placements
from bricolage.driver.mixture_items import LookAtPlacements, RegionsItem
from bricolage.driver.placement_problem import PlacementProblem
from bricolage.driver.pricing import price_candidates
from bricolage.driver.stage import Runner, Stage
from bricolage.driver.stages.profiling import Baselines, Regions
from bricolage.driver.state import DecisionState
from bricolage.errors import NoBackend, NoPlacement, NotAccurate
from bricolage.graph.graph import Graph
from bricolage.work.cost import _QUANTILE, Estimate
from bricolage.work.implementation import Implementation, named
from bricolage.work.placement import Candidate, PlacementResult
from tests.driver.made_up import (
    Answers,
    First,
    MadeUpMeasurer,
    Partial,
    Second,
    Sluggish,
    Third,
    Tiled,
    latency,
    made_up_state,
    whole,
)
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

W = np.ones((4, 4), np.float32)
FIRST, SECOND, THIRD, PARTIAL, SLUGGISH = (whole(name) for name in ("first", "second", "third", "partial", "sluggish"))
INSTANT = Options(threads=1, effort="instant")


@pytest.fixture
def model() -> Graph:
    """A product between two element-wise stretches."""
    return graph("a=Relu(x) b=Tanh(a) c=MatMul(b,w) d=Exp(c) y=Relu(d)", "float[4,4] x", "float[4,4] y", w=W)


def costs(times: Mapping[str, float], spread: float = 2.0) -> LearnedCosts:
    """A model by which each implementation takes so many times its roofline, whatever the region."""
    names = tuple(sorted(times))
    trees = tuple(
        Tree((len(NAMES) + number,), (0.5,), (-1,), (-2,), (0.0, math.log(times[name])))
        for number, name in enumerate(names)
    )
    return LearnedCosts(NAMES, names, Forest(trees), dict.fromkeys(names, spread))


def with_costs(state: DecisionState, found: LearnedCosts | None) -> DecisionState:
    """A state in which nothing is measured, with a model."""
    for variant in state.timed_variants.values():
        variant.session = replace(variant.session, costs=found)
        variant.__dict__.pop("forecast", None)  # what is compiled ahead was chosen by it
    state.session = state.original.session
    return state


def run(state: DecisionState, *stages: Stage[DecisionState]) -> None:
    Runner(stages).run(state, Deadline(100.0))


def regions_asked(measurer: MadeUpMeasurer) -> dict[str, int]:
    """How many regions were measured, by backend."""
    found: dict[str, int] = {}
    for spec in measurer.asked:
        if not spec.alone:
            name = spec.steps[0].implementation.backend
            found[name] = found.get(name, 0) + 1
    return found


# --- which regions are measured -------------------------------------------------------------------------------------


def test_what_is_surely_slow_is_not_measured_but_races_as_a_whole(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"second": 1.2, "third": 50.0})
    state, measurer = made_up_state(tmp_path, model, [First(), Second(), Third()], answers)
    with_costs(state, costs({"first f32": 1.0, "second f32": 1.3, "third f32": 40.0}))
    run(state, Baselines(), Regions())
    asked = regions_asked(measurer)
    assert asked["first"] == asked["second"] > 0 and "third" not in asked
    assert {one for _, one in state.original.left_out} == {THIRD}
    assert set(state.original.times) == {FIRST, SECOND, THIRD}
    prices = {(c.region, c.implementation): c for c in price_candidates(state.original)}
    left = [c for c in prices.values() if c.implementation == THIRD]
    assert left and not any(c.key for c in left), "it is priced as predicted, so that placements around it have a price"
    assert all(c.cost_ms > prices[c.region, FIRST].cost_ms for c in left)


@pytest.mark.parametrize("spread", [7.0, 100.0])
def test_what_may_be_fast_is_measured(tmp_path: Path, model: Graph, spread: float) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second()])
    with_costs(state, costs({"first f32": 1.0, "second f32": 40.0}, spread))
    run(state, Baselines(), Regions())
    asked = regions_asked(measurer)
    assert asked["first"] == asked["second"] and not state.original.left_out


def test_what_the_model_does_not_know_is_measured(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second()])
    with_costs(state, costs({"first f32": 1e-3}))
    run(state, Baselines(), Regions())
    asked = regions_asked(measurer)
    assert asked["first"] == asked["second"] and state.original.forecast.unknown == {SECOND}


def test_what_is_wrong_as_a_whole_rules_nothing_out(tmp_path: Path, model: Graph) -> None:
    """The fastest may be one whose answers are too inaccurate; then the others are needed."""
    state, measurer = made_up_state(tmp_path, model, [First(), Second(), Third()], Answers(errors={"first": 0.5}))
    with_costs(state, costs({"first f32": 0.01, "second f32": 1.0, "third f32": 1.0}))
    run(state, Baselines(), Regions())
    asked = regions_asked(measurer)
    assert asked["second"] == asked["third"] == asked["first"]


def test_a_wrong_model_costs_time_and_never_the_fastest_as_a_whole(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second()], Answers({"second": 0.1}))
    with_costs(state, costs({"first f32": 0.01, "second f32": 100.0}))
    run(state, Baselines(), Regions())
    fastest = state.original.fastest
    assert fastest is not None and fastest[0] == SECOND
    asked = regions_asked(measurer)
    assert asked["second"] >= asked["first"], "who is fastest as a whole is measured in any case"


def test_where_who_was_predicted_to_be_fast_fails_the_others_are_measured(tmp_path: Path, model: Graph) -> None:
    times = dict.fromkeys(("Relu", "Tanh", "MatMul", "Exp"), 1e-5)
    answers = Answers(operators=times, wants={"first": "MatMul"})  # it refuses regions without a product
    state, measurer = made_up_state(tmp_path, model, [First(), Second()], answers)
    with_costs(state, costs({"first f32": 0.01, "second f32": 1.0}))
    run(state, Baselines(), Regions())
    measured = {(one.region, one.implementation) for one in state.original.regions if one.cost.ms is not None}
    for group in state.original.candidates.groups:
        assert ((group.key, FIRST) in measured) != ((group.key, SECOND) in measured), (
            "the second only where the first fails"
        )
    assert len([spec for spec in measurer.asked if not spec.alone]) == len(state.original.regions)


def test_operators_that_only_others_than_the_contenders_run_alone_have_a_price(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"second": 50.0}, wants={"first": "MatMul"})
    state, _ = made_up_state(tmp_path, model, [First(), Second()], answers)
    with_costs(state, None)
    run(state, Baselines(), Regions())
    problem = PlacementProblem(state.original, Deadline(10.0), ["first"])
    assert problem.solve().choices and {one.implementation for one in problem.candidates} == {FIRST}


def test_measured_costs_rule_out_as_predicted_ones_do(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First(), Second()])
    group = state.original.candidates.groups[0]
    expected = Forecast(
        {(group.key, FIRST): Estimate(1, 0.5, 2, "learned"), (group.key, SECOND): Estimate(4, 3, 5, "learned")}, {}
    )
    both, right = (FIRST, SECOND), {FIRST, SECOND}
    worth = partial(expected.worth_measuring, group.key, group.implementations)
    assert worth(FIRST, right, Measurements()) == (FIRST,)
    assert worth(FIRST, {SECOND}, Measurements()) == both
    assert worth(FIRST, right, Measurements([Measurement(group.key, FIRST, Cost("ok", latency(3.5)))])) == both
    assert worth(FIRST, right, Measurements([Measurement(group.key, FIRST, Cost("crashed"))])) == both, "it failed"
    assert worth(SECOND, right, Measurements()) == both, "who stands stays"


def test_those_that_may_gain_most_are_measured_first(tmp_path: Path) -> None:
    body = "a=Relu(x) b=Tanh(a) c=MatMul(b,w) d=Tanh(c) e=MatMul(d,w) f=Tanh(e) y=Relu(f)"
    long = graph(body, "float[4,4] x", "float[4,4] y", w=W)
    state, measurer = made_up_state(tmp_path, long, [First(), Second()])
    with_costs(state, costs({"first f32": 1.0, "second f32": 0.9}))
    run(state, Baselines(), Regions())
    expected, right = state.original.forecast.corrected(state.original.times), state.original.times
    fastest = state.original.fastest
    assert fastest is not None
    gains = {
        g.key: len(g.regions) * expected.gain_ms(g.key, g.implementations, fastest[0], right)
        for g in state.original.candidates.groups
    }
    single = {g.key for g in state.original.candidates.groups if g.level in ("operator", "prefix")}
    order = list(dict.fromkeys(spec.region_key for spec in measurer.asked if spec.region_key in single))
    assert len(order) > 2 and [gains[key] for key in order] == sorted((gains[key] for key in order), reverse=True)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.floats(1.0001, 20), st.floats(1.0001, 20))
def test_expected_gains_are_what_draws_give(own_ms: float, other_ms: float, own_spread: float, spread: float) -> None:
    own, other = (Estimate(m, m / s, m * s, "learned") for m, s in ((own_ms, own_spread), (other_ms, spread)))
    found = _improvement(own, other)
    deviation = math.hypot(math.log(own_spread), math.log(spread)) / _QUANTILE
    levels = np.linspace(-8, 8, 20_001)
    density = np.exp(-(levels**2) / 2) / np.sqrt(2 * np.pi)
    logs = math.log(own_ms / other_ms) + deviation * levels
    drawn = float((own_ms * np.maximum(0.0, 1 - np.exp(-logs)) * density).sum() * (levels[1] - levels[0]))
    assert found == pytest.approx(drawn, rel=1e-2, abs=1e-3 * own_ms) and 0 <= found <= own_ms


def test_a_network_that_is_slower_than_predicted_has_slower_regions(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First(), Second()])
    with_costs(state, costs({"first f32": 1.0, "second f32": 1.0}))
    before = state.original.forecast
    after = before.corrected({FIRST: 4 * before.whole[FIRST].ms})
    for (key, one), found in before.regions.items():
        assert after.regions[key, one].ms == pytest.approx(found.ms * (2.0 if one == FIRST else 1.0))


# --- what an instant decision measures ------------------------------------------------------------------------------


def measured_first(state: DecisionState) -> set[str]:
    run(state, Baselines())
    return {str(one) for one in state.original.whole}


def test_the_best_other_tool_and_the_best_of_ours_are_measured_first(
    tmp_path: Path, model: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool is measured though all of ours are expected to be faster: else nothing would say what the user gains over it."""
    monkeypatch.setattr("bricolage.plan.race_outcome.OWN_ENGINE", "tiled")
    monkeypatch.setattr(Tiled, "configs", lambda *_: named("f32", "f32-tiles", "f32-small"))
    state, _ = made_up_state(tmp_path, model, [Tiled(), First(), Second(), Sluggish()], options=INSTANT)
    ours = {"tiled f32": 1.2, "tiled f32-tiles": 1.1, "tiled f32-small": 1.3}
    with_costs(state, costs({**ours, "first f32": 9.0, "second f32": 8.0, "sluggish f32": 0.1}))
    assert measured_first(state) == {"tiled f32-tiles", "second f32"}, "and none that compiles slowly"


def test_without_our_own_engine_the_fastest_are_measured_first(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third()], options=INSTANT)
    with_costs(state, costs({"first f32": 3.0, "second f32": 1.0, "third f32": 2.0}))
    assert measured_first(state) == {"second f32", "third f32"}


def test_what_is_on_record_counts_before_what_is_predicted(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second(), Third()], options=INSTANT)
    with_costs(state, costs({"first f32": 1.0, "second f32": 1.1, "third f32": 1.2}))
    spec = state.original.whole_spec(THIRD)
    expected = state.original.forecast.whole[FIRST].ms
    answers = Answers(operators=dict.fromkeys(("Relu", "Tanh", "MatMul", "Exp"), expected / 100))
    measurer.on_record = {spec: answers.cost(spec)}
    failing = state.original.whole_spec(SECOND)
    measurer.on_record[failing] = Answers(failures={"second": ("crashed", "no")}).cost(failing)
    assert measured_first(state) == {"third f32", "first f32"}


def test_what_the_model_does_not_know_comes_last(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third()], options=INSTANT)
    expected = expected_ms(with_costs(state, costs({"second f32": 1e6})).original)
    assert sorted(expected, key=expected.__getitem__) == [SECOND, FIRST, THIRD]


def test_without_a_model_the_first_configurations_are_measured_first(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [Tiled(), First(), Second()], options=INSTANT)
    assert measured_first(state) == {"tiled f32", "first f32"}


def test_where_those_are_wrong_all_others_are_measured(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"first": 0.5, "second": 0.5, "third": 0.5})
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third(), Sluggish()], answers, options=INSTANT)
    with_costs(state, costs({"first f32": 1.0, "second f32": 1.0, "third f32": 1.0, "sluggish f32": 5.0}))
    assert measured_first(state) == {"first f32", "second f32", "third f32", "sluggish f32"}
    assert set(state.original.times) == {SLUGGISH}
    none, _ = made_up_state(tmp_path, model, [First(), Second(), Third()], answers, options=INSTANT)
    with_costs(none, costs({"first f32": 1.0, "second f32": 1.0, "third f32": 1.0}))
    with pytest.raises(NotAccurate):
        decide(none.session, none.variants, none.inputs, "model")


def test_nothing_runs_it(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [Partial()], options=INSTANT)
    with pytest.raises(NoPlacement, match="MatMul"):
        run(state, Baselines())
    broken, _ = made_up_state(
        tmp_path, model, [First()], Answers(failures={"first": ("crashed", "SIGSEGV")}), options=INSTANT
    )
    with pytest.raises(NoBackend, match="SIGSEGV"):
        run(broken, Baselines())


@pytest.mark.parametrize(("tanh_ms", "is_mixed"), [(0.1, True), (6.0, False)])
def test_a_look_says_what_a_mixture_saves_by_predicted_costs_of_its_parts(
    tmp_path: Path, tanh_ms: float, is_mixed: bool
) -> None:
    """Products are predicted to take 1 ms on one backend and 4 on the other, all else 1.5 ms there and `tanh_ms` here."""
    w = np.ones((64, 64), np.float32)
    body = "a=MatMul(x,w) b=Tanh(a) c=MatMul(b,w) d=Tanh(c) y=MatMul(d,w)"
    state, measurer = made_up_state(tmp_path, graph(body, "float[64,64] x", "float[64,64] y", w=w), [First(), Second()])
    state = with_costs(state, costs({"first f32": 2.0, "second f32": 2.0}))
    variant = state.original
    assert look_at_placements(variant, Deadline(100.0)) is None, "no whole graph is measured to compare with"
    Baselines().run(state, Deadline(100.0))
    times = {FIRST: (1.0, 1.5), SECOND: (4.0, tanh_ms)}

    def predicted(region: int, one: Implementation) -> Estimate:
        kinds = [operator.op_type for operator in variant.graph.operators if region >> operator.number & 1]
        ms = sum(times[one][kind == "Tanh"] for kind in kinds)
        return Estimate(ms, ms / 1.1, ms * 1.1, "learned")

    groups = variant.candidates.groups
    regions = {(group.key, one): predicted(group.regions[0], one) for group in groups for one in group.implementations}
    whole = {one: predicted(variant.graph.everything.bits, one) for one in times}
    variant.__dict__["forecast"] = Forecast(regions, whole)
    asked = len(measurer.asked)
    look = look_at_placements(variant, Deadline(100.0))
    assert look is not None and (look.chance > 0.0) is is_mixed and len(measurer.asked) == asked
    assert ("the best mixture saves" if is_mixed else "no mixture is faster") in str(look)
    assert look.low <= look.saving <= look.high
    if is_mixed:  # 3 ms and 0.2, where all of it takes 6; both as many times as long as measured, and four boundaries
        assert 0.3 < look.saving < 0.5 and look.chance > 0.9


@given(
    st.floats(0.5, 60.0),
    st.floats(0.5, 60.0),
    st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 20.0), max_size=3),
)
def test_the_chance_of_a_mixture_is_that_of_its_simulated_time(
    mixture_ms: float, before_ms: float, errors: dict[str, float]
) -> None:
    look = estimate_saving(mixture_ms, before_ms, {Implementation(name): ms for name, ms in errors.items()})
    assert look.saving == pytest.approx(1.0 - mixture_ms / before_ms) and look.low <= look.saving <= look.high
    spread = math.hypot(*errors.values()) / mixture_ms
    if spread > 0.03:  # less is not believed
        ratios = np.exp(np.random.default_rng(0).normal(math.log(mixture_ms / before_ms), spread, 4000))
        assert look.chance == pytest.approx(float(np.mean(ratios < 0.98)), abs=0.05)


def test_errors_of_what_stays_where_it_is_cancel() -> None:
    first, second = Implementation("first"), Implementation("second")
    estimates = {
        (region, one): Estimate(ms, ms / 2, ms * 2, "learned")
        for region, one, ms in ((1, first, 4.0), (2, first, 3.0), (2, second, 1.0))
    }
    own, other = Candidate(1, first, 4.0), Candidate(2, second, 1.0)
    divided = PlacementResult((own, Candidate(2, first, 3.0)), 7.0, 0.0, 7.0, True, 7.0)
    mixture = PlacementResult((own, other), 5.0, 0.0, 5.0, True, 5.0)
    deviation = estimates[2, second].deviation
    assert estimate_errors(mixture, divided, estimates, first) == {
        second: pytest.approx(deviation),
        first: pytest.approx(3.0 * deviation),
    }


def test_a_look_that_has_no_time_left_says_so(tmp_path: Path, model: Graph) -> None:
    """It ends with what it has, and regions are judged without it."""
    state, _ = made_up_state(tmp_path, model, [First(), Second()])
    state = with_costs(state, costs({"first f32": 2.0, "second f32": 2.0}))
    Baselines().run(state, Deadline(100.0))
    item = LookAtPlacements()
    promise = item.promise(state)
    assert promise is not None and promise.chance is None and promise.seconds == 1.0
    Agenda(lambda _: [item]).run(state, Deadline(0.5))
    assert [(entry.name, entry.outcome) for entry in state.agenda] == [("look at placements", "no time")]
    assert not state.looks
    item.run(state, Deadline(0.0))
    assert state.looks == {"original": None} and item.promise(state) is None
    known = RegionsItem().promise(state)
    assert known is not None and "predicted costs" not in known.because
