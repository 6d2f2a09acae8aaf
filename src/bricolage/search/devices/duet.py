"""Sub-graphs on devices by phases: DUET's greedy placement and its correction.

Zhang, Hu and Li, "DUET: A compiler-runtime subgraph scheduling approach for tensor programs on a coupled CPU-GPU architecture",
IPDPS 2021. A sequential phase is a task that is before or after every other; between two of them lie the branches of a multi-path
phase, each of which stays together. Each branch takes all the cores of its device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from bricolage.search.schedules.branches import phases
from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem
from bricolage.work.bits import members


def duet(problem: ScheduleProblem) -> Schedule:
    """Phase by phase greedily, then moves and swaps of branches for as long as they shorten the schedule; one device for all that
    runs there where that is no worse.

    Raises:
        ValueError: no device runs all tasks of some branch.
    """
    parts = phases(problem.graph)
    branches = [branch for phase in parts for branch in phase]
    where: dict[int, str] = {}
    for phase in parts:
        longest_first = sorted(phase, key=lambda branch: -min(_times(problem, branch).values(), default=0.0))
        for branch in longest_first:
            where[branch] = min(
                _times(problem, branch), key=lambda device: _until(problem, {**where, branch: device}).makespan_ms
            )
    best = _until(problem, where)
    improved = True
    while improved:
        improved = False
        for other in _changes(problem, parts, where):
            schedule = _until(problem, other)
            if schedule.makespan_ms < best.makespan_ms:
                best, where, improved = schedule, other, True
                break
    for device in problem.cores:
        single = _until(
            problem, {number: device if device in _times(problem, number) else where[number] for number in branches}
        )
        best = single if single.makespan_ms <= best.makespan_ms else best
    return best


def _times(problem: ScheduleProblem, branch: int) -> dict[str, float]:
    """Milliseconds of a branch on each device that runs all of it."""
    tasks = members(branch)
    able = set.intersection(*(set(problem.times[task]) for task in tasks))
    if not able:
        raise ValueError(f"no device runs all of the tasks {tasks}")
    return {device: sum(_whole(problem, task, device).ms for task in tasks) for device in sorted(able)}


def _whole(problem: ScheduleProblem, task: int, device: str) -> Allotment:
    cores = problem.cores[device]
    return Allotment(device, cores, problem.ms(task, device, cores))


def _changes(
    problem: ScheduleProblem, parts: Sequence[Sequence[int]], where: dict[int, str]
) -> Iterator[dict[int, str]]:
    """One branch of a multi-path phase moved, or two of a phase swapped."""
    for phase in parts:
        if len(phase) == 1:
            continue
        for branch in phase:
            for device in _times(problem, branch):
                if device != where[branch]:
                    yield {**where, branch: device}
        for first, other in combinations(phase, 2):
            here, there = where[first], where[other]
            if here != there and there in _times(problem, first) and here in _times(problem, other):
                yield {**where, first: there, other: here}


def _until(problem: ScheduleProblem, where: Mapping[int, str]) -> Schedule:
    """The branches placed so far, whose tasks every device takes by number."""
    home = {task: device for branch, device in where.items() for task in members(branch)}
    free = dict.fromkeys(problem.cores, 0.0)
    intervals: dict[int, Interval] = {}
    for task, device in sorted(home.items()):
        allotment, start = _whole(problem, task, device), free[device]
        for source in problem.graph.predecessors[task]:
            before = intervals[source]
            start = max(start, before.end_ms + problem.delay(source, task, before.device, device))
        free[device] = start + allotment.ms
        intervals[task] = Interval(device, tuple(range(allotment.cores)), start, free[device])
    return Schedule(tuple(intervals.values()), "DUET")
