"""Isolating and minimising, against what is known of the faults that tests make up."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.search.isolate import Finding, Remembered, Subset, culprits, isolate, isolate_faults

COUNT = st.integers(1, 200)


@given(st.data())
def test_a_single_change_at_fault_is_found_by_binary_search(data: st.DataObject) -> None:
    count = data.draw(COUNT)
    fault = data.draw(st.integers(1, count))
    test = Remembered(lambda subset: "wrong" if fault in subset else "right")
    right, wrong = isolate(frozenset(), frozenset(range(1, count + 1)), test)
    assert wrong - right == {fault} and right == frozenset(range(1, fault))
    assert len(test.known) <= math.ceil(math.log2(count)) + 1
    assert culprits(frozenset(range(1, count + 1)), test) == {fault}


@settings(max_examples=200)
@given(st.data())
def test_a_fault_that_comes_and_goes(data: st.DataObject) -> None:
    """Whatever the test says of the subsets in between: the result is a smallest difference of one with and one without."""
    count = data.draw(st.integers(1, 12))
    everything = frozenset(range(count))
    answers: dict[Subset, Finding] = {frozenset(): "right", everything: "wrong"}

    def test(subset: Subset) -> Finding:
        if subset not in answers:
            answers[subset] = data.draw(st.sampled_from(["right", "wrong", "unresolved"]))
        return answers[subset]

    right, wrong = isolate(frozenset(), everything, test)
    assert right < wrong and answers[right] == "right" and answers[wrong] == "wrong"
    for one in wrong - right:
        assert len(wrong - right) == 1 or (test(right | {one}) == "unresolved" == test(wrong - {one}))


@given(st.data())
def test_several_changes_at_fault_are_all_found(data: st.DataObject) -> None:
    count = data.draw(COUNT)
    faults = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=4))
    test = Remembered(lambda subset: "wrong" if subset & faults else "right")
    assert culprits(frozenset(range(count)), test) == faults


def test_changes_that_are_wrong_only_together() -> None:
    """Either of the two mends it; one is named, and switching it off alone is enough."""
    test = Remembered(lambda subset: "wrong" if {3, 7} <= subset else "right")
    (one,) = culprits(frozenset(range(10)), test)
    assert one in (3, 7)


def test_changes_that_cannot_be_taken_apart_are_found_together() -> None:
    def test(subset: Subset) -> Finding:
        if len(subset & {4, 5, 6}) in (1, 2):
            return "unresolved"
        return "wrong" if 5 in subset else "right"

    assert culprits(frozenset(range(10)), Remembered(test)) == {4, 5, 6}


@given(st.data())
def test_minimising_keeps_just_what_is_needed(data: st.DataObject) -> None:
    count = data.draw(COUNT)
    needed = data.draw(st.frozensets(st.integers(0, count - 1), min_size=1, max_size=5))
    test = Remembered(lambda subset: "wrong" if needed <= subset else "unresolved")
    assert set(isolate_faults(range(count), test)) == needed
