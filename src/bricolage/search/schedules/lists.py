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
    if any(one.cores > problem.cores[one.device] for one in allotted):
        raise ValueError("a task is allotted more cores than its device has")
    urgency = bottom_levels(problem.graph, [one.ms for one in allotted]) if priority is None else priority
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
            task, one = entry[1], allotted[entry[1]]
            if len(free[one.device]) < one.cores:
                left.append(entry)
                continue
            lanes, free[one.device] = tuple(free[one.device][: one.cores]), free[one.device][one.cores :]
            intervals[task] = Interval(one.device, lanes, now, now + one.ms)
            heapq.heappush(running, (now + one.ms, task))
        ready = left
        now = min([queue[0][0] for queue in (running, coming) if queue], default=now)
        while running and running[0][0] <= now:
            end, task = heapq.heappop(running)
            one = allotted[task]
            interval = intervals[task]
            assert interval is not None
            free[one.device] = sorted((*free[one.device], *interval.lanes))
            for after in graph.successors[task]:
                waiting[after] -= 1
                arrival[after] = max(
                    arrival[after], end + problem.delay(task, after, one.device, allotted[after].device)
                )
                if not waiting[after]:
                    heapq.heappush(coming, (arrival[after], after))
    return Schedule(tuple(one for one in intervals if one is not None), method)
