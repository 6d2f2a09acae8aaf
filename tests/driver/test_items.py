"""What a decision could measure beside its baselines, and on which grounds it does not: real stages, a made-up measurer."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bricolage.backends.openvino import OpenVino
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.decision_log import Attempt, Compiling, NetworkTimes
from bricolage.costs.entries import Cost
from bricolage.costs.models.track_record import DecisionSubject, TrackRecord
from bricolage.device.caches import Caches
from bricolage.device.device import Peaks
from bricolage.device.host import host
from bricolage.driver.agenda import Agenda
from bricolage.driver.decide import decide
from bricolage.driver.items import KernelsItem, WholeModelItem, items
from bricolage.driver.mixture_items import Placements, PrecisionsItem, RegionsItem
from bricolage.driver.pricing import work_shares
from bricolage.driver.stages.graph_variants import compute_changed_share
from bricolage.driver.stages.profiling import Baselines
from bricolage.driver.state import DecisionState
from bricolage.driver.whole_models import looser_precisions
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.region_model import Resources
from bricolage.measure.specs import CandidateSpec
from bricolage.rewrite.variants import GraphVariant
from bricolage.work.implementation import Implementation, KernelConfig
from tests.driver.made_up import Answers, First, Narrow, Partial, Second, Sluggish, Tuned, made_up_state, whole
from tests.graph.models import graph

pytestmark = pytest.mark.usefixtures("registered")

W = np.ones((64, 64), np.float32)
SLUGGISH = whole("sluggish")
WAYS = ("mixtures", "rewritten graphs", "tailored graphs", "searched graphs", "tuned kernels")


@pytest.fixture
def model() -> Graph:
    return graph("a=Relu(x) b=Tanh(a) c=MatMul(b,w) d=Exp(c) y=Relu(d)", "float[64,64] x", "float[64,64] y", w=W)


def record(*ratios: float, ways: float = 0.0) -> TrackRecord:
    """Of networks on which the sluggish backend took so many times what the first did; each way gained so much on 50 networks."""
    networks = [
        NetworkTimes(str(n), "matrix", "here", {"first f32": 1.0, "sluggish f32": r}) for n, r in enumerate(ratios)
    ]
    attempts = [Attempt(way, str(n), "matrix", "first", ways) for way in WAYS for n in range(50)]
    return TrackRecord(tuple(networks), {"sluggish": Compiling(3.0, 0.1)}, tuple(attempts))


def decided(
    folder: Path, model: Graph, backends: list[Any], known: TrackRecord, answers: Answers | None = None, **more: Any
) -> DecisionState:
    """A decision's state after its baselines and its agenda."""
    options = more.pop("options", Options(threads=1))
    options = replace(options, rewrite=False)  # a tuner of rewrites wants a real measurer
    state, _ = made_up_state(folder, model, backends, answers, options=options, **more)
    state.session = replace(state.session, record=known)
    for variant in state.timed_variants.values():
        variant.session = replace(variant.session, record=known)
    deadline = Deadline(100.0)
    Baselines().run(state, deadline)
    state.whole_s = 3.0  # the made-up measurer takes none
    Agenda(items).run(state, deadline)
    return state


def outcomes(state: DecisionState) -> dict[str, str]:
    return {one.name: one.outcome for one in state.agenda}


NAME = "whole model on sluggish f32"


def test_a_slow_compiler_has_its_turn_where_it_may_win(tmp_path: Path, model: Graph) -> None:
    may = decided(tmp_path, model, [First(), Sluggish()], record(1.1, 0.9, 1.0, 1.2), Answers({"sluggish": 0.5}))
    assert outcomes(may)[NAME] == "measured" and may.original.times[SLUGGISH] == 2.5 == may.incumbent_ms
    entry = next(one for one in may.agenda if one.name == NAME)
    assert entry.gained == 0.5 and entry.expected_s == 3.5 and entry.chance is not None and 0.1 < entry.chance < 0.9
    assert 0.02 < entry.gain < 0.5 and (entry.incumbent, entry.candidate) == ("first f32", "sluggish f32")


def test_it_is_left_out_with_its_chance_where_it_seldom_wins(tmp_path: Path, model: Graph) -> None:
    cannot = decided(
        tmp_path, model, [First(), Sluggish()], record(1.9, 2.0, 2.1, 2.0, 1.95), Answers({"sluggish": 0.5})
    )
    assert outcomes(cannot)[NAME] == "unlikely" and SLUGGISH not in cannot.original.whole
    entry = next(one for one in cannot.agenda if one.name == NAME)
    assert entry.chance is not None and entry.chance <= 0.1
    assert entry.bound is not None and entry.bound > entry.gain, "by the roofline it could be faster"


def test_slow_compilers_are_expected_to_be_slow_where_quick_ones_were(tmp_path: Path, model: Graph) -> None:
    """By the record, times what the baselines took over theirs; once one was compiled, as long as that took."""
    state, _ = made_up_state(tmp_path, model, [First(), Sluggish()])
    known = TrackRecord(compiling={"first": Compiling(1.0, 0.0), "sluggish": Compiling(3.0, 0.0)})
    state.session = replace(state.session, record=known)
    Baselines().run(state, Deadline(100.0))
    (first,) = state.original.whole
    for taken, expected in ((0.5, 3.0), (4.0, 12.0)):
        state.original.whole[first] = replace(state.original.whole[first], compile_s=taken)
        promise = WholeModelItem(SLUGGISH).promise(state)
        assert promise is not None and promise.seconds == expected
    state.original.whole[replace(SLUGGISH, config=KernelConfig("other"))] = Cost("failed", compile_s=20.0)
    promise = WholeModelItem(SLUGGISH).promise(state)
    assert promise is not None and promise.seconds == 20.0


def test_more_effort_takes_less_risk(tmp_path: Path, model: Graph) -> None:
    known = record(1.2, 1.1, 1.3, 1.15, 1.25)
    quick = decided(tmp_path, model, [First(), Sluggish()], known, budget_s=20.0)
    full = decided(tmp_path, model, [First(), Sluggish()], known, options=Options(threads=1, effort="full"))
    assert outcomes(quick)[NAME] == "unlikely" and outcomes(full)[NAME] == "measured"


def test_without_a_record_the_roofline_decides(tmp_path: Path, model: Graph) -> None:
    state = decided(tmp_path, model, [First(), Sluggish()], record())
    assert outcomes(state)[NAME] == "measured"
    assert "no record" in next(one for one in state.agenda if one.name == NAME).because


def test_no_bound_rests_on_the_clock_of_an_idle_processor(tmp_path: Path, model: Graph) -> None:
    """The system names the clock of now; a backend says what products reach, here a million times as many."""

    class Boosting(First):
        def measure_peaks(self, resources: Resources) -> Peaks:
            return Peaks(1e6 * resources.device.peaks.gflops, 1e6 * resources.device.peaks.gbytes)

    bounds = []
    for first in (First(), Boosting()):
        state, _ = made_up_state(tmp_path, model, [first, Sluggish()])
        asleep = replace(state.session.device, peaks=Peaks(1e-6, 1e-6), caches=Caches())
        state.session = replace(state.session, record=record(), device=asleep)
        Baselines().run(state, Deadline(100.0))
        promise = WholeModelItem(SLUGGISH).promise(state)
        assert promise is not None and promise.bound is not None
        bounds.append(promise.bound)
    idle, boosting = bounds
    assert idle < 0.0 < boosting


def test_what_is_known_is_taken_over_at_once(tmp_path: Path, model: Graph) -> None:
    state, measurer = made_up_state(tmp_path, model, [First(), Sluggish()])
    Baselines().run(state, Deadline(100.0))
    item = WholeModelItem(SLUGGISH)
    measurer.on_record = {
        state.original.whole_spec(SLUGGISH): measurer.answers.cost(state.original.whole_spec(SLUGGISH))
    }
    promise = item.promise(state)
    assert (
        promise is not None and promise.seconds < 1.0 and promise.gain == pytest.approx(1 - 5.0 / 5.0) == promise.bound
    )


def test_ways_that_never_gained_are_left_out_and_others_taken(tmp_path: Path, model: Graph) -> None:
    other = GraphVariant(
        "rewritten", graph("a=Tanh(x) c=MatMul(a,w) d=Exp(c) y=Relu(d)", "float[64,64] x", "float[64,64] y", w=W)
    )
    never = decided(tmp_path, model, [First()], record(), variants=[other])
    assert outcomes(never)["rewritten graph"] == "unlikely" and not never.timed_variants["rewritten"].whole
    taken = decided(tmp_path, model, [First()], record(ways=0.2), variants=[other])
    assert outcomes(taken)["rewritten graph"] == "measured"
    assert [c.variant for c in taken.challengers] == ["rewritten"] and taken.incumbent_ms == 4.0
    assert next(one for one in taken.agenda if one.name == "rewritten graph").gained == pytest.approx(0.2)


def test_rules_that_change_little_are_bounded_by_what_they_change(tmp_path: Path) -> None:
    """However often rewriting gained elsewhere; and an attempt that was bounded so says nothing of others."""
    w = np.ones((1024, 1024), np.float32)
    ends = "float[1,1024] x", "float[1,1024] y"
    small = graph("a=Tanh(x) b=Relu(a) c=MatMul(b,w) y=Exp(c)", *ends, w=w)
    other = GraphVariant("rewritten", graph("a=Tanh(x) c=MatMul(a,w) y=Exp(c)", *ends, w=w))
    state = decided(tmp_path, small, [First()], record(ways=0.2), variants=[other])
    (relu,) = (
        share for share, one in zip(work_shares(state.original), small.operators, strict=True) if one.op_type == "Relu"
    )
    entry = next(one for one in state.agenda if one.name == "rewritten graph")
    assert entry.outcome == "bounded" and entry.bound == pytest.approx(relu) == pytest.approx(
        compute_changed_share(state)
    )
    assert "rules change operators with" in entry.because and not state.timed_variants["rewritten"].whole
    attempt = Attempt("rewritten graphs", "n", "matrix", "first", 0.0, bound=entry.bound)
    assert (
        attempt.says_nothing
        and not TrackRecord(attempts=(attempt,)).tries("rewritten graphs", DecisionSubject("matrix"), "first").networks
    )


def test_mixtures_are_searched_where_regions_allow_one(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"partial": 0.1})
    state = decided(tmp_path, model, [First(), Partial()], record(ways=0.2), answers)
    assert outcomes(state)["regions"] == outcomes(state)["placements"] == "measured"
    assert state.searches and state.incumbent_ms is not None and state.incumbent_ms < 5.0


def test_they_are_left_out_where_no_region_is_faster_elsewhere(tmp_path: Path, model: Graph) -> None:
    state = decided(tmp_path, model, [First(), Second()], record(ways=0.2), Answers({"second": 3.0}))
    assert outcomes(state)["regions"] == "measured" and outcomes(state)["placements"] == "bounded"
    assert state.original.regions and not state.searches
    bound = next(one for one in state.agenda if one.name == "placements")
    assert bound.bound is not None and bound.bound <= 0.02, "each region where it is fastest is what the whole takes"


def test_a_lower_precision_that_is_too_wrong_as_a_whole_makes_mixtures_promising(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"second": 0.4}, errors={"second": 1e-4})
    state, _ = made_up_state(tmp_path, model, [First(), Second()], answers)
    state.session = replace(state.session, record=record())
    Baselines().run(state, Deadline(100.0))
    promise = RegionsItem().promise(state)
    assert promise is not None and promise.gain == pytest.approx(0.6) and "precision" in promise.because
    assert Placements().promise(state) is None, "regions come first"
    state.original.dropped.clear()
    (second,) = [one for one in state.original.whole if one.backend == "second"]
    del state.original.whole[second]
    WholeModelItem(second).run(state, Deadline(100.0))
    assert RegionsItem().promise(state) == promise, (
        "one that the agenda measures, and finds too wrong, is timed as well"
    )


def long_chain() -> Graph:
    """Of 72 operators, in three segments."""
    names = ["x", *(f"v{number}" for number in range(71)), "y"]
    body = " ".join(f"{after}=Tanh({before})" for before, after in pairwise(names))
    return graph(body, "float[64,64] x", "float[64,64] y")


@pytest.mark.parametrize("effort", ["quick", "full"])
def test_parts_that_bear_a_low_precision_are_found_at_every_effort(tmp_path: Path, effort: Any) -> None:
    """The whole in bfloat16 is a fifth too inaccurate; its segments are not. Nothing else is measured."""
    answers = Answers({"narrow bf16": 0.5, "first": 1.2}, errors={"narrow bf16": 1.2e-6})
    options = Options(threads=1, tolerance=1e-6, effort=effort)
    state, measurer = made_up_state(tmp_path, long_chain(), [First(), Narrow()], answers, options=options)
    Baselines().run(state, Deadline(100.0))
    item, low, full = PrecisionsItem(), Implementation("narrow", KernelConfig("bf16")), whole("narrow")
    if low not in state.original.whole:
        assert item.promise(state) is None, "bfloat16 has not been tried"
        WholeModelItem(low).run(state, Deadline(100.0))
    promise = item.promise(state)
    assert promise is not None and promise.gain == pytest.approx(0.5) and "too inaccurate" in promise.because
    measurer.asked.clear()
    answers.errors, state.whole_s = {"narrow bf16": 8e-7}, 3.0
    item.run(state, Deadline(100.0))
    regions = [spec for spec in measurer.asked if spec.is_region]
    assert {(step.implementation.backend, step.implementation.config) for spec in regions for step in spec.steps} == {
        (one.backend, one.config) for one in (low, full)
    }
    assert 0 < len({spec.region_key for spec in regions}) <= len(state.original.candidates.segments)
    assert state.original.regions and Placements().promise(state) is None, "which take longer, wait for all regions"
    mixed = [one for one in state.challengers if len(one.placement) > 1]
    assert mixed and {a.implementation.config.name for a in mixed[0].placement} == {"f32", "bf16"}
    assert state.incumbent_ms is not None and state.incumbent_ms <= 40.0 < min(state.original.times.values()) == 72.0
    assert item.promise(state) is None and item.again


def test_what_is_known_to_be_too_inaccurate_is_taken_up_again_for_parts(tmp_path: Path) -> None:
    """A second decision knows the verdict, and would lose the mixtures of the first one otherwise."""
    answers = Answers({"narrow bf16": 0.5, "first": 1.2}, errors={"narrow bf16": 1.2e-6})
    options = Options(threads=1, tolerance=1e-6)
    state, measurer = made_up_state(tmp_path, long_chain(), [First(), Narrow()], answers, options=options)
    Baselines().run(state, Deadline(100.0))
    low = Implementation("narrow", KernelConfig("bf16"))
    measurer.on_record[state.original.whole_spec(low)] = Cost("wrong", error=1.2e-6)
    promise = WholeModelItem(low).promise(state)
    assert promise is not None and promise.gain > 0.5 and "too inaccurate for the whole" in promise.because


def test_who_saturates_in_single_products_is_refused(tmp_path: Path) -> None:
    """The whole is within what ties explain; a product alone is not."""

    class Saturating(Answers):
        def cost(self, spec: CandidateSpec) -> Cost:
            found = super().cost(spec)
            return (
                replace(found, error=1e-2)
                if spec.is_region and spec.steps[0].implementation.backend == "first"
                else found
            )

    constants = {"s": np.float32(0.1), "z": np.uint8(0), "w": np.ones((64, 64), np.int8), "t": np.float32(0.1)}
    text = "q=QuantizeLinear(x,s,z) d=DequantizeLinear(q,s,z) v=DequantizeLinear(w,t) m=MatMul(d,v) y=Relu(m)"
    bytes_ = graph(text, "float[64,64] x", "float[64,64] y", **constants)
    state, measurer = made_up_state(
        tmp_path, bytes_, [First(), Second()], Saturating(), options=Options(precision="low")
    )
    Baselines().run(state, Deadline(100.0))
    refused = state.original.whole[whole("first")]
    assert refused.outcome == "wrong" and "does not multiply bytes exactly: MatMul" in refused.reason
    assert set(state.original.times) == {whole("second")}
    asked = [spec for spec in measurer.asked if spec.is_region]
    assert len({spec.region_key for spec in asked}) == 1


def test_weights_in_blocks_that_no_backend_takes_are_told(tmp_path: Path, model: Graph) -> None:
    class Standard(First):
        def declines(self, operator: Operator) -> str | None:
            return operator.op_type if operator.domain else None

    options = Options(threads=1, weights="int4", tolerance=0.5)
    state, measurer = made_up_state(tmp_path, model, [Standard()], options=options)
    Baselines().run(state, Deadline(100.0))
    measurer.asked.clear()
    (item,) = (one for one in items(state) if one.name == "weights in int4")
    item.run(state, Deadline(100.0))
    (found,) = state.quantised
    assert (found.outcome, found.verdict) == ("not run by any", "no backend takes it")
    assert found.products == 1 and not measurer.asked and not state.challengers


def test_a_short_search_for_kernels_is_judged_by_short_ones(tmp_path: Path, model: Graph) -> None:
    """Slices follow each other as long as they gain."""
    better = KernelConfig("f32", (("tile", 8),))
    answers = Answers({str(Implementation("tuned", better)): 0.5})
    state, measurer = made_up_state(tmp_path, model, [Tuned()], answers)
    measurer.pool.found = {"tuned": better}
    Baselines().run(state, Deadline(100.0))
    item, session = KernelsItem(), state.session

    def known(gain: float, seconds: float) -> TrackRecord:
        made = (Attempt("tuned kernels", str(n), "matrix", "tuned", gain, seconds) for n in range(9))
        return TrackRecord(attempts=tuple(made))

    never, later, soon = known(0.0, 150.0), known(0.3, 150.0), known(0.3, 30.0)
    for log, chance, gain in ((never, 0.05, 0.1), (later, None, 0.1), (soon, 0.95, 0.3)):
        state.session = replace(session, record=log)
        promise = item.promise(state)
        assert promise is not None and promise.chance == chance and promise.gain == pytest.approx(gain)
        assert 12.0 < promise.seconds < 30.0
    item.run(state, Deadline(100.0))
    promise = item.promise(state)
    assert state.incumbent_ms == 2.5 and promise is not None and promise.gain == 0.5 and item.again
    item.run(state, Deadline(100.0))
    assert not item.again, "the second slice found nothing more"


# --- what goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", range(3, 12))
def test_ctrl_c_at_every_item_ships_what_is_known(tmp_path: Path, model: Graph, asked: int) -> None:
    backends = [First(), Second(), Partial(), Sluggish()]
    answers = Answers({"second": 1.5, "partial": 0.1, "sluggish": 0.5})
    state, measurer = made_up_state(tmp_path, model, backends, answers, options=Options(threads=1, rewrite=False))

    def interrupt(_: CandidateSpec) -> None:
        if len(measurer.asked) == asked:
            signal.raise_signal(signal.SIGINT)

    measurer.before = interrupt
    session = replace(state.session, record=record(1.0, 0.8, 1.2, 1.1, ways=0.2))
    bucket = decide(session, state.variants, {"x": np.ones((64, 64), np.float32)}, "model")
    assert bucket.record.interrupted and bucket.race.chosen in ("first f32", "sluggish f32")
    cut = [one for one in bucket.record.agenda if one.outcome == "interrupted"]
    assert cut and all(one.gain >= 0.02 and one.bound != 0.0 for one in cut)


@pytest.mark.parametrize("asked", [5, *(pytest.param(asked, marks=pytest.mark.slow) for asked in (3, 7))])
def test_ctrl_c_within_low_precisions_ships_what_is_known(tmp_path: Path, asked: int) -> None:
    answers = Answers({"narrow bf16": 0.5, "first": 1.2}, errors={"narrow bf16": 1.2e-6})
    options = Options(threads=1, tolerance=1e-6, rewrite=False)
    state, measurer = made_up_state(tmp_path, long_chain(), [First(), Narrow()], answers, options=options)

    def interrupt(spec: CandidateSpec) -> None:
        answers.errors = {"narrow bf16": 8e-7 if spec.is_region else 1.2e-6}
        if len(measurer.asked) == asked:
            signal.raise_signal(signal.SIGINT)

    measurer.before = interrupt
    session = replace(state.session, record=record(ways=0.2))
    bucket = decide(session, state.variants, {"x": np.ones((64, 64), np.float32)}, "model")
    assert bucket.record.interrupted and bucket.race.chosen == "narrow f32"
    assert "interrupted" in [one.outcome for one in bucket.record.agenda]


def test_a_budget_too_short_for_anything_ships_a_baseline(tmp_path: Path, model: Graph) -> None:
    options = Options(threads=1, rewrite=False, budget_s=0.001)
    state, _ = made_up_state(tmp_path, model, [First(), Sluggish()], Answers({"sluggish": 0.5}), options=options)
    session = replace(state.session, record=record(1.0, 0.8, 1.2, 1.1))
    bucket = decide(session, state.variants, {"x": np.ones((64, 64), np.float32)}, "model")
    assert bucket.race.chosen == "first f32" and not bucket.record.interrupted
    assert {one.name: one.outcome for one in bucket.record.agenda}[NAME] == "no time"
    contestant = next(one for one in bucket.race.contestants if one.name == "sluggish f32")
    assert "expected to take" in contestant.reason and contestant.median_ms is None


def test_an_item_that_hangs_costs_itself_alone(tmp_path: Path, model: Graph) -> None:
    answers = Answers({"partial": 0.1}, failures={"sluggish": ("timed-out", "no answer after 60 s")})
    state = decided(tmp_path, model, [First(), Partial(), Sluggish()], record(1.0, 0.8, 1.2, 1.1, ways=0.2), answers)
    assert outcomes(state)[NAME] == outcomes(state)["regions"] == "measured"
    assert state.original.whole[SLUGGISH].outcome == "timed-out"


def test_the_same_database_gives_the_same_agenda(tmp_path: Path, model: Graph) -> None:
    told = []
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        backends = [First(), Partial(), Sluggish()]
        known = record(1.0, 0.8, 1.2, 1.1, ways=0.2)
        state = decided(tmp_path / folder, model, backends, known, Answers({"partial": 0.1}))
        told.append([(one.name, one.outcome, one.bound, one.chance) for one in state.agenda])
    assert told[0] == told[1]


def test_lower_precisions_of_the_fastest_change_something(tmp_path: Path, model: Graph) -> None:
    """A network without blocks of weights once shipped in a configuration that is for these alone."""
    device = replace(host(), instructions=host().instructions | {"avx512_vnni"})
    assert KernelConfig("int8-blocks") in OpenVino().configs("low", device)
    state, _ = made_up_state(tmp_path, model, [OpenVino()], options=Options(threads=1, precision="highest"))
    Baselines().run(state, Deadline(100.0))
    state.original.session = replace(state.original.session, device=device)
    assert {one.config.name for one in looser_precisions(state.original)} <= {"bf16"}
