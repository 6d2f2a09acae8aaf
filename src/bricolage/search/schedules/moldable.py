"""Moldable tasks, on one kind of core: how many cores each task gets, and then a list schedule."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem, bottom_levels


def sequential(problem: ScheduleProblem) -> Schedule:
    """One task after the other, each on the count of cores that is best for it: how a plan without a schedule runs."""
    device, now = problem.device, 0.0
    intervals = []
    for allotments in problem.allotments:
        allotment = allotments[-1]  # the fastest of one device
        intervals.append(Interval(device, tuple(range(allotment.cores)), now, now + allotment.ms))
        now += allotment.ms
    return Schedule(tuple(intervals), "sequential")


def cpa(problem: ScheduleProblem) -> Schedule:
    """Critical path and area: while the critical path is longer than the area divided by the cores, the task on it that gains
    most for each core gets more (Radulescu and van Gemund, "A low-cost approach towards mixed task and data parallel
    scheduling", ICPP 2001)."""
    cores, graph = problem.cores[problem.device], problem.graph
    step = [0] * len(problem)
    while True:
        allotted = _pick_allotments(problem, step)
        levels = bottom_levels(graph, [allotment.ms for allotment in allotted])
        area = sum(allotment.area for allotment in allotted) / cores
        if max(levels, default=0.0) <= area:
            break
        growing = [task for task in _critical_path(problem, levels) if step[task] + 1 < len(problem.allotments[task])]
        if not growing:
            break
        step[max(growing, key=lambda task: (_gain(problem.allotments[task], step[task]), -task))] += 1
    return list_schedule(problem, _pick_allotments(problem, step), method="CPA")


def cpr(problem: ScheduleProblem) -> Schedule:
    """Critical path reduction: a task on the critical path gets more cores as long as that shortens the list schedule
    (Radulescu, Nicolescu, van Gemund and Jonker, "CPR: mixed task and data parallel scheduling for distributed systems", IPDPS
    2001)."""
    step = [0] * len(problem)
    best = list_schedule(problem, _pick_allotments(problem, step), method="CPR")
    improved = problem.cores[problem.device] > 1
    while improved:
        improved = False
        levels = bottom_levels(problem.graph, [allotment.ms for allotment in _pick_allotments(problem, step)])
        path = _critical_path(problem, levels)
        for task in sorted(path, key=lambda task: (-_gain(problem.allotments[task], step[task]), task)):
            if step[task] + 1 == len(problem.allotments[task]):
                continue
            step[task] += 1
            other = list_schedule(problem, _pick_allotments(problem, step), method="CPR")
            if other.makespan_ms < best.makespan_ms:
                best, improved = other, True
                break
            step[task] -= 1
    return best


def corun(problem: ScheduleProblem) -> Schedule:
    """Each task on its best count of cores; where cores idle meanwhile, a ready task joins that can do with them and is done
    before the last of those that run (strategies 1 and 3 of Liu et al., IPDPS 2019)."""
    device, graph = problem.device, problem.graph
    levels = bottom_levels(graph, problem.shortest_ms)
    waiting = [len(sources) for sources in graph.predecessors]
    ready = sorted((-levels[task], task) for task in range(len(problem)) if not waiting[task])
    running: list[tuple[float, int]] = []
    free = list(range(problem.cores[device]))
    intervals: list[Interval | None] = [None] * len(problem)
    now = 0.0
    while ready or running:
        for entry in list(ready):
            task = entry[1]
            until = max((end for end, _ in running), default=float("inf"))
            fitting = [
                allotment
                for allotment in problem.allotments[task]
                if allotment.cores <= len(free) and now + allotment.ms <= until
            ]
            if not fitting:
                continue
            widest = fitting[-1]
            ready.remove(entry)
            intervals[task] = Interval(device, tuple(free[: widest.cores]), now, now + widest.ms)
            free = free[widest.cores :]
            heapq.heappush(running, (now + widest.ms, task))
        now = running[0][0]
        while running and running[0][0] <= now:
            _, task = heapq.heappop(running)
            done = intervals[task]
            assert done is not None
            free = sorted((*free, *done.lanes))
            for after in graph.successors[task]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append((-levels[after], after))
        ready.sort()
    return Schedule(tuple(interval for interval in intervals if interval is not None), "co-run")


METHODS: dict[str, Callable[[ScheduleProblem], Schedule]] = {
    "sequential": sequential, "CPA": cpa, "CPR": cpr, "co-run": corun
}  # fmt: skip


def _pick_allotments(problem: ScheduleProblem, step: Sequence[int]) -> list[Allotment]:
    return [mine[index] for mine, index in zip(problem.allotments, step, strict=True)]


def _gain(mine: Sequence[Allotment], index: int) -> float:
    """How much less time for each core the next allotment takes."""
    if index + 1 == len(mine):
        return 0.0
    now, more = mine[index], mine[index + 1]
    return now.ms / now.cores - more.ms / more.cores


def _critical_path(problem: ScheduleProblem, levels: Sequence[float]) -> list[int]:
    """Tasks of a longest path."""
    candidates: Sequence[int] = range(len(problem))
    path: list[int] = []
    while candidates:
        path.append(max(candidates, key=lambda task: (levels[task], -task)))
        candidates = problem.graph.successors[path[-1]]
    return path
