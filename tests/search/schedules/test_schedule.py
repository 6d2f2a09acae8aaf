"""Which schedules are refused, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.search.schedules.schedule import Interval, Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem

HALVED = {"cpu": (4.0, 2.0)}
PROBLEM = ScheduleProblem(
    graph_of([[], [0], [0]], {(0, 1): 3}), (HALVED, {**HALVED, "gpu": (1.0,)}, HALVED), {"cpu": 2, "gpu": 1},
    lambda _from, _to, size: float(size),
)  # fmt: skip
GOOD = Schedule(
    (Interval("cpu", (0, 1), 0.0, 2.0), Interval("gpu", (0,), 5.0, 6.0), Interval("cpu", (1,), 2.0, 6.0)), "by hand"
)


def test_a_schedule_that_can_be_run_passes() -> None:
    check(PROBLEM, GOOD)
    assert GOOD.makespan_ms == 6.0 and GOOD.order() == (0, 2, 1)
    assert Schedule(()).makespan_ms == 0.0


@pytest.mark.parametrize(
    ("task", "interval", "told"),
    [
        (0, Interval("gpu", (0,), 0.0, 2.0), "does not run on"),
        (0, Interval("cpu", (0, 0), 0.0, 2.0), "one twice"),
        (0, Interval("cpu", (), 0.0, 4.0), "no cores"),
        (0, Interval("cpu", (1, 2), 0.0, 2.0), "does not have"),
        (0, Interval("cpu", (0, 1), 0.0, 1.5), "takes 2.0"),
        (0, Interval("cpu", (0, 1), -1.0, 1.0), "takes 2.0"),
        (1, Interval("gpu", (0,), 4.0, 5.0), "before the results of task 0"),
        (2, Interval("cpu", (1,), 1.0, 5.0), "before the results of task 0"),
        (1, Interval("cpu", (0, 1), 4.0, 6.0), "overlap on core 1"),
    ],
)
def test_what_cannot_be_run_is_refused(task: int, interval: Interval, told: str) -> None:
    changed = list(GOOD.intervals)
    changed[task] = interval
    with pytest.raises(ValueError, match=told):
        check(PROBLEM, replace(GOOD, intervals=tuple(changed)))


def test_every_task_must_be_there() -> None:
    with pytest.raises(ValueError, match="intervals of 2"):
        check(PROBLEM, Schedule(GOOD.intervals[:2]))


def test_problems_that_nothing_solves_are_refused() -> None:
    graph = graph_of([[]])
    for times, cores, told in [
        ((), {"cpu": 1}, "times of 0"),
        (({"cpu": (1.0,)},), {"cpu": 0}, "no cores"),
        (({},), {"cpu": 1}, "none of the devices"),
        (({"gpu": (1.0,)},), {"cpu": 1}, "not there"),
    ]:
        with pytest.raises(ValueError, match=told):
            ScheduleProblem(graph, times, cores)
