"""What no placement on unlike devices goes below: all work in fractions over the devices, within their memories.

The linear relaxation of unrelated parallel machines (Lenstra, Shmoys and Tardos, Mathematical Programming 46, 1990) without what
moves. It bounds the busiest device, and so the end of one sample too.
"""

from __future__ import annotations

import math
from collections import Counter

from bricolage.search.placement.linear_rows import LinearRows
from bricolage.search.schedules.scheduling_problem import ScheduleProblem

_SLACK = 1e-7
"""Relative; HiGHS accepts rows that are missed by as much."""


def fractional_load(problem: ScheduleProblem) -> float:
    """Milliseconds that some device is busy at least, however tasks are placed; infinite where memories hold them in no way.

    Tasks of a colour are one piece of work. Devices with the same times and memory are one with as many cores.
    """
    kinds: Counter[tuple[object, ...]] = Counter()
    device_of: dict[tuple[object, ...], str] = {}
    for device, cores in problem.cores.items():
        rows_of_device = tuple(tuple(able.get(device, ())) for able in problem.times)
        kind = (cores, problem.memory.get(device), rows_of_device)
        kinds[kind] += 1
        device_of.setdefault(kind, device)
    area = [_areas(problem, task) for task in range(len(problem))]
    rows = LinearRows([1.0])
    ms: list[list[tuple[int, float]]] = [[] for _ in kinds]
    held: list[list[tuple[int, float]]] = [[] for _ in kinds]
    longest = 0.0
    for group in problem.together:
        able = [device for device in device_of.values() if all(device in area[task] for task in group)]
        if not able:
            return math.inf
        size = sum(problem.task_bytes[task] for task in group) if problem.task_bytes else 0
        columns = []
        for number, device in enumerate(device_of.values()):
            if device in able:
                columns.append(rows.new_column(0.0))
                ms[number].append((columns[-1], math.fsum(area[task][device] for task in group)))
                held[number].append((columns[-1], float(size)))
        longest = max(longest, min(math.fsum(area[task][device] for task in group) for device in able))
        rows.add([(column, 1.0) for column in columns], 1.0, 1.0)
    scale = longest or 1.0
    for number, (alike, device) in enumerate(device_of.items()):
        rows.add([(0, -kinds[alike]), *((column, value / scale) for column, value in ms[number])], -math.inf, 0.0)
        if (most := problem.memory.get(device, math.inf)) < math.inf:
            unit = most or 1.0
            entries = [(column, size / unit) for column, size in held[number]]
            rows.add(entries, -math.inf, kinds[alike] * (most / unit))
    count = len(rows.cost)
    result = rows.solve([0] * count, high=[math.inf] + [1.0] * (count - 1))
    if result.infeasible:
        return math.inf
    return max(longest, 0.0 if result.x is None or not result.optimal else float(result.x[0]) * scale) * (1.0 - _SLACK)


def _areas(problem: ScheduleProblem, task: int) -> dict[str, float]:
    """By device the milliseconds that a task keeps all of its cores busy at least."""
    areas: dict[str, float] = {}
    for allotment in problem.allotments[task]:
        busy = allotment.area / problem.cores[allotment.device]
        areas[allotment.device] = min(areas.get(allotment.device, math.inf), busy)
    return areas
