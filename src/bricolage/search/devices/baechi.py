"""Placement under memory limits in one pass: m-TOPO, m-ETF and m-SCT. A task takes the whole of its device.

Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie and Gupta, "Baechi: Fast device placement of machine learning graphs", SoCC 2020. ETF is
"earliest task first" (Hwang, Chow, Anger and Lee, 1989), SCT "small communication times" (Hanen and Munier, 1995).
"""

from __future__ import annotations

import numpy as np

from bricolage.search.devices.memory_room import Room
from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem


def m_topo(problem: ScheduleProblem) -> Schedule:
    """Devices are filled one after another, in topological order, up to an equal share of all memory and the largest task.

    Where tasks take no memory, their shares are of time.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    passing = _Passing(problem)
    sizes = list(problem.task_bytes) if any(problem.task_bytes) else list(problem.shortest_ms)
    cap = sum(sizes) / len(problem.cores) + max(sizes, default=0)
    devices, filled = list(problem.cores), dict.fromkeys(problem.cores, 0.0)
    for task in range(len(problem)):
        if (settled := passing.room.settled(task)) is not None:
            filled[settled] += sizes[task]
            passing.run(task, settled)
            continue
        while len(devices) > 1 and (filled[devices[0]] + sizes[task] > cap or not _later(passing, task, devices[0])):
            devices.pop(0)
        able = {allotment.device for allotment in passing.room.for_task(task)}
        device = devices[0] if devices[0] in able else min(able, key=lambda candidate: filled[candidate])
        filled[device] += sizes[task]
        passing.run(task, device)
    return passing.schedule("m-TOPO")


def _later(passing: _Passing, task: int, device: str) -> bool:
    """Whether a device is not full: a task that it does not run at all is no reason to leave it."""
    return device not in passing.problem.times[task] or passing.room.fits(task, device)


def m_etf(problem: ScheduleProblem) -> Schedule:
    """Of all ready tasks and devices with room the pair that starts first.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    return _earliest_first(problem, {}, "m-ETF")


def m_sct(problem: ScheduleProblem) -> Schedule:
    """As m-ETF, but a device waits for the favourite child of what it ran last, unless another task is ready on all devices.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    return _earliest_first(problem, favourite_children(problem), "m-SCT")


def favourite_children(problem: ScheduleProblem) -> dict[int, int]:
    """By task the one behind it that is worth most on the same device, at most one each way: a linear programme, rounded at a half.

    Starts and the end of all are least, where a task's transfer to each child is paid in part, and one of them may be free.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    count, edges = len(problem), sorted(problem.moved_bytes)
    if not edges:
        return {}
    worst = [_worst_delay(problem, *edge) for edge in edges]
    ms = problem.shortest_ms
    rows: list[dict[int, float]] = []
    limits: list[float] = []
    for number, (source, target) in enumerate(edges):
        rows.append({source: 1.0, target: -1.0, count + number: worst[number]})
        limits.append(-ms[source])
    last = count + len(edges)
    for task in range(count):
        rows.append({task: 1.0, last: -1.0})
        limits.append(-ms[task])
        for side in (0, 1):
            mine = [count + number for number, edge in enumerate(edges) if edge[side] == task]
            if len(mine) > 1:
                rows.append(dict.fromkeys(mine, -1.0))
                limits.append(1.0 - len(mine))
    entries = [(row, column, value) for row, coefficients in enumerate(rows) for column, value in coefficients.items()]
    at_row, at_column, values = zip(*entries, strict=True)
    matrix = csr_array((values, (at_row, at_column)), shape=(len(rows), last + 1))
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    bounds = [(0.0, None)] * count + [(0.0, 1.0)] * len(edges) + [(0.0, None)]
    solved = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs")
    if not solved.success:
        return {}
    favourites: dict[int, int] = {}
    for number in sorted(range(len(edges)), key=lambda edge_number: (solved.x[count + edge_number], edge_number)):
        source, target = edges[number]
        # Rounding may leave several; the one that the programme wants most stays.
        if solved.x[count + number] < 0.5 and source not in favourites and target not in favourites.values():
            favourites[source] = target
    return favourites


def _worst_delay(problem: ScheduleProblem, source: int, target: int) -> float:
    return max(problem.delay(source, target, core, other) for core in problem.cores for other in problem.cores)


def allot_device(problem: ScheduleProblem, task: int, device: str) -> Allotment:
    """A task on all cores of a device."""
    cores = problem.cores[device]
    return Allotment(device, cores, problem.ms(task, device, cores))


class _Passing:
    """A schedule under construction: tasks behind those on their device, tensors behind those on their channels."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem, self.room = problem, Room(problem)
        self.free = dict.fromkeys(problem.cores, 0.0)
        self.last: dict[str, int] = {}
        self.intervals: dict[int, Interval] = {}
        self._sends, self._receives = dict.fromkeys(problem.cores, 0.0), dict.fromkeys(problem.cores, 0.0)
        self._there: dict[tuple[int, str, int], float] = {}

    def start(self, task: int, device: str) -> float:
        """When a task could start on a device."""
        return max(self.free[device], self.arrival(task, device))

    def arrival(self, task: int, device: str) -> float:
        """When all that it reads could be there."""
        return self._move(task, device, dict(self._sends), dict(self._receives), {})

    def run(self, task: int, device: str) -> None:
        """The next task of a device, as soon as it can start."""
        start = max(self.free[device], self._move(task, device, self._sends, self._receives, self._there))
        allotment = allot_device(self.problem, task, device)
        self.free[device] = start + allotment.ms
        self.last[device] = task
        self.room.take(task, device)
        self.intervals[task] = Interval(device, tuple(range(allotment.cores)), start, start + allotment.ms)

    def _move(
        self,
        task: int,
        device: str,
        sends: dict[str, float],
        receives: dict[str, float],
        there: dict[tuple[int, str, int], float],
    ) -> float:
        """Brings what a task reads: a device sends one tensor at a time, and receives one; what is there already stays."""
        ready = 0.0
        for source in sorted(
            self.problem.graph.predecessors[task], key=lambda predecessor: self.intervals[predecessor].end_ms
        ):
            before = self.intervals[source]
            if before.device == device:
                ready = max(ready, before.end_ms)
                continue
            key = (source, device, self.problem.moved_bytes[source, task])
            if key not in self._there and key not in there:
                delay = self.problem.delay(source, task, before.device, device)
                begin = max(before.end_ms, sends[before.device], receives[device]) if delay else before.end_ms
                there[key] = begin + delay
                if delay:
                    sends[before.device] = receives[device] = begin + delay
            ready = max(ready, there[key] if key in there else self._there[key])
        return ready

    def schedule(self, method: str) -> Schedule:
        """What came of it."""
        return Schedule(tuple(self.intervals[task] for task in range(len(self.problem))), method)


def _earliest_first(problem: ScheduleProblem, favourite: dict[int, int], method: str) -> Schedule:
    passing, graph = _Passing(problem), problem.graph
    waiting = [len(sources) for sources in graph.predecessors]
    ready = {task for task in range(len(problem)) if not waiting[task]}
    while ready:
        best: tuple[float, float, int, str] | None = None
        patient: tuple[float, float, int, str] | None = None
        for task in sorted(ready):
            devices = sorted({allotment.device for allotment in passing.room.for_task(task)})
            arrivals = {device: passing.arrival(task, device) for device in devices}
            for device in devices:
                start = max(passing.free[device], arrivals[device])
                candidate = (start, start + allot_device(problem, task, device).ms, task, device)
                best = candidate if best is None or candidate < best else best
                child = favourite.get(passing.last.get(device, -1), task)
                kept = child not in (task, *passing.intervals) and not max(arrivals.values()) <= passing.free[device]
                if not kept:
                    patient = candidate if patient is None or candidate < patient else patient
        chosen = patient or best
        assert chosen is not None
        _, _, task, device = chosen
        passing.run(task, device)
        ready.remove(task)
        for after in graph.successors[task]:
            waiting[after] -= 1
            if not waiting[after]:
                ready.add(after)
    return passing.schedule(method)
