"""What is known of a contestant besides the race, and what follows from it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement
from bricolage.driver.candidates import CandidateGroup
from bricolage.driver.evidence import Evidence, fastest, of_baseline, of_plan, sum_of_regions, weigh_evidence
from bricolage.graph.work import Work
from bricolage.work.implementation import Assignment
from tests.driver.made_up import First, Second, made_up_state, whole
from tests.driver.test_final_race import disturbed, made_up_race, timed
from tests.graph.models import graph

FIRST, SECOND = whole("first"), whole("second")


def known(name: str, *costs: Cost, regions_ms: float | None = None) -> Evidence:
    return Evidence.of(name, costs, regions_ms)


def beside(ms: float, low: float | None = None, high: float | None = None) -> Cost:
    """A time that was measured beside other processes."""
    return replace(timed(ms, low, high), disturbed=True)


def test_the_fastest_is_chosen_if_that_is_sure() -> None:
    a, b = known("a", timed(10.0)), known("b", timed(13.0, 12.0, 14.0))
    assert fastest([a, b]) == fastest([b, a]) == "a"
    assert fastest([a, known("b", timed(13.0), regions_ms=12.0)]) == "a"


def test_the_surest_source_decides_between_unsure_ones() -> None:
    fast, slow = timed(10.0, 9.0, 15.0), timed(14.0, 12.0, 30.0)
    assert fastest([known("a", fast), known("b", slow)]) == "a"
    assert fastest([known("a", fast), known("b", slow, timed(8.0))]) == "b", "an earlier run was surer"
    assert fastest([known("a", fast), known("b", slow, timed(50.0))]) == "a"


def test_what_was_measured_beside_others_counts_only_where_nothing_else_was() -> None:
    slow = known("a", beside(100.0), timed(10.0))
    assert slow.ms == pytest.approx(10.0)
    assert fastest([slow, known("b", timed(12.0))]) == "a"
    both = known("a", beside(30.0)), known("b", beside(20.0))
    assert fastest(both) == "b"
    gain = both[1].speedup(both[0])
    assert gain is not None and gain.value == pytest.approx(1.5) and gain.low < 1.2 < 1.8 < gain.high


def test_nothing_known_chooses_nothing() -> None:
    failed = Cost("crashed", reason="the process ended with SIGSEGV")
    assert fastest([]) is None and fastest([known("a"), known("b", failed)]) is None
    assert known("a").speedup(known("b", timed(1.0))) is None


@st.composite
def some_evidence(draw: st.DrawFn) -> list[Evidence]:
    found: list[Evidence] = []
    for number in range(draw(st.integers(0, 6))):
        costs: list[Cost] = []
        for _ in range(draw(st.integers(0, 3))):
            ms, low, high = draw(st.floats(1, 100)), draw(st.floats(0.2, 1.0)), draw(st.floats(1.0, 5.0))
            costs.append(replace(timed(ms, ms * low, ms * high), disturbed=draw(st.booleans())))
        found.append(Evidence.of(f"p{number}", costs, draw(st.none() | st.floats(1, 100))))
    return found


@given(some_evidence(), st.randoms())
def test_the_choice_does_not_depend_on_order_and_exists_where_anything_is_known(
    evidence: list[Evidence], rng: random.Random
) -> None:
    chosen = fastest(evidence)
    assert (chosen is None) == all(one.ms is None for one in evidence)
    shuffled = evidence.copy()
    rng.shuffle(shuffled)
    assert fastest(shuffled) == chosen


def test_sums_of_regions_are_evidence_unless_others_disturbed_them(tmp_path: Path) -> None:
    state, measurer = made_up_state(tmp_path, graph("a=Relu(x) y=Tanh(a)"), [First(), Second()])
    variant = state.original
    variant.whole = {FIRST: timed(10.0, 9.0, 15.0), SECOND: timed(12.0, 9.5, 30.0)}
    groups = tuple(CandidateGroup(key, (1 << n,), (FIRST, SECOND), Work(1, 1), "segment") for n, key in enumerate("ab"))
    variant.candidates = replace(variant.candidates, groups=groups, segments=(1, 2))
    variant.regions.add([Measurement("a", SECOND, timed(3.0))])
    assert sum_of_regions(variant, SECOND) is None, "one segment was not measured"
    variant.regions.add([Measurement("b", SECOND, timed(4.0))])
    assert sum_of_regions(variant, SECOND) == 7.0
    variant.regions.add([Measurement(key, FIRST, timed(6.0)) for key in "ab"])

    def all_of_it() -> list[Evidence]:
        return [of_baseline(str(one), cost, variant, one) for one, cost in variant.whole.items()]

    assert fastest(all_of_it()) == "second f32"
    variant.regions.add([Measurement("b", SECOND, beside(4.0))])
    assert sum_of_regions(variant, SECOND) is None and fastest(all_of_it()) == "first f32"
    measurer.earlier[variant.whole_spec(SECOND)] = timed(7.0)
    assert fastest(all_of_it()) == "second f32", "so is an earlier run"
    placement = (Assignment(1, FIRST), Assignment(2, SECOND))
    assert of_plan("mixed", placement, variant).ms is None
    measurer.on_record[variant.placement_spec(placement)] = timed(5.0)
    assert of_plan("mixed", placement, variant).ms == pytest.approx(5.0)


def test_the_race_and_what_was_known_weigh_as_far_as_they_are_sure() -> None:
    quiet = made_up_race({"a": 10.0, "b": 20.0})
    evidence = {"a": known("a", timed(30.0)), "b": known("b", timed(10.0))}
    alone = weigh_evidence("a", "b", quiet, {})
    assert alone is not None and alone.value == pytest.approx(2.0)
    together = weigh_evidence("a", "b", quiet, evidence)
    assert together is not None and 1.5 < together.value < 2.0 < together.high, "a quiet race is the surest"
    before = {"a": known("a", timed(12.0)), "b": known("b", timed(10.0))}
    shaken = weigh_evidence("a", "b", disturbed(quiet, "a", "b"), before)
    assert shaken is not None and 1 / 1.2 < shaken.value < 1.0, "a disturbed one is not"
    assert shaken.high / shaken.low > 1.2, "and their contradiction shows"
    assert weigh_evidence("a", "c", quiet, evidence) is None
