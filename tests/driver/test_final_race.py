"""Who races, who ships after a race, and who ships without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline
from bricolage.base.options import Effort, Options
from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver import final_race
from bricolage.driver.final_race import (
    FinalRace,
    race_result,
    with_files,
    with_other_tool,
    within_reach,
    without_spinning,
)
from bricolage.driver.state import Challenger, DecisionState
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.race_outcome import Contestant
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.work.implementation import AS_IT_COMES, Assignment, Implementation, KernelConfig, Placement, Team
from tests.driver.made_up import First, MadeUpMeasurer, Second, Third, latency, made_up_state, whole
from tests.graph.models import graph


def timed(ms: float, low: float | None = None, high: float | None = None) -> Cost:
    return Cost("ok", latency(ms, low, high), 0.0)


def failed() -> Cost:
    return Cost("crashed", reason="the process ended with SIGSEGV")


def of_file(backend: str) -> Implementation:
    return Implementation(backend, KernelConfig(AS_IT_COMES))


@st.composite
def measured_costs(draw: st.DrawFn) -> dict[str, Cost]:
    """Costs of up to nine baselines, some of which failed, with intervals around their medians."""
    found: dict[str, Cost] = {}
    for number in range(draw(st.integers(0, 9))):
        ms = draw(st.floats(0.01, 1000))
        low, high = draw(st.floats(0.3, 1.0)), draw(st.floats(1.0, 4.0))
        found[f"b{number}"] = failed() if draw(st.booleans()) else timed(ms, ms * low, ms * high)
    return found


# --- who races ------------------------------------------------------------------------------------------------------


def test_at_least_three_race() -> None:
    assert within_reach({"a": timed(1.0), "b": timed(50.0), "c": timed(900.0), "d": timed(901.0)}) == ["a", "b", "c"]
    assert within_reach({"a": timed(1.0), "b": failed()}) == ["a"]
    assert within_reach({"b": failed()}) == within_reach({}) == []


def test_who_is_slower_beyond_the_noise_of_both_does_not_race() -> None:
    near = {"a": timed(10.0, 9.9, 10.1), "b": timed(11.0), "c": timed(12.0)}
    assert "d" in within_reach({**near, "d": timed(15.2, 15.1, 15.3)}), "within 1.5 of the fastest at its worst"
    assert "d" not in within_reach({**near, "d": timed(15.4, 15.3, 15.5)})
    assert "d" in within_reach({**near, "d": timed(30.0, 15.1, 90.0)}), "its own noise speaks for it"
    noisy = {**near, "a": timed(10.0, 8.0, 20.0), "d": timed(29.0, 28.9, 29.1)}
    assert "d" in within_reach(noisy), "so does the noise of the fastest"


def test_a_noisy_first_measurement_puts_nobody_out_of_reach() -> None:
    """ONNX Runtime, at 146 ms in truth, was measured while something else ran."""
    costs = {
        "torch f32": timed(190.0, 180.0, 200.0),
        "onnxruntime f32": timed(250.0, 140.0, 400.0),
        "openvino f32": timed(195.0, 190.0, 205.0),
        "native f32": timed(200.0, 195.0, 210.0),
        "xla f32": timed(240.0, 235.0, 250.0),
        "tvm f32": timed(900.0, 890.0, 910.0),
    }
    racing = within_reach(costs)
    assert racing == ["torch f32", "openvino f32", "native f32", "xla f32", "onnxruntime f32"]


@given(measured_costs())
def test_who_may_be_fastest_races(costs: dict[str, Cost]) -> None:
    racing = within_reach(costs)
    known = {name: cost.latency for name, cost in costs.items() if cost.latency is not None}
    assert len(set(racing)) == len(racing) >= min(3, len(known)) and set(racing) <= set(known)
    assert [known[name].median_ms for name in racing] == sorted(known[name].median_ms for name in racing)
    assert within_reach(dict(reversed(costs.items()))) == racing, "whatever the order in which they were measured"
    if known:
        lowest = min(known.values(), key=lambda one: one.median_ms)
        assert {name for name, one in known.items() if one.low_ms <= lowest.high_ms} <= set(racing)
        assert all(known[name].low_ms > 1.5 * lowest.high_ms for name in set(known) - set(racing))


def test_the_best_other_tool_races_however_slow_it_is() -> None:
    near = {"native f32": timed(10.0), "native a": timed(10.1), "native b": timed(10.2)}
    costs = {**near, "openvino f32": timed(40.0), "torch f32": timed(30.0), "xla f32": failed()}
    baselines = {name: whole(name.split()[0]) for name in costs}
    assert with_other_tool(within_reach(costs), costs, baselines) == [*near, "torch f32"]
    assert with_other_tool(["native f32", "openvino f32"], costs, baselines) == ["native f32", "openvino f32"]
    assert with_other_tool([*near], near, baselines) == [*near], "there is none"


def test_files_as_they_come_race_however_slow_they_are() -> None:
    own, file, broken = whole("native"), of_file("onnxruntime"), of_file("openvino")
    costs = {str(own): timed(1.0), str(file): timed(90.0), str(broken): failed()}
    baselines = {str(one): one for one in (own, file, broken)}
    assert with_files([str(own)], costs, baselines) == [str(own), str(file)]
    assert with_files([str(file), str(own)], costs, baselines) == [str(file), str(own)], "once"


def test_who_spins_steps_back_for_the_same_with_threads_that_wait() -> None:
    def team(one: Implementation, team: Team) -> Implementation:
        return replace(one, config=replace(one.config, team=team))

    own, other, file = whole("native"), whole("onnxruntime"), of_file("onnxruntime")
    every = [own, team(own, "one-thread"), other, team(other, "waiting"), file]
    left = without_spinning({str(one): one for one in every})
    assert list(left.values()) == [own, team(own, "one-thread"), team(other, "waiting"), file]


# --- the decision ---------------------------------------------------------------------------------------------------

FIRST, SECOND, THIRD = whole("first"), whole("second"), whole("third")
Begin = Callable[..., tuple[DecisionState, MadeUpMeasurer]]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """A state of two operators; its baselines cost what is given."""

    def made(costs: Mapping[str, Cost]) -> tuple[DecisionState, MadeUpMeasurer]:
        state, measurer = made_up_state(tmp_path, graph("a=Relu(x) y=Tanh(a)"), [First(), Second(), Third()])
        state.original.whole.update({whole(name): cost for name, cost in costs.items()})
        return state, measurer

    return made


MIXED: Placement = (Assignment(1, FIRST), Assignment(2, SECOND))
MIRRORED: Placement = (Assignment(1, SECOND), Assignment(2, FIRST))


def made_up_race(medians: Mapping[str, float | Sequence[float]], absent: Mapping[str, Cost] | None = None) -> Race:
    """Twelve rounds in which each had the times given; None of `absent` took part."""
    samples = {
        name: [float(ms)] * 12 if isinstance(ms, int | float) else [float(one) for one in ms]
        for name, ms in medians.items()
    }
    rounds = tuple({name: (own[number],) for name, own in samples.items()} for number in range(12))
    costs = {name: Cost("ok", Latency.of(own), 1e-8, 0.5) for name, own in samples.items()}
    return Race(rounds, {**costs, **(absent or {})}, dict.fromkeys(samples, 30.0))


def disturbed(ran: Race, *names: str) -> Race:
    """The same race, every turn of these disturbed by others."""
    costs = {
        name: replace(cost, latency=Latency.of_rounds(ran.samples(name), [True] * 12), disturbed=True)
        if name in names
        else cost
        for name, cost in ran.costs.items()
    }
    return replace(ran, costs=costs, disturbed=(frozenset(names),) * len(ran.rounds))


def decided(monkeypatch: pytest.MonkeyPatch, state: DecisionState, ran: Race | None) -> list[str]:
    """Holds a final race that goes as told; who was at its start, the incumbent first."""
    started: list[str] = []

    def race(
        _measurer: object, specs: Mapping[str, CandidateSpec], *_: object, incumbent: str, **_more: object
    ) -> Race:
        started.extend([incumbent, *(name for name in specs if name != incumbent)])
        assert ran is not None
        return replace(ran, incumbent=incumbent)

    monkeypatch.setattr(final_race, "race", race)
    deadline = Deadline(0.0)
    deadline.interrupted = ran is None
    state.race = None
    FinalRace().run(state, deadline)
    return started


def by_name(contestants: Sequence[Contestant]) -> dict[str, Contestant]:
    return {one.name: one for one in contestants}


def test_a_challenger_that_clearly_wins_ships(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, 8.5), Challenger("mirrored", MIRRORED, 7.0))
    ran = made_up_race({"first f32": 10.0, "second f32": 11.0, "mixed": 9.0, "mirrored": 8.0})
    started = decided(monkeypatch, state, ran)
    assert started == ["first f32", "second f32", "mixed", "mirrored"], "the race is held however little time is left"
    result = race_result(state)
    assert result is not None and result.decided_by == "race"
    assert (result.chosen, result.variant, result.placement) == ("mirrored", ORIGINAL, MIRRORED)
    assert result.best_baseline == "first f32" and result.significant
    assert result.speedup.value == pytest.approx(1.25) and result.speedup.rounds == 12
    table = by_name(result.contestants)
    assert list(table) == ["mirrored", "mixed", "first f32", "second f32", "third f32"]
    assert table["third f32"].reason == "no time: it was up before its turn" and not table["third f32"].accepted
    assert (
        table["mixed"].kind == "plan" and table["mixed"].regions == 2 and "behind the winner" in table["mixed"].reason
    )
    assert table["second f32"].kind == "baseline" and table["second f32"].implementation == SECOND
    assert table["second f32"].speedup == pytest.approx(10 / 11) and table["first f32"].first_run_ms == 30.0


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([9.9] * 12, id="by less than two per cent"),
        pytest.param([7.0, 12.9] * 6, id="by less than the noise"),
        pytest.param([10.5] * 12, id="not at all"),
    ],
)
def test_a_challenger_that_does_not_clearly_win_does_not_ship(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, times: list[float]
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, 8.5))
    decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": 11.0, "mixed": times}))
    result = race_result(state)
    assert result is not None and not result.significant
    assert result.chosen == result.best_baseline == "first f32"
    assert result.placement == (Assignment(0b11, FIRST),) and result.speedup.value == 1.0
    assert "not a significant gain" in by_name(result.contestants)["mixed"].reason


def test_where_the_fastest_is_not_sure_the_next_one_that_is_ships(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, None), Challenger("mirrored", MIRRORED, None))
    wild = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 30.0, 30.0, 30.0, 30.0, 30.0]
    decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": 11.0, "mixed": wild, "mirrored": 8.0}))
    result = race_result(state)
    assert result is not None and result.chosen == "mirrored"


def test_the_incumbent_of_the_race_is_not_always_the_best_baseline(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A challenger has to beat the baseline that was fastest in the race."""
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, None))
    started = decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": 8.0, "mixed": 7.95}))
    result = race_result(state)
    assert started[0] == "first f32"
    assert result is not None and result.chosen == result.best_baseline == "second f32"


def test_the_best_baseline_is_surely_beaten_by_none_in_the_same_rounds(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first was away while the machine was slow, and its median is the lower one for that; side by side it is slower."""
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    both = made_up_race({"first f32": 10.0, "second f32": [9.0] * 4 + [18.0] * 8})
    rounds = tuple(
        {n: t for n, t in one.items() if number < 4 or n != "first f32"} for number, one in enumerate(both.rounds)
    )
    costs = {**both.costs, "first f32": Cost("ok", Latency.of([10.0] * 4), 1e-8, 0.5)}
    decided(monkeypatch, state, replace(both, rounds=rounds, costs=costs))
    result = race_result(state)
    assert result is not None and result.chosen == result.best_baseline == "second f32"
    assert by_name(result.contestants)["first f32"].speedup == pytest.approx(0.9)


def test_a_challenger_that_did_not_race_never_ships(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, 0.001), Challenger("mirrored", MIRRORED, 0.001))
    decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": 11.0}, {"mirrored": failed()}))
    result = race_result(state)
    assert result is not None and result.chosen == "first f32" and result.decided_by == "race"
    table = by_name(result.contestants)
    assert "mixed" not in table and table["mirrored"].reason.startswith("crashed") and not table["mirrored"].accepted


def test_a_challenger_that_never_met_a_baseline_is_compared_by_way_of_the_incumbent(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, None))
    both = made_up_race({"first f32": 10.0, "second f32": 9.5, "mixed": 5.0})
    heats = tuple(
        {name: own for name, own in one.items() if name != ("mixed" if number < 6 else "second f32")}
        for number, one in enumerate(both.rounds)
    )
    decided(monkeypatch, state, replace(both, rounds=heats))
    result = race_result(state)
    assert result is not None and (result.chosen, result.best_baseline) == ("mixed", "second f32")
    assert result.speedup.value == pytest.approx(9.5 / 5.0)


def test_with_no_race_prior_evidence_decides(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, measurer = begin({"first": timed(10.0, 9.0, 15.0), "second": timed(12.0, 9.5, 30.0), "third": failed()})
    state.challenge(Challenger("mixed", MIXED, 0.001))
    started = decided(monkeypatch, state, None)
    result = race_result(state)
    assert not started and result is not None and result.decided_by == "prior evidence"
    assert result.chosen == result.best_baseline == "first f32" and not result.significant
    measurer.earlier[state.original.whole_spec(SECOND)] = timed(7.0)
    again = race_result(state)
    assert again is not None and again.chosen == again.best_baseline == "second f32", "an earlier run counts"
    assert again.placement == (Assignment(0b11, SECOND),)
    assert "mixed" not in by_name(again.contestants)


def test_a_disturbed_race_decides_together_with_what_was_known(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """As seen beside one busy process: 157 ms [145, 166] against 183 ms [130, 370], where 80 and 150 had been measured
    before: the slower one must not ship for one noisy median."""
    state, _ = begin({"first": timed(150.0), "second": timed(80.0)})
    ran = made_up_race(
        {
            "first f32": [145, 150, 152, 155, 156, 157, 157, 158, 160, 163, 165, 166],
            "second f32": [130, 140, 150, 160, 175, 180, 186, 200, 250, 300, 350, 370],
        }
    )
    decided(monkeypatch, state, ran)
    calm = race_result(state)
    assert calm is not None and (calm.chosen, calm.decided_by) == ("first f32", "race"), "where nobody disturbed it"
    decided(monkeypatch, state, disturbed(ran, "first f32", "second f32"))
    result = race_result(state)
    assert result is not None and (result.chosen, result.decided_by) == ("second f32", "race and prior evidence")
    assert result.best_baseline == "second f32" and not result.significant


def test_a_plan_ships_beside_neighbours_where_all_evidence_together_is_for_it(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, measurer = begin({"first": timed(10.0), "second": timed(11.0)})
    state.challenge(Challenger("mixed", MIXED, None), Challenger("mirrored", MIRRORED, None))
    medians = {"first f32": [10.0, 30.0] * 6, "second f32": [11.0, 31.0] * 6, "mixed": [10.0, 30.0] * 6}
    ran = disturbed(made_up_race({**medians, "mirrored": [9.9, 40.0] * 6}), *medians, "mirrored")
    measurer.on_record[state.original.placement_spec(MIXED)] = timed(8.0)
    measurer.on_record[state.original.placement_spec(MIRRORED)] = timed(9.95)
    decided(monkeypatch, state, ran)
    result = race_result(state)
    assert result is not None and result.decided_by == "race and prior evidence"
    assert (result.chosen, result.best_baseline, result.placement) == ("mixed", "first f32", MIXED)
    assert 1.1 < result.speedup.value < 1.3 and result.speedup.rounds == 12
    reasons = {name: one.reason for name, one in by_name(result.contestants).items()}
    assert not reasons["mixed"] and not reasons["first f32"]
    assert by_name(result.contestants)["mixed"].speedup == result.speedup.value, "the table says what decided"
    for name in ("mirrored", "second f32"):
        assert " of first f32 in the race, " in reasons[name] and "together with earlier measurements" in reasons[name]
    measurer.on_record.clear()
    unsure = race_result(state)
    assert unsure is not None and unsure.chosen == unsure.best_baseline == "first f32", "no gain, so nothing new"


def test_a_clear_win_in_a_disturbed_race_stands_against_what_was_known(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(10.5)})
    ran = disturbed(made_up_race({"first f32": [60.0, 61.0] * 6, "second f32": [20.0, 21.0] * 6}), "first f32")
    decided(monkeypatch, state, ran)
    result = race_result(state)
    assert result is not None and (result.chosen, result.decided_by) == ("second f32", "race")


def test_a_race_in_which_enough_rounds_were_undisturbed_decides_alone(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(50.0)})
    ran = made_up_race({"first f32": [10.0] * 8 + [90.0] * 4, "second f32": [9.0] * 8 + [95.0] * 4})
    some = tuple(frozenset({"first f32", "second f32"}) if number >= 8 else frozenset() for number in range(12))
    decided(monkeypatch, state, replace(ran, disturbed=some))
    result = race_result(state)
    assert result is not None and (result.chosen, result.decided_by) == ("second f32", "race")


def test_one_baseline_alone_races_nobody(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"second": timed(11.0), "third": failed()})
    started = decided(monkeypatch, state, made_up_race({}))
    result = race_result(state)
    assert not started and result is not None
    assert (result.chosen, result.decided_by) == ("second f32", "prior evidence")


def test_nobody_alive_means_no_decision(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": failed(), "second": Cost("wrong", None, 0.1)})
    decided(monkeypatch, state, made_up_race({}))
    assert race_result(state) is None


def test_baselines_dropped_for_their_accuracy_show_their_time(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Cost("wrong", None, 1e-3, reason="the relative error is 1.00e-03, the bound 1.00e-06")
    state, _ = begin({"first": timed(10.0), "second": timed(11.0), "third": wrong})
    state.original.dropped[THIRD] = timed(4.0)
    started = decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": 11.0}))
    result = race_result(state)
    assert "third f32" not in started and result is not None
    third = by_name(result.contestants)["third f32"]
    assert third.dropped_ms == 4.0 and third.median_ms is None and not third.accepted and third.error == 1e-3
    assert third.reason.startswith("wrong: ")
    assert by_name(result.contestants)["first f32"].dropped_ms is None


# --- what is ours ---------------------------------------------------------------------------------------------------

TUNED = Implementation("first", FIRST.config.tuned({"rows": 4}))


@pytest.mark.parametrize(
    ("times", "ships"),
    [
        pytest.param(9.0, True, id="clearly faster"),
        pytest.param(9.9, False, id="by less than two per cent"),
        pytest.param([7.0, 12.9] * 6, False, id="a lower median, within the noise"),
    ],
)
def test_tuned_kernels_ship_only_where_the_race_says_that_they_are_faster(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, times: float | list[float], ships: bool
) -> None:
    """They were a baseline once, and shipped by the lower median: at 0.998 [0.840, 1.152] of the usual ones."""
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    state.original.whole[TUNED] = timed(9.0)
    ran = made_up_race({"first f32": 10.0, "second f32": 11.0, str(TUNED): times})
    started = decided(monkeypatch, state, ran)
    assert started[0] == "first f32" and str(TUNED) in started, "the incumbent is one that nobody tuned"
    result = race_result(state)
    assert result is not None and result.best_baseline == "first f32" and result.significant is ships
    assert result.chosen == (str(TUNED) if ships else "first f32")
    assert result.placement == (Assignment(0b11, TUNED if ships else FIRST),) and result.variant == ORIGINAL
    table = by_name(result.contestants)
    assert table[str(TUNED)].kind == "plan" and table[str(TUNED)].implementation == TUNED
    assert ("not a significant gain" in table[str(TUNED)].reason) is not ships


def test_without_a_race_tuned_kernels_do_not_ship(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": timed(10.0)})
    state.original.whole[TUNED] = timed(5.0)
    decided(monkeypatch, state, None)
    result = race_result(state)
    assert result is not None and result.chosen == "first f32"
    state.original.whole[FIRST] = failed()
    alone = race_result(state)
    assert alone is not None and alone.chosen == str(TUNED), "unless nothing else is right"


def test_the_gain_over_the_best_other_tool_is_of_the_same_rounds(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drift that both had cancels: medians of the whole race would say something else."""
    monkeypatch.setattr("bricolage.plan.race_outcome.OWN_ENGINE", "first")
    state, _ = begin({"first": timed(10.0), "second": timed(17.0), "third": timed(30.0)})
    state.challenge(Challenger("mixed", MIXED, None))
    drift = [1.0, 3.0] * 6
    medians = {"first f32": 10.0, "second f32": 17.3, "third f32": 30.0, "mixed": 11.0}
    ran = made_up_race({name: [ms * factor for factor in drift] for name, ms in medians.items()})
    decided(monkeypatch, state, ran)
    result = race_result(state)
    assert result is not None and (result.chosen, result.best_other) == ("first f32", "second f32")
    table = by_name(result.contestants)
    assert table["first f32"].over_other == pytest.approx(1.73) and table["first f32"].over_other_ci is not None
    assert table["mixed"].over_other == pytest.approx(17.3 / 11.0)
    assert table["second f32"].over_other == 1.0 and table["third f32"].over_other == pytest.approx(17.3 / 30.0)


def test_beside_neighbours_the_gain_over_the_best_other_tool_is_by_all_evidence(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bricolage.plan.race_outcome.OWN_ENGINE", "first")
    state, _ = begin({"first": timed(10.0), "second": timed(20.0)})
    ran = made_up_race({"first f32": [10.0, 30.0] * 6, "second f32": [10.1, 30.0] * 6})
    decided(monkeypatch, state, disturbed(ran, "first f32", "second f32"))
    result = race_result(state)
    assert result is not None and result.decided_by == "race and prior evidence"
    over = by_name(result.contestants)["first f32"]
    assert result.best_other == "second f32" and over.over_other is not None and 1.5 < over.over_other < 2.1


def test_without_a_race_the_gain_over_the_best_other_tool_is_of_what_was_known(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bricolage.plan.race_outcome.OWN_ENGINE", "first")
    state, _ = begin({"first": timed(10.0), "second": timed(20.0)})
    decided(monkeypatch, state, None)
    result = race_result(state)
    assert result is not None and result.best_other == "second f32"
    assert by_name(result.contestants)["first f32"].over_other == pytest.approx(2.0)


def test_where_only_our_engine_runs_it_there_is_no_other_tool(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bricolage.plan.race_outcome.OWN_ENGINE", "first")
    state, _ = begin({"first": timed(10.0), "second": failed()})
    decided(monkeypatch, state, None)
    result = race_result(state)
    assert result is not None and result.best_other == ""
    assert all(one.over_other is None for one in result.contestants)


def test_the_race_keeps_its_share_of_the_budget(begin: Begin) -> None:
    state, _ = begin({})
    assert FinalRace().share(state) == state.budget.race_s


@pytest.mark.parametrize(
    ("effort", "second", "held"),
    [("instant", 11.0, False), ("instant", 10.3, False), ("instant", 10.01, True), ("quick", 11.0, True)],
)
def test_an_instant_decision_holds_a_race_only_where_it_may_say_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, effort: Effort, second: float, held: bool
) -> None:
    model, backends = graph("a=Relu(x) y=Tanh(a)"), [First(), Second()]
    state, _ = made_up_state(tmp_path, model, backends, options=Options(threads=1, effort=effort))
    state.original.whole.update({whole("first"): timed(10.0), whole("second"): timed(second)})
    started = decided(monkeypatch, state, made_up_race({"first f32": 10.0, "second f32": second}))
    result = race_result(state)
    assert bool(started) is held
    assert result is not None and result.chosen == "first f32" and result.best_other == "first f32"
    assert (result.decided_by == "race") is held


# --- files as they come, and the other pattern of calls -------------------------------------------------------------


def test_a_file_that_wins_ships_and_is_the_best_other_tool(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    file = of_file("first")
    state.original.files[file] = timed(12.0)
    state.challenge(Challenger("mixed", MIXED, 8.5))
    ran = made_up_race({"first f32": 10.0, "second f32": 11.0, "mixed": 9.0, str(file): 8.0})
    started = decided(monkeypatch, state, ran)
    assert str(file) in started
    result = race_result(state)
    assert result is not None and result.chosen == result.best_baseline == result.best_other == str(file)
    assert result.placement == (Assignment(0b11, file),)
    table = by_name(result.contestants)
    assert table[str(file)].as_it_comes and table[str(file)].other_tool
    assert "the file as it comes is 1.250" in table["first f32"].reason, "prepared, the same tool is slower"
    assert "as it comes" not in table["second f32"].reason


def test_a_tool_that_takes_the_file_alone_says_so(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": Cost("refused", reason="first refuses the region"), "second": timed(11.0)})
    file = of_file("first")
    state.original.files[file] = timed(12.0)
    decided(monkeypatch, state, made_up_race({"second f32": 11.0, str(file): 12.0}))
    result = race_result(state)
    assert result is not None and result.chosen == "second f32"
    assert by_name(result.contestants)["first f32"].reason.endswith("it runs the file as it comes")


def test_how_what_ships_stands_in_the_other_pattern(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(11.0)})
    ran = made_up_race({"first f32": 10.0, "second f32": 11.0})
    others = tuple({"first f32": (30.0,), "second f32": (20.0,)} for _ in ran.rounds)
    decided(monkeypatch, state, replace(ran, others=others))
    result = race_result(state)
    assert result is not None and result.pattern == "steady" and result.chosen == "first f32"
    loss = result.other_pattern
    assert loss is not None and loss.other == "second f32" and loss.speedup == pytest.approx(2 / 3)
    assert by_name(result.contestants)["first f32"].other_pattern_ms == 30.0
    decided(monkeypatch, state, ran)
    result = race_result(state)
    assert result is not None and result.pattern is None and result.other_pattern is None


@pytest.mark.parametrize(
    ("second", "sparse", "ships"),
    [
        pytest.param(10.1, 20.0, "second f32", id="equal within 2 %, surely faster after pauses"),
        pytest.param(10.1, 29.9, "first f32", id="equal in both"),
        pytest.param(10.4, 20.0, "first f32", id="slower by more than 2 %"),
        pytest.param([9.0, 11.3] * 6, 20.0, "second f32", id="equal within the noise"),
        pytest.param([9.0, 11.3] * 6, [15.0, 50.0] * 6, "first f32", id="after pauses it is open"),
    ],
)
def test_the_other_pattern_breaks_ties(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, second: float | list[float], sparse: float | list[float], ships: str
) -> None:
    state, _ = begin({"first": timed(10.0), "second": timed(10.1)})
    ran = made_up_race({"first f32": 10.0, "second f32": second})
    others = made_up_race({"first f32": 30.0, "second f32": sparse}).rounds
    decided(monkeypatch, state, replace(ran, others=others))
    result = race_result(state)
    assert result is not None and result.chosen == result.best_baseline == ships
