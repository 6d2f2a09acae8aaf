"""The simulator: whatever the tasks, what they wait for and in which order, against definitions and small steps of time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.work.simulator import Task, simulate


@dataclass(frozen=True)
class Crowd:
    """All that runs at once is slowed alike."""

    by: float = 1.0

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:  # noqa: ARG002 - the protocol's shape
        return [1.0 if len(running) < 2 else 1.0 / self.by] * len(running)


@st.composite
def tasks_in_order(draw: st.DrawFn) -> tuple[list[Task], list[int]]:
    """Tasks under shuffled numbers, and an order of theirs in which they can run."""
    count = draw(st.integers(0, 7))
    order = list(draw(st.permutations(range(count))))
    found: list[Task] = [Task(0.0)] * count
    for place, number in enumerate(order):
        after = draw(st.sets(st.sampled_from(order[:place]))) if place else set()
        resources = draw(st.sets(st.sampled_from(["a", "b", ("c", 0)])))
        ms = draw(st.sampled_from([0.0, 0.1, 0.7, 1.0, 2.3]))
        found[number] = Task(ms, tuple(sorted(resources, key=str)), tuple(sorted(after)))
    return found, order


@given(tasks_in_order())
@settings(max_examples=40)
def test_a_task_starts_when_all_that_it_waits_for_has_ended_and_not_later(given: tuple[list[Task], list[int]]) -> None:
    tasks, order = given
    times = simulate(tasks, order)
    for place, number in enumerate(order):
        one = tasks[number]
        queued = [other for other in order[:place] if set(tasks[other].resources) & set(one.resources)]
        assert times.starts[number] == max([times.ends[other] for other in (*one.after, *queued)], default=0.0)
        assert times.ends[number] == times.starts[number] + one.ms


@given(tasks_in_order())
@settings(max_examples=40)
def test_contention_that_slows_nothing_gives_the_same_numbers_to_the_last_bit(
    given: tuple[list[Task], list[int]],
) -> None:
    assert simulate(*given, Crowd()) == simulate(*given)


@given(tasks_in_order(), st.floats(1.0, 4.0))
@settings(max_examples=20)
def test_contention_against_little_steps_of_time(given: tuple[list[Task], list[int]], by: float) -> None:
    tasks, order = given
    step, now = 0.004, 0.0
    left = {number: tasks[number].ms for number in order}
    ended: dict[int, float] = {}
    while left:
        running: list[int] = []
        for place, number in enumerate(order):
            if number not in left:
                continue
            queued = [other for other in order[:place] if set(tasks[other].resources) & set(tasks[number].resources)]
            if not {*tasks[number].after, *queued} & set(left):
                running.append(number)
        rates = Crowd(by).rates(tasks, running)
        now += step if any(left[number] > 0.0 for number in running) else 0.0
        for number, rate in zip(running, rates, strict=True):
            left[number] -= step * rate
            if left[number] <= 1e-9:
                ended[number] = now
                del left[number]
    times = simulate(tasks, order, Crowd(by))
    assert list(times.ends) == pytest.approx([ended[number] for number in range(len(tasks))], abs=0.12)


def test_tasks_without_resources_do_not_queue() -> None:
    times = simulate([Task(5.0, ("link",)), Task(5.0, ("link",)), Task(5.0), Task(5.0)])
    assert times.ends == [5.0, 10.0, 5.0, 5.0]


@pytest.mark.parametrize("contention", [None, Crowd(2.0)])
def test_a_circle_is_refused(contention: Crowd | None) -> None:
    tasks = [Task(1.0, ("a",), (1,)), Task(1.0, ("a",))]
    assert simulate(tasks, [1, 0], contention).ends == [2.0, 1.0]
    with pytest.raises(ValueError, match="cycle"):
        simulate(tasks, [0, 1], contention)
