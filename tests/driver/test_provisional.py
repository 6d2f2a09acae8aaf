"""Which decisions are provisional, for how long, and what the next one takes over: a made-up measurer, and real stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.models.track_record import Compiling, TrackRecord
from bricolage.driver import final_race
from bricolage.driver.agenda import Item
from bricolage.driver.decide import decide
from bricolage.driver.items import KernelsItem, RewrittenGraph, SearchedRewrites, TailoredRewrites
from bricolage.driver.provisional import Continuation, is_continued, open_items, provisional_reasons
from bricolage.driver.stages.continuing import EarlierDecision
from bricolage.driver.stages.profiling import Baselines
from bricolage.driver.state import DecisionState
from bricolage.graph.graph import Graph
from bricolage.measure.race import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.agenda_record import AgendaItem, ItemOutcome
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from tests.driver.made_up import Answers, First, MadeUpMeasurer, Partial, Second, Sluggish, made_up_state, whole
from tests.driver.test_reads_and_adds import Watched, touched
from tests.graph.models import graph
from tests.plan.bucket_facts import alter_bucket

pytestmark = pytest.mark.usefixtures("registered")

OPTIONS = Options(threads=1, budget_s=60.0, rewrite=False)
BUSY = Disturbance(others=0.5, samples=10, disturbed=4)
SLUGGISH = "whole model on sluggish f32"
W = np.ones((4, 4), np.float32)


@pytest.fixture
def model() -> Graph:
    return graph("a=Relu(x) b=MatMul(a,w) y=Exp(b)", "float[4,4] x", "float[4,4] y", w=W)


@pytest.fixture(autouse=True)
def raced(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the race each takes as long as it was made up."""

    def race(measurer: MadeUpMeasurer, specs: Mapping[str, CandidateSpec], *_: object, **__: object) -> Race:
        return Race((), {name: measurer.answers.cost(spec) for name, spec in specs.items()}, {})

    monkeypatch.setattr(final_race, "race", race)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    """A decision in quiet, for which there was time for everything."""
    folder = tmp_path_factory.mktemp("decided")
    small = graph("y=Exp(x)", "float[4,4] x", "float[4,4] y")
    state, _ = made_up_state(folder, small, [First()], options=OPTIONS)
    return alter_bucket(decide(state.session, state.variants, {"x": W}, "model"), agenda=(), disturbance=Disturbance())


def entry(name: str, outcome: ItemOutcome, gained: float = 0.0) -> AgendaItem:
    return AgendaItem(name, outcome, 0.3, "the test says so", 5.0, gained=gained)


def late(bucket: Bucket, *names: str, load: bool = False, continued: int = 0) -> Bucket:
    """A decision that had no time for these."""
    found = alter_bucket(bucket, agenda=tuple(entry(name, "no time") for name in names), continued=continued)
    return alter_bucket(found, disturbance=BUSY if load else Disturbance())


def test_what_had_time_for_everything_in_quiet_is_final(bucket: Bucket) -> None:
    settled = alter_bucket(bucket, agenda=(entry("slow", "measured"), entry("hopeless", "left out")))
    assert provisional_reasons(settled, None, 4) == () == provisional_reasons(bucket, None, 4)
    assert not open_items(settled)


def test_what_had_no_time_or_was_disturbed_is_provisional_and_says_why(bucket: Bucket) -> None:
    assert provisional_reasons(late(bucket, "slow"), None, 4) == ("no time",)
    assert provisional_reasons(alter_bucket(bucket, disturbance=BUSY), None, 4) == ("load",)
    assert provisional_reasons(alter_bucket(bucket, decided_by="race and prior evidence"), None, 4) == ("load",)
    assert provisional_reasons(late(bucket, "slow", load=True), None, 4) == ("no time", "load")


def test_where_decisions_are_limited_by_counts_all_are_final(bucket: Bucket) -> None:
    worst = late(bucket, "slow", load=True)
    assert provisional_reasons(worst, None, 0) == ()
    assert not is_continued(alter_bucket(worst, provisional=("no time", "load")), 0, lambda: 0.0)


@pytest.mark.parametrize(
    ("before", "after", "reasons"),
    [
        (("slow",), ("slow",), ()),  # the same budget in quiet, and nothing new
        (("slow", "slower"), ("slower",), ("no time",)),
        (("slow",), (), ()),
        (("slow",), ("later",), ("no time",)),  # what waited for the first
    ],
)
def test_a_continuation_is_final_once_it_brings_nothing_new(
    bucket: Bucket, before: Sequence[str], after: Sequence[str], reasons: Sequence[str]
) -> None:
    assert provisional_reasons(late(bucket, *after), late(bucket, *before), 4) == tuple(reasons)


def test_what_gains_by_going_on_may_go_on(bucket: Bucket) -> None:
    again = alter_bucket(late(bucket, "tuning"), agenda=(entry("tuning", "measured", 0.05), entry("tuning", "no time")))
    assert provisional_reasons(again, late(bucket, "tuning"), 4) == ("no time",)
    idle = alter_bucket(again, agenda=(entry("tuning", "measured"), entry("tuning", "no time")))
    assert provisional_reasons(idle, late(bucket, "tuning"), 4) == ()


def test_under_load_nothing_becomes_final_by_bringing_nothing_new(bucket: Bucket) -> None:
    assert provisional_reasons(late(bucket, "slow", load=True), late(bucket, "slow"), 4) == ("no time", "load")
    assert provisional_reasons(late(bucket, "slow"), late(bucket, "slow", load=True), 4) == ("no time",), (
        "this one had to measure again what load disturbed"
    )


def test_a_decision_is_gone_on_with_so_often_and_after_load_once_it_is_quiet(bucket: Bucket) -> None:
    late_one, loaded = alter_bucket(bucket, provisional=("no time",)), alter_bucket(bucket, provisional=("load",))
    busy, quiet = (lambda: 0.5), (lambda: 0.01)
    assert not is_continued(bucket, 4, quiet)
    for one in (late_one, loaded):
        assert is_continued(alter_bucket(one, continued=3), 4, busy)
    assert not is_continued(alter_bucket(late_one, continued=4), 4, quiet)
    assert is_continued(alter_bucket(loaded, continued=4), 4, quiet)
    assert not is_continued(alter_bucket(loaded, continued=4), 4, busy)


@given(st.data())
def test_decisions_in_quiet_end_whatever_has_no_time(bucket: Bucket, data: st.DataObject) -> None:
    names = st.frozensets(st.sampled_from("abc"), max_size=3)
    decision, most = late(bucket, *data.draw(names), load=data.draw(st.booleans())), data.draw(st.integers(0, 5))
    decision = alter_bucket(decision, provisional=provisional_reasons(decision, None, most))
    for _ in range(most + 2):
        if not is_continued(decision, most, lambda: 0.0):
            break
        after = late(bucket, *data.draw(names), continued=decision.record.continued + 1)
        decision = alter_bucket(after, provisional=provisional_reasons(after, decision, most))
    assert not is_continued(decision, most, lambda: 0.0) and decision.record.provisional == ()


# --- what is taken over ---------------------------------------------------------------------------------------------


def test_searches_that_came_to_an_end_in_quiet_are_settled(bucket: Bucket, model: Graph) -> None:
    ran: tuple[Item, ...] = (KernelsItem(), TailoredRewrites(), SearchedRewrites(), RewrittenGraph())
    names = [item.name for item in ran]
    before = alter_bucket(bucket, agenda=tuple(entry(name, "measured", 0.1) for name in names))
    earlier = Continuation(before, GraphVariant(ORIGINAL, model))
    assert [earlier.settles(item) for item in ran] == [True, True, True, False], "the last only measures what is known"
    assert [one.name for one in earlier.settled(names[:2])] == names[:2]
    tuning = alter_bucket(before, agenda=(*before.record.agenda, entry(names[0], "no time")))
    assert not Continuation(tuning, earlier.variant).settles(ran[0]), "it would have gone on"
    assert not Continuation(late(bucket, *names), earlier.variant).settles(ran[1])


def test_after_load_only_the_search_is_settled_whose_graph_ships(bucket: Bucket, model: Graph) -> None:
    ran: tuple[Item, ...] = (KernelsItem(), TailoredRewrites(), SearchedRewrites())
    before = alter_bucket(bucket, agenda=tuple(entry(item.name, "measured", 0.1) for item in ran), disturbance=BUSY)
    for name, settled in ((ORIGINAL, []), ("tailored", [1]), ("searched-2", [2])):
        earlier = Continuation(before, GraphVariant(name, model))
        assert [n for n, item in enumerate(ran) if earlier.settles(item)] == settled


def made(folder: Path, model: Graph, compile_s: float, answers: Answers) -> tuple[DecisionState, MadeUpMeasurer]:
    """A state in which one backend compiles so long."""
    backends = [First(), Second(), Partial(), Sluggish()]
    state, measurer = made_up_state(folder, model, backends, answers, options=OPTIONS)
    known = TrackRecord(compiling={"sluggish": Compiling(compile_s, 0.0)})
    state.session = replace(state.session, record=known)
    return state, measurer


def test_a_decision_goes_on_with_what_had_no_time_and_measures_nothing_twice(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"sluggish": 0.1, "second": 3.0})
    state, before = made(tmp_path, model, 1000.0, answers)
    first = decide(state.session, state.variants, {"x": W}, "model")
    assert SLUGGISH in open_items(first) and first.race.chosen == "first f32"
    assert all(spec.steps[0].implementation.backend != "sluggish" for spec in before.asked if spec.alone)

    state, after = made(tmp_path, model, 1.0, answers)
    after.on_record = {spec: answers.cost(spec) for spec in before.asked}
    earlier = Continuation(first, GraphVariant(ORIGINAL, model))
    second = decide(state.session, state.variants, {"x": W}, "model", earlier=earlier)
    assert second.race.chosen == "sluggish f32" and SLUGGISH not in open_items(second)
    assert list(second.record.seconds) == ["reference", "baselines", "earlier decision", "agenda", "race"]
    assert provisional_reasons(alter_bucket(second, disturbance=Disturbance()), first, 4) == ()


def test_implementations_that_were_measured_late_keep_their_rows(tmp_path: Path, model: Graph) -> None:
    """Also where nothing is expected of them any more."""
    answers = Answers({"sluggish": 2.0})
    state, before = made(tmp_path, model, 1.0, answers)
    first = decide(state.session, state.variants, {"x": W}, "model")
    state, after = made(tmp_path, model, 1000.0, answers)
    after.on_record = {spec: answers.cost(spec) for spec in before.asked}
    earlier = Continuation(first, GraphVariant(ORIGINAL, model))
    second = decide(state.session, state.variants, {"x": W}, "model", earlier=earlier)
    times = [{c.name: c.median_ms for c in one.race.contestants if c.kind == "baseline"} for one in (first, second)]
    assert times[0] == times[1] and times[0]["sluggish f32"] == 6.0


def shipping(decision: Bucket, name: str) -> Bucket:
    """A decision that ships a mixture of two regions: the first operator, and all others."""
    regions = tuple(
        replace(decision.program.regions[0], implementation=whole(backend), operators=operators, count=count)
        for backend, operators, count in (("partial", "0", 1), ("first", "1-2", 2))
    )
    shipped = replace(decision.race.contestants[0], name=name, kind="plan", implementation=None)
    return alter_bucket(decision, contestants=(*decision.race.contestants, shipped), chosen=name, regions=regions)


@pytest.mark.parametrize("variant", [ORIGINAL, "tailored"])
def test_the_plan_that_shipped_races_again(tmp_path: Path, model: Graph, variant: str) -> None:
    state, _ = made(tmp_path, model, 1000.0, Answers({"partial": 0.1}))
    before = shipping(decide(state.session, state.variants, {"x": W}, "model"), "the plan")
    state, measurer = made(tmp_path, model, 1000.0, Answers({"partial": 0.1}))
    Baselines().run(state, Deadline(60.0))
    asked = len(measurer.asked)
    state.__class__ = Watched
    stage = EarlierDecision(Continuation(before, GraphVariant(variant, model)))
    touching, changed = touched(stage, state)
    assert stage.reads <= touching <= stage.reads | stage.adds and changed <= stage.adds
    (challenger,) = state.challengers
    assert (challenger.name, challenger.variant) == ("the plan", variant)
    assert [one.implementation for one in challenger.placement] == [whole("partial"), whole("first")]
    assert variant in state.timed_variants and state.incumbent_ms == 2.1 == measurer.answers.cost(measurer.asked[-1]).ms
    assert len(measurer.asked) > asked


def test_an_implementation_of_the_original_that_shipped_is_no_plan(tmp_path: Path, model: Graph) -> None:
    state, _ = made(tmp_path, model, 1000.0, Answers())
    before = decide(state.session, state.variants, {"x": W}, "model")
    state, _ = made(tmp_path, model, 1000.0, Answers())
    Baselines().run(state, Deadline(60.0))
    EarlierDecision(Continuation(before, GraphVariant(ORIGINAL, model))).run(state, Deadline(60.0))
    assert not state.challengers
