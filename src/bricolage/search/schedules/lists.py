"""List scheduling: whenever cores become free, the ready tasks that fit start, the most urgent first (Graham, 1966)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem, bottom_levels


def list_schedule(
    problem: ScheduleProblem,
    allotted: Sequence[Allotment],
    priority: Sequence[float] | None = None,
    method: str = "list",
) -> Schedule:
    """Runs each task as allotted, the highest priority first; by default the longest path to the end.

    With one core a task it is work-conserving: no core idles while a task that could run on it waits.

    Raises:
        ValueError: a task is allotted more cores than its device has.
    """
    if any(allotment.cores > problem.cores[allotment.device] for allotment in allotted):
        raise ValueError("a task is allotted more cores than its device has")
    urgency = bottom_levels(problem.graph, [allotment.ms for allotment in allotted]) if priority is None else priority
    graph = problem.graph
    waiting = [len(sources) for sources in graph.predecessors]
    arrival = [0.0] * len(problem)
    coming = [(0.0, task) for task in range(len(problem)) if not waiting[task]]
    ready: list[tuple[float, int]] = []
    running: list[tuple[float, int]] = []
    free = {device: list(range(count)) for device, count in problem.cores.items()}
    intervals: list[Interval | None] = [None] * len(problem)
    now = 0.0
    while coming or ready or running:
        while coming and coming[0][0] <= now:
            _, task = heapq.heappop(coming)
            ready.append((-urgency[task], task))
        left = []
        for entry in sorted(ready):
            task, allotment = entry[1], allotted[entry[1]]
            if len(free[allotment.device]) < allotment.cores:
                left.append(entry)
                continue
            lanes, free[allotment.device] = (
                tuple(free[allotment.device][: allotment.cores]),
                free[allotment.device][allotment.cores :],
            )
            intervals[task] = Interval(allotment.device, lanes, now, now + allotment.ms)
            heapq.heappush(running, (now + allotment.ms, task))
        ready = left
        now = min([queue[0][0] for queue in (running, coming) if queue], default=now)
        while running and running[0][0] <= now:
            end, task = heapq.heappop(running)
            allotment = allotted[task]
            interval = intervals[task]
            assert interval is not None
            free[allotment.device] = sorted((*free[allotment.device], *interval.lanes))
            for after in graph.successors[task]:
                waiting[after] -= 1
                arrival[after] = max(
                    arrival[after], end + problem.delay(task, after, allotment.device, allotted[after].device)
                )
                if not waiting[after]:
                    heapq.heappush(coming, (arrival[after], after))
    return Schedule(tuple(slot for slot in intervals if slot is not None), method)
