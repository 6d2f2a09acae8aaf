"""The stages of a decision on small graphs: real stages, a made-up measurer."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement
from bricolage.costs.models.track_record import Compiling, TrackRecord
from bricolage.driver.mixture_items import Placements, RegionsItem
from bricolage.driver.pricing import price_candidates
from bricolage.driver.promising_variants import promising, select_divided_variants
from bricolage.driver.stage import Runner, Stage
from bricolage.driver.stages import graph_variants
from bricolage.driver.stages.graph_variants import RewriteSearch, RewrittenVariants, measured_operators
from bricolage.driver.stages.kernel_tuning import KernelTuning
from bricolage.driver.stages.placing import Placing
from bricolage.driver.stages.profiling import Baselines, Regions
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import AllWrong, NoBackend, NoPlacement, NotAccurate, NotWritable, Unclaimed
from bricolage.graph.graph import Graph, Operator, Region
from bricolage.graph.identity import operator_key
from bricolage.graph.work import operator_work
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.rewrite.variants import GraphVariant
from bricolage.work.cost import CostModel, Setting
from bricolage.work.implementation import Assignment, Implementation, KernelConfig
from tests.driver.made_up import (
    Answers,
    Bold,
    BoldSluggish,
    Dense,
    First,
    Partial,
    Read,
    ReadToo,
    Second,
    Sluggish,
    Third,
    Tuned,
    Untuned,
    latency,
    made_up_state,
    whole,
)
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

FULL = Options(threads=1, effort="full")
W = np.ones((4, 4), np.float32)
FIRST, SECOND, PARTIAL, SLUGGISH = whole("first"), whole("second"), whole("partial"), whole("sluggish")


@pytest.fixture
def model() -> Graph:
    """A product between two element-wise stretches."""
    return graph("a=Relu(x) b=Tanh(a) c=MatMul(b,w) d=Exp(c) y=Relu(d)", "float[4,4] x", "float[4,4] y", w=W)


def run(state: DecisionState, *stages: Stage[DecisionState], seconds: float = 100.0) -> Deadline:
    deadline = Deadline(seconds)
    Runner(stages).run(state, deadline)
    return deadline


def whole_times(variant: TimedVariant) -> dict[str, float]:
    return {str(one): round(ms, 9) for one, ms in variant.times.items()}


# --- baselines ------------------------------------------------------------------------------------------------------


def test_baselines_are_measured_quick_compilers_first(tmp_path: Path, model: Graph) -> None:
    backends = [Sluggish(), First(), Partial(), Second()]
    state, measurer = made_up_state(tmp_path, model, backends, Answers({"second": 2.0}))
    run(state, Baselines(), seconds=0.0)
    assert whole_times(state.original) == {"first f32": 5.0, "second f32": 10.0}, "whatever the clock says"
    assert {spec.alone for spec in measurer.asked} == {True}
    run(state, Baselines(every=True))
    assert whole_times(state.original) == {"first f32": 5.0, "second f32": 10.0, "sluggish f32": 5.0}


def test_without_time_for_one_measurement_who_compiles_fastest_is_measured(
    tmp_path: Path, model: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    """The budget is over, and so are the seconds that baselines have in any case."""
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third()], Answers({"second": 3.0}))
    known = TrackRecord(compiling={"first": Compiling(2.0, 0.0), "second": Compiling(0.5, 0.0)})
    state.session = state.original.session = replace(state.session, record=known)
    seconds = itertools.count(0.0, 20.0)
    Baselines().run(state, Deadline(5.0, lambda: next(seconds)))
    assert whole_times(state.original) == {"second f32": 15.0}
    assert "the time was up before first f32, third f32 had their turn" in caplog.text


@pytest.mark.parametrize(("budget_s", "in_time"), [(10.0, {"read f32", "read-too f32"}), (9.0, {"second f32"})])
def test_those_that_read_most_have_a_turn_in_a_budget_of_some_seconds(
    budget_s: float, in_time: set[str], tmp_path: Path, model: Graph, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the clock says, and although another compiles faster. In a shorter budget that one alone is measured."""
    options = Options(threads=1, budget_s=budget_s)
    state, _ = made_up_state(tmp_path, model, [Second(), Read(), ReadToo(), Sluggish()], options=options)
    known = TrackRecord(compiling={"second": Compiling(0.5, 0.0), "read": Compiling(2.0, 0.0)})
    state.session = state.original.session = replace(state.session, record=known)
    seconds = itertools.count(0.0, 20.0)
    Baselines().run(state, Deadline(budget_s, lambda: next(seconds)))
    assert set(whole_times(state.original)) == in_time
    left = {"second f32", "read f32", "read-too f32"} - in_time
    assert all(name in caplog.text.partition("before ")[2] for name in left)


def test_so_they_have_on_a_model_that_they_do_not_claim(tmp_path: Path, model: Graph) -> None:
    class Eager(Bold):
        always_measured = True

    for backend, tried in ((Eager(), {"first f32", "bold f32"}), (Bold(), {"first f32"})):
        state, _ = made_up_state(tmp_path, model, [First(), backend], options=Options(threads=1, budget_s=10.0))
        seconds = itertools.count(0.0, 20.0)
        Baselines().run(state, Deadline(10.0, lambda clock=seconds: next(clock)))  # type: ignore[misc]
        assert set(whole_times(state.original)) == tried


def test_slow_compilers_are_measured_late_where_there_are_no_others(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [Sluggish()])
    run(state, Baselines(), seconds=0.0)
    assert whole_times(state.original) == {"sluggish f32": 5.0}


def test_an_operator_that_nothing_runs_is_named(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [Partial()])
    with pytest.raises(NoPlacement, match="MatMul"):
        run(state, Baselines())
    assert not measurer.asked


def test_nothing_takes_the_whole_graph(tmp_path: Path, model: Graph) -> None:
    class Products(First):
        name = "products"

        def declines(self, operator: Any) -> str | None:
            return None if operator.op_type == "MatMul" else "no matrix product"

    state, _ = made_up_state(tmp_path, model, [Partial(), Products()])
    with pytest.raises(NoBackend, match="for the whole model"):
        run(state, Baselines())


def test_a_whole_model_is_tried_on_who_does_not_claim_all_of_it(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [Bold(), First(), BoldSluggish()], Answers({"bold": 0.5}))
    run(state, Baselines())
    assert whole_times(state.original) == {"first f32": 5.0, "bold f32": 2.5, "bold f32-tiles": 2.5}
    assert [str(spec.steps[0].implementation) for spec in measurer.asked] == ["first f32", "bold f32", "bold f32-tiles"]
    product = next(o.number for o in model.operators if o.op_type == "MatMul")
    assert not any(
        group.regions[0] >> product & 1
        for group in state.original.candidates.groups
        if whole("bold") in group.implementations
    )


def test_one_configuration_tells_whether_it_is_worth_trying_more(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"bold": 0.3})
    state, measurer = made_up_state(tmp_path, model, [Bold(), First()], answers)
    run(state, Baselines())
    assert whole_times(state.original) == {"first f32": 5.0}
    assert len(measurer.asked) == 2


def test_where_nobody_claims_all_of_it_slow_compilers_are_tried_last(tmp_path: Path, model: Graph) -> None:
    answers = Answers(failures={"bold": ("refused", "no product")})
    state, _ = made_up_state(tmp_path, model, [BoldSluggish(), Bold()], answers)
    run(state, Baselines(), seconds=0.0)
    assert whole_times(state.original) == {"bold-sluggish f32": 5.0}


def test_what_nobody_claims_is_placed_where_the_whole_graph_runs(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [Bold(), Partial()])
    run(state, Baselines())
    product = next(o.number for o in model.operators if o.op_type == "MatMul")
    assert {c.implementation.backend for c in price_candidates(state.original) if c.region == 1 << product} == {"bold"}


def test_who_cannot_run_an_operator_says_why(tmp_path: Path, model: Graph) -> None:
    answers = Answers(failures={"bold": ("refused", "it has no kernel")})
    state, _ = made_up_state(tmp_path, model, [Bold(), Partial()], answers)
    with pytest.raises(
        Unclaimed, match=r"\(MatMul of float32, float32\): bold: it has no kernel; partial: a matrix product"
    ):
        run(state, Baselines())


def test_the_operator_that_a_backend_names_is_told(tmp_path: Path, model: Graph) -> None:
    answers = Answers(failures={"bold": ("refused", "in Relu::Relu(info): no such thing")})
    state, _ = made_up_state(tmp_path, model, [Bold(), Partial()], answers)
    with pytest.raises(Unclaimed, match=r"takes operator '.*' \(Relu of float32\): bold: in Relu"):
        run(state, Baselines())


def test_everything_fails(tmp_path: Path, model: Graph) -> None:
    failures = {"first": ("crashed", "SIGSEGV"), "second": ("refused", "not on Sundays")}
    state, _ = made_up_state(tmp_path, model, [First(), Second()], Answers(failures=failures))  # type: ignore[arg-type]
    with pytest.raises(NoBackend, match=r"first: SIGSEGV; second: not on Sundays"):
        run(state, Baselines())


def test_everything_is_wrong(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"first": 0.3, "second": 1e-4}, failures={"third": ("failed", "no")})
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third()], answers)
    with pytest.raises(NotAccurate) as found:
        run(state, Baselines())
    assert found.value.facts["error"] == 1e-4 and found.value.facts["bound"] == state.oracle.bound, "the least wrong"


def test_no_precision_is_proposed_that_would_not_help(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"first": 0.7}, failures={"second": ("refused", "it has no kernel")})
    state, _ = made_up_state(tmp_path, model, [First(), Second()], answers)
    with pytest.raises(AllWrong, match="first: .*; second: it has no kernel") as found:
        run(state, Baselines())
    assert "--precision" not in str(found.value)


def test_one_that_is_right_is_enough_and_the_others_are_timed_all_the_same(tmp_path: Path, model: Graph) -> None:
    answers = Answers(errors={"first": 0.3, "second": 1e-4, "sluggish": 1e-4})
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Third(), Sluggish()], answers)
    run(state, Baselines())
    assert whole_times(state.original) == {"third f32": 5.0}
    assert {one.backend: cost.ms for one, cost in state.original.dropped.items()} == {"second": 5.0}, (
        "those that a wider tolerance would take and that compile quickly"
    )


def test_an_interruption_before_anything_is_measured_ends_as_one(tmp_path: Path, model: Graph) -> None:
    def interrupt(_spec: CandidateSpec) -> None:
        raise KeyboardInterrupt

    state, measurer = made_up_state(tmp_path, model, [First()])
    measurer.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        run(state, Baselines(), Regions())


def test_an_interruption_later_keeps_what_is_measured(tmp_path: Path, model: Graph) -> None:
    def interrupt(spec: CandidateSpec) -> None:
        if spec.steps[0].implementation == SLUGGISH:
            raise KeyboardInterrupt

    state, measurer = made_up_state(tmp_path, model, [First(), Second(), Sluggish()])
    measurer.before = interrupt
    deadline = run(state, Baselines(every=True), Regions())
    assert deadline.interrupted and whole_times(state.original) == {"first f32": 5.0, "second f32": 5.0}
    assert not state.original.regions


def test_a_full_disk_is_no_missing_backend(tmp_path: Path, model: Graph) -> None:
    def full(_spec: CandidateSpec) -> None:
        raise NotWritable(path=tmp_path, reason=os.strerror(errno.ENOSPC))

    state, measurer = made_up_state(tmp_path, model, [First()])
    measurer.before = full
    with pytest.raises(NotWritable):
        run(state, Baselines())


# --- regions --------------------------------------------------------------------------------------------------------


def test_regions_are_measured_on_all_that_run_them(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Partial()])
    run(state, Baselines(), Regions())
    variant = state.original
    assert {one.implementation for one in variant.regions} == {FIRST, PARTIAL}
    product = variant.region_key(Region(model, 1 << next(o.number for o in model.operators if o.op_type == "MatMul")))
    assert FIRST in variant.regions.of(product) and PARTIAL not in variant.regions.of(product)
    regions = [spec for spec in measurer.asked if not spec.alone]
    assert len(regions) == len(set(regions)) == len(variant.regions)


def test_with_one_backend_no_region_is_promising(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First()])
    run(state, Baselines())
    assert RegionsItem().promise(state) is Placements().promise(state) is None


def test_a_graph_of_one_operator_is_not_divided(tmp_path: Path) -> None:
    state, measurer = made_up_state(tmp_path, graph("y=Tanh(x)"), [First(), Second()])
    assert not state.mixing
    run(state, Baselines(), Regions(), Placing())
    assert len(measurer.asked) == 2


def test_regions_that_were_measured_are_not_measured_again(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Second()])
    run(state, Baselines(), Regions())
    measurer.on_record = {spec: measurer.answers.cost(spec) for spec in measurer.asked}
    count = len(measurer.asked)
    run(state, Regions())
    assert len(measurer.asked) == count


# --- rewrites -------------------------------------------------------------------------------------------------------


def variant(name: str, body: str) -> GraphVariant:
    return GraphVariant(name, graph(body, "float[4,4] x", "float[4,4] y", w=W))


SHORTER = "a=Tanh(x) c=MatMul(a,w) d=Exp(c) y=Relu(d)"
"""No equal graph, but the made-up measurer does not look."""


def test_rewritten_variants_are_timed_where_the_original_did_well(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"second": 1.9, "third": 2.5})
    state, _ = made_up_state(
        tmp_path, model, [First(), Second(), Third()], answers, variants=[variant("rewritten", SHORTER)]
    )
    run(state, Baselines(), RewrittenVariants())
    assert whole_times(state.timed_variants["rewritten"]) == {"first f32": 4.0, "second f32": 7.6}
    assert [(c.name, c.variant) for c in state.challengers] == [("first f32 rewritten", "rewritten")]


def test_measured_operators_are_of_the_fastest_over_all_variants(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"second": 0.5, "partial": 0.25}, {"MatMul": 8.0, "Relu": 0.4})
    state, _ = made_up_state(
        tmp_path,
        model,
        [First(), Second(), Partial()],
        answers,
        options=FULL,
        variants=[variant("rewritten", "a=Abs(x) b=Relu(a) c=MatMul(b,w) y=Exp(c)")],
    )
    run(state, Baselines(), RewrittenVariants(), Regions())
    measured = measured_operators(state)
    assert {operator_key(o) for o in model.operators} <= measured.keys()
    by_type = {o.op_type: measured[operator_key(o)] for p in state.timed_variants.values() for o in p.graph.operators}
    assert by_type == {"Relu": 0.1, "Tanh": 0.25, "MatMul": 4.0, "Exp": 0.25, "Abs": 0.25}


def test_operators_that_no_backend_runs_alone_are_not_among_the_measured(tmp_path: Path, model: Graph) -> None:
    state, _ = made_up_state(tmp_path, model, [First(), Partial()])
    run(state, Baselines())
    assert measured_operators(state) == {}
    group = next(group for group in state.original.candidates.groups if group.regions[0].bit_count() > 1)
    state.original.regions.add([Measurement(group.key, FIRST, Cost("ok", latency(3.0), 0.0))])
    assert measured_operators(state) == {}, "regions of several operators say nothing of one"
    single = next(group for group in state.original.candidates.groups if group.regions[0].bit_count() == 1)
    state.original.regions.add([Measurement(single.key, FIRST, Cost("crashed"))])
    assert measured_operators(state) == {}


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Lets the search find the variants given; what it was asked."""

    def finds(*found: GraphVariant) -> dict[str, Any]:
        asked: dict[str, Any] = {}

        def searched(
            original: Graph, costs: CostModel, on: Setting, limits: Any, known: Any, *, generated: bool
        ) -> Any:
            asked.update(
                graph=original, costs=costs, on=on, limits=limits, known=[v.name for v in known], generated=generated
            )
            return tuple(one for one in found if one.name not in asked["known"])

        monkeypatch.setattr(graph_variants, "searched_variants", searched)
        return asked

    return finds


def test_the_search_minimises_measured_times_first(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    asked = search()
    answers = Answers({"second": 0.5}, {"Tanh": 0.2, "MatMul": 6.0})
    state, _ = made_up_state(tmp_path, model, [First(), Second()], answers, variants=[variant("rewritten", SHORTER)])
    run(state, Baselines(), RewrittenVariants(), Regions(), RewriteSearch())
    assert (
        asked["graph"] is model and asked["known"] == [ORIGINAL, "rewritten"] and asked["on"] == state.session.setting
    )
    calibrated = asked["costs"].models[-1]
    assert len(calibrated.samples) > 2 and state.calibration_error == calibrated.error

    def cost(operator: Operator) -> float:
        return price_operators(asked["costs"], asked["on"], [operator])

    own = {o.op_type: cost(o) for o in model.operators}
    assert own["MatMul"] / own["Tanh"] == pytest.approx(30.0), "the measured proportions"
    scale = calibrated.predict([operator_work(one).operators[0] for one in model.operators])
    assert sum(map(cost, model.operators)) == pytest.approx(scale), "the graph's scale"
    other = graph("y=Softmax(x)").operators[0]
    assert cost(other) == calibrated.predict(operator_work(other).operators), "the model, where nothing was measured"
    assert asked["limits"].seconds <= state.budget.part_s("rewrite_search")


def test_a_budget_that_ends_while_costs_are_learnt_ends_the_search(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    asked = search()
    state, _ = made_up_state(tmp_path, model, [First(), Second()])
    run(state, Baselines(), Regions())
    readings = iter([0.0, 0.5])
    RewriteSearch().run(state, Deadline(1.0, clock=lambda: next(readings, 2.0)))
    assert state.calibration_error is not None and not asked


def test_without_rewriting_or_mixing_nothing_is_searched(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    asked = search()
    alone, _ = made_up_state(tmp_path, model, [First()])
    kept, _ = made_up_state(tmp_path, model, [First(), Second()], options=Options(threads=1, rewrite=False))
    for state in (alone, kept):
        run(state, Baselines(), Regions(), RewriteSearch())
    assert not asked and alone.calibration_error is kept.calibration_error is None


def test_the_original_is_placed_too_where_a_backend_knows_only_its_patterns(tmp_path: Path) -> None:
    model = graph("a=MatMul(x,w) b=Add(a,w) y=Relu(b)", "float[4,4] x", "float[4,4] y", w=W)
    rewritten = variant("rewritten", "a=Gemm(x,w,w) y=Relu(a)")
    answers = Answers({"dense": 0.5}, {"MatMul": 1.0, "Add": 0.06, "Relu": 0.06, "Gemm": 1.02})
    for backends, expected in (([First(), Second()], ["rewritten"]), ([First(), Dense()], ["rewritten", ORIGINAL])):
        state, _ = made_up_state(tmp_path, model, backends, answers, variants=[rewritten])
        run(state, Baselines(), RewrittenVariants())
        assert [timed_variant.name for timed_variant in select_divided_variants(state)] == expected
    run(state, Regions(), Placing())
    assert list(state.searches) == ["rewritten", ORIGINAL]
    assert any(one.implementation.backend == "dense" for c in state.challengers for one in c.placement)
    slow = replace(answers, operators={**answers.operators, "Gemm": 0.5})
    state, _ = made_up_state(tmp_path, model, [First(), Dense()], slow, variants=[rewritten])
    run(state, Baselines(), RewrittenVariants())
    assert [timed_variant.name for timed_variant in select_divided_variants(state)] == ["rewritten"], (
        "what could not win is left out"
    )


def test_a_variant_found_by_search_reaches_placement(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    search(variant("searched-1", SHORTER))
    # Each is best at something, so that a mixture wins.
    answers = Answers({"first f32": 1.0, "second": 1.02, "partial": 0.5}, {"MatMul": 3.0})
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Partial()], answers)
    run(state, Baselines(), Regions(), RewriteSearch())
    assert list(state.timed_variants) == [ORIGINAL, "searched-1"] and [v.name for v in state.variants] == list(
        state.timed_variants
    )
    found = state.timed_variants["searched-1"]
    assert whole_times(found) == {"first f32": 6.0, "second f32": 6.12} and not found.regions
    assert [p.name for p in promising(state.timed_variants)] == ["searched-1"]
    assert [(c.name, c.variant) for c in state.challengers] == [("first f32 searched-1", "searched-1")]
    run(state, Regions(), Placing())
    assert {one.implementation for one in found.regions} == {FIRST, SECOND, PARTIAL}
    assert list(state.searches) == ["searched-1"]
    mixed = [c for c in state.challengers if c.variant == "searched-1" and len(c.placement) > 1]
    assert mixed and {a.implementation for a in mixed[0].placement} >= {PARTIAL}
    assert sum(assignment.region for assignment in mixed[0].placement) == found.graph.everything.bits
    assert state.searches["searched-1"].measured_ms and min(state.searches["searched-1"].measured_ms) < 6.0
    assert (tmp_path / state.session.store.graph(found.graph)).exists(), "a plan can name its file"


def test_at_full_effort_the_original_is_placed_too(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    search(variant("searched-1", SHORTER))
    answers = Answers({"partial": 0.3}, {"MatMul": 20.0})
    state, _ = made_up_state(tmp_path, model, [First(), Second(), Partial()], answers, options=FULL)
    run(state, Baselines(), Regions(), RewriteSearch(), Regions(), Placing())
    assert list(state.searches) == ["searched-1", ORIGINAL]
    assert {c.variant for c in state.challengers if len(c.placement) > 1} == {"searched-1", ORIGINAL}


def test_a_variant_that_is_slower_is_not_placed(
    tmp_path: Path, model: Graph, search: Callable[..., dict[str, Any]]
) -> None:
    search(variant("searched-1", "a=Abs(x) b=Abs(a) e=MatMul(b,w) f=MatMul(e,w) y=Relu(f)"))
    answers = Answers({"partial": 0.05}, {"MatMul": 10.0})
    state, _ = made_up_state(tmp_path, model, [First(), Partial()], answers, options=FULL)
    run(state, Baselines(), Regions(), RewriteSearch(), Regions(), Placing())
    assert list(state.searches) == [ORIGINAL] and not state.timed_variants["searched-1"].regions
    assert "searched-1" in {c.variant for c in state.challengers}, "but it races, since one measurement is coarse"


# --- kernels --------------------------------------------------------------------------------------------------------

TUNED, UNTUNED = whole("tuned"), whole("untuned")
BETTER = KernelConfig("f32", (("tile", 8),))
FASTER, SLOWER = Implementation("tuned", BETTER), Implementation("untuned", BETTER)


def test_baselines_near_the_best_are_tuned(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"first": 0.92, "tuned": 1.0, "untuned": 1.03, str(FASTER): 0.5})  # 1.09 and 1.12 of the best
    state, measurer = made_up_state(tmp_path, model, [First(), Tuned(), Untuned()], answers, options=FULL)
    measurer.pool.found = {"tuned": BETTER, "untuned": BETTER}
    run(state, Baselines(), KernelTuning())
    assert set(measurer.pool.tuned) == {TUNED}, "within 1.1 of the best, and of a backend that can"
    assert state.original.fastest == (FASTER, 2.5), "it is a baseline like the others"


def test_a_search_that_fails_leaves_the_baselines_as_they_are(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Tuned(), Untuned()], options=FULL)
    measurer.pool.found = {"tuned": None, "untuned": KernelConfig("f32")}
    run(state, Baselines(), KernelTuning())
    assert set(measurer.pool.tuned) == {TUNED, UNTUNED} and len(measurer.asked) == 3
    assert set(state.original.whole) == {FIRST, TUNED, UNTUNED}


def test_plans_that_will_race_are_tuned_and_kept_where_they_gain(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"tuned": 2.0, "untuned": 2.0, str(FASTER): 1.5, str(SLOWER): 3.0})
    state, measurer = made_up_state(tmp_path, model, [First(), Tuned(), Untuned()], answers, options=FULL)
    measurer.pool.found = {"tuned": BETTER, "untuned": BETTER}
    run(state, Baselines())
    gains = (Assignment(0b00011, FIRST), Assignment(0b11100, TUNED))
    loses = (Assignment(0b00011, FIRST), Assignment(0b11100, UNTUNED))
    state.challenge(Challenger("gains", gains, 9.0), Challenger("loses", loses, 9.0))
    run(state, KernelTuning())
    assert [c.name for c in state.challengers[:2]] == ["gains", "loses"], "those that were entered race in any case"
    (better,) = state.challengers[2:]
    assert better.placement == (gains[0], Assignment(0b11100, FASTER))
    assert measurer.pool.tuned == [TUNED, UNTUNED]


def test_what_was_tuned_before_takes_part_at_any_effort(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"tuned": 1.0, str(FASTER): 0.5})
    full, measurer = made_up_state(tmp_path, model, [First(), Tuned()], answers, options=FULL)
    measurer.pool.found = {"tuned": BETTER}
    run(full, Baselines(), KernelTuning())
    quick, later = made_up_state(tmp_path, model, [First(), Tuned()], answers)
    later.database.configs.update(measurer.database.configs)
    run(quick, Baselines(), KernelTuning(searching=False))
    assert quick.original.fastest == full.original.fastest == (FASTER, 2.5) and not later.pool.tuned


def test_nothing_is_tuned_without_time(tmp_path: Path, model: Graph) -> None:
    late, measurer = made_up_state(tmp_path, model, [First(), Tuned()], options=FULL)
    measurer.pool.found = {"tuned": BETTER}
    run(late, Baselines(), KernelTuning(), seconds=0.0)
    assert not measurer.pool.tuned
