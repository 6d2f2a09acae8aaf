"""Several devices: HEFT, CPOP and PEFT, which place one task after the other where it ends first, or looks best to end.

Topcuoglu, Hariri and Wu, "Performance-effective and low-complexity task scheduling for heterogeneous computing", TPDS 2002;
Arabnejad and Barbosa, "List scheduling algorithm for heterogeneous systems by an optimistic cost table", TPDS 2014. A task may
take several cores of a device, as its speed-up curve allows.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from operator import itemgetter

from bricolage.search.devices.memory_room import Room
from bricolage.search.schedules.schedule import SLACK, Interval, Schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem


def heft(problem: ScheduleProblem) -> Schedule:
    """Tasks by upward rank (the mean path to the end), each into the gap in which it ends first."""
    rank = upward_ranks(problem)
    nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
    order = sorted(range(len(problem)), key=lambda task: (-rank[task], task))
    return insert(problem, order, nothing, "HEFT")


def peft(problem: ScheduleProblem) -> Schedule:
    """Tasks by the mean of their optimistic costs, each where its end and what must come after it are least together."""
    table = optimistic_costs(problem)
    rank = [sum(row.values()) / len(row) for row in table]
    return insert(problem, by_readiness(problem, rank), table, "PEFT")


def cpop(problem: ScheduleProblem) -> Schedule:
    """Tasks by the longest path through them; those of the critical path on the device that runs all of it soonest.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    up, down = upward_ranks(problem), downward_ranks(problem)
    length = [upward + other for upward, other in zip(up, down, strict=True)]
    path, longest = [], max(length, default=0.0)
    ahead: Sequence[int] = [task for task in range(len(problem)) if not problem.graph.predecessors[task]]
    while ahead:
        task = max(ahead, key=lambda candidate: (length[candidate], -candidate))
        if length[task] < longest * (1.0 - SLACK):
            break
        path.append(task)
        ahead = problem.graph.successors[task]
    totals = {
        device: sum(_fastest(problem, task)[device].ms for task in path)
        for device in problem.cores
        if all(device in problem.times[task] for task in path)
    }
    only = {task: min(totals, key=totals.__getitem__) for task in path} if totals else {}
    nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
    return insert(problem, by_readiness(problem, length), nothing, "CPOP", only)


def downward_ranks(problem: ScheduleProblem) -> list[float]:
    """For each task the longest way from the begin to its start, by mean times and transfers."""
    ranks = [0.0] * len(problem)
    for task in range(len(problem)):
        for source in problem.graph.predecessors[task]:
            fastest = _fastest(problem, source).values()
            mean = sum(allotment.ms for allotment in fastest) / len(fastest)
            ranks[task] = max(ranks[task], ranks[source] + mean + mean_delay(problem, source, task))
    return ranks


def by_readiness(problem: ScheduleProblem, rank: Sequence[float]) -> list[int]:
    """Tasks behind those that they read from, the highest rank first among those that could be next."""
    graph, waiting = problem.graph, [len(sources) for sources in problem.graph.predecessors]
    ready = [(-rank[task], task) for task in range(len(problem)) if not waiting[task]]
    heapq.heapify(ready)
    order = []
    while ready:
        task = heapq.heappop(ready)[1]
        order.append(task)
        for after in graph.successors[task]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, (-rank[after], after))
    return order


def upward_ranks(problem: ScheduleProblem) -> list[float]:
    """For each task its mean time over the devices, plus the longest such way on to the end, mean transfers included."""
    ranks = [0.0] * len(problem)
    for task in reversed(range(len(problem))):
        fastest = _fastest(problem, task).values()
        after = (
            mean_delay(problem, task, successor) + ranks[successor] for successor in problem.graph.successors[task]
        )
        ranks[task] = sum(allotment.ms for allotment in fastest) / len(fastest) + max(after, default=0.0)
    return ranks


def optimistic_costs(problem: ScheduleProblem) -> list[Mapping[str, float]]:
    """For each task and device: the longest way, in ms, from the end of the task there to the end of all, where every task
    after it has the device that is best for it, and nothing ever waits."""
    table: list[Mapping[str, float]] = [{} for _ in range(len(problem))]
    for task in reversed(range(len(problem))):
        row = {}
        delays = {after: mean_delay(problem, task, after) for after in problem.graph.successors[task]}
        for device in problem.times[task]:
            row[device] = max(
                (
                    min(
                        table[after][there] + allotment.ms + (0.0 if there == device else delays[after])
                        for there, allotment in _fastest(problem, after).items()
                    )
                    for after in delays
                ),
                default=0.0,
            )
        table[task] = row
    return table


def _fastest(problem: ScheduleProblem, task: int) -> dict[str, Allotment]:
    """By device; of a device, later allotments are faster."""
    return {allotment.device: allotment for allotment in problem.allotments[task]}


def mean_delay(problem: ScheduleProblem, source: int, target: int) -> float:
    """Milliseconds of a transfer, over the pairs of different devices."""
    pairs = [(core, other) for core in problem.cores for other in problem.cores if core != other]
    size = problem.moved_bytes[source, target]
    return sum(problem.transfer(device, other, size) for device, other in pairs) / len(pairs) if pairs else 0.0


def insert(
    problem: ScheduleProblem,
    order: Sequence[int],
    ahead: Sequence[Mapping[str, float]],
    method: str,
    only: Mapping[int, str] | None = None,
) -> Schedule:
    """Tasks in their order into the gaps of the cores, where the end plus what lies `ahead` of a device is least.

    Args:
        problem: the problem.
        order: of the tasks, behind those that they read from.
        ahead: for each task, by device.
        method: the name of the schedule.
        only: devices of some tasks; if there is no room left, another one is taken.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    room, wanted = Room(problem), only or {}
    busy: dict[tuple[str, int], list[tuple[float, float]]] = {
        (device, lane): [] for device, count in problem.cores.items() for lane in range(count)
    }
    intervals: dict[int, Interval] = {}
    for task in order:
        best: tuple[float, int, Interval] | None = None
        able = room.for_task(task)
        for allotment in able:
            if wanted.get(task, allotment.device) != allotment.device and any(
                other.device == wanted[task] for other in able
            ):
                continue
            ready = max(
                (
                    intervals[source].end_ms + problem.delay(source, task, intervals[source].device, allotment.device)
                    for source in problem.graph.predecessors[task]
                ),
                default=0.0,
            )
            interval = _earliest(busy, problem.cores[allotment.device], allotment, ready)
            worth = (interval.end_ms + ahead[task][allotment.device], allotment.cores)
            if best is None or worth < best[:2]:
                best = (*worth, interval)
        assert best is not None
        intervals[task] = best[2]
        room.take(task, best[2].device)
        for lane in best[2].lanes:
            insort(busy[best[2].device, lane], (best[2].start_ms, best[2].end_ms))
    return Schedule(tuple(intervals[task] for task in range(len(problem))), method)


def _earliest(
    busy: Mapping[tuple[str, int], Sequence[tuple[float, float]]], count: int, one: Allotment, ready: float
) -> Interval:
    """The first time from `ready` on at which enough cores are free for as long as it takes.

    What a core does is sorted and does not overlap, so that of all that ends after a time the first one is the one that disturbs.
    """
    rows = [busy[one.device, lane] for lane in range(count)]
    ends = {end for row in rows for _, end in row[_after(row, ready) :]}
    for start in sorted({ready, *ends}):
        end = start + one.ms
        firsts = [(row, _after(row, start)) for row in rows]
        lanes = [lane for lane, (row, first) in enumerate(firsts) if first == len(row) or row[first][0] >= end]
        if len(lanes) >= one.cores:
            return Interval(one.device, tuple(lanes[: one.cores]), start, end)
    raise AssertionError("after the last end all cores are free")


def _after(row: Sequence[tuple[float, float]], time_ms: float) -> int:
    """The place of the first interval that ends after a time."""
    return bisect_right(row, time_ms, key=itemgetter(1))
