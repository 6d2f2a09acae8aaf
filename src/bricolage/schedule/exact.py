"""The shortest schedule of up to some twenty tasks: branch and bound over starts in the order of time.

A shortest schedule may be taken to start its tasks one after the other in the order of time, each as early as that allows. So a
state is the set of tasks that have started, how long each core is still busy, and when results arrive that others wait for; of two
states with the same tasks, the one that is nowhere later suffices.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bricolage.schedule.bounds import lower_bound
from bricolage.schedule.heterogeneous import heft
from bricolage.schedule.lists import list_schedule
from bricolage.schedule.moldable import cpa, cpr
from bricolage.schedule.problem import Allotment, ScheduleProblem, bottom_levels
from bricolage.schedule.schedule import SLACK, Interval, Schedule


@dataclass(frozen=True)
class ExactResult:
    """The best schedule found; `proven` where no other is shorter by more than rounding."""

    schedule: Schedule
    proven: bool
    nodes: int
    """States looked at."""


@dataclass(frozen=True)
class _State:
    started: int
    now: float
    free: tuple[tuple[float, ...], ...]
    """By device: when each core is free, ascending, not before `now`."""
    ends: tuple[tuple[int, str, float], ...]
    """Tasks of whose results others wait: number, device, end."""
    area: float
    """Least cores × ms of what has not started."""


class _Search:
    def __init__(self, problem: ScheduleProblem, best: Schedule, most_nodes: int, time_limit_s: float) -> None:
        self.problem = problem
        self.devices = tuple(problem.cores)
        self.best, self.most = best, most_nodes
        self.until = time.monotonic() + time_limit_s
        self.nodes = 0
        self.tails = bottom_levels(problem.graph, problem.shortest_ms)
        self.urgent = sorted(range(len(problem)), key=lambda task: -self.tails[task])
        self.areas = [min(one.area for one in mine) for mine in problem.allotments]
        self.cores = sum(problem.cores.values())
        self.seen: dict[tuple[object, ...], list[tuple[float, ...]]] = {}
        self.intervals: dict[int, Interval] = {}
        self.complete = True

    @property
    def limit(self) -> float:
        """Only what ends before it is of use."""
        return self.best.makespan_ms * (1.0 - SLACK)

    def explore(self, state: _State) -> None:
        self.nodes += 1
        if self.nodes > self.most or (self.nodes % 256 == 0 and time.monotonic() > self.until):
            self.complete = False
        if not self.complete:
            return
        if state.started == self.problem.graph.everything:
            ordered = tuple(self.intervals[task] for task in range(len(self.problem)))
            self.best = Schedule(ordered, "exact")
            return
        if self._dominated(state):
            return
        moves = []
        latest = max((interval.end_ms for interval in self.intervals.values()), default=0.0)
        for task in range(len(self.problem)):
            sources = self.problem.graph.predecessors[task]
            if state.started >> task & 1 or any(not state.started >> source & 1 for source in sources):
                continue
            for one in self.problem.allotments[task]:
                start = max(self._ready(task, one), state.free[self.devices.index(one.device)][one.cores - 1])
                if self._bound(state, task, one, start, latest) < self.limit:
                    moves.append((start, -self.tails[task], one.ms, task, one))
        for start, _, _, task, one in sorted(moves, key=lambda move: move[:4]):
            if self._bound(state, task, one, start, latest) < self.limit:
                following = self._start(state, task, one, start)
                self.explore(following)
                del self.intervals[task]

    def _ready(self, task: int, one: Allotment) -> float:
        return max(
            (
                self.intervals[source].end_ms
                + self.problem.delay(source, task, self.intervals[source].device, one.device)
                for source in self.problem.graph.predecessors[task]
            ),
            default=0.0,
        )

    def _bound(self, state: _State, task: int, one: Allotment, start: float, latest: float) -> float:
        """No schedule that goes on so ends sooner: nothing else starts before `start`."""
        path = start + one.ms + self.tails[task] - self.problem.shortest_ms[task]
        rest = 0.0
        for other in self.urgent:
            if not state.started >> other & 1 and other != task:
                rest = start + self.tails[other]
                break
        busy = sum(free - start for row in state.free for free in row if free > start)
        volume = start + (busy + state.area - self.areas[task] + one.area) / self.cores
        return max(path, rest, volume, latest)

    def _start(self, state: _State, task: int, one: Allotment, start: float) -> _State:
        index = self.devices.index(one.device)
        end = start + one.ms
        used = [self.intervals[other] for other in self.intervals if self.intervals[other].device == one.device]
        busy = {lane for other in used if other.end_ms > start for lane in other.lanes}
        lanes = [lane for lane in range(self.problem.cores[one.device]) if lane not in busy]
        self.intervals[task] = Interval(one.device, tuple(lanes[: one.cores]), start, end)
        started = state.started | (1 << task)
        free = []
        for place, row in enumerate(state.free):
            now = [max(value, start) for value in row]
            if place == index:
                now[: one.cores] = [end] * one.cores
            free.append(tuple(sorted(now)))
        waits = tuple(
            (number, interval.device, interval.end_ms)
            for number, interval in sorted(self.intervals.items())
            if any(not started >> after & 1 for after in self.problem.graph.successors[number])
        )
        return _State(started, start, tuple(free), waits, state.area - self.areas[task])

    def _dominated(self, state: _State) -> bool:
        """Whether a state seen before is nowhere later; otherwise this one is remembered."""
        key = (state.started, tuple((number, device) for number, device, _ in state.ends))
        latest = max((interval.end_ms for interval in self.intervals.values()), default=0.0)
        arrivals = tuple(end if len(self.devices) > 1 else max(end, state.now) for _, _, end in state.ends)
        vector = (state.now, latest, *(value for row in state.free for value in row), *arrivals)
        kept = self.seen.setdefault(key, [])
        if any(all(a <= b for a, b in zip(other, vector, strict=True)) for other in kept):
            return True
        kept[:] = [other for other in kept if not all(a <= b for a, b in zip(vector, other, strict=True))]
        kept.append(vector)
        return False


def exact(problem: ScheduleProblem, *, most_nodes: int = 200_000, time_limit_s: float = 60.0) -> ExactResult:
    """The shortest schedule over all devices and counts of cores, or the best found within the limits."""
    fastest = [min(mine, key=lambda one: (one.ms, one.cores)) for mine in problem.allotments]
    narrow = [min(mine, key=lambda one: (one.area, one.ms)) for mine in problem.allotments]
    ways = [heft(problem), list_schedule(problem, fastest), list_schedule(problem, narrow)]
    if len(problem.cores) == 1:
        ways += [cpa(problem), cpr(problem)]
    first = min(ways, key=lambda one: one.makespan_ms)
    if first.makespan_ms <= lower_bound(problem) * (1.0 + SLACK):
        return ExactResult(Schedule(first.intervals, "exact"), True, 0)
    search = _Search(problem, first, most_nodes, time_limit_s)
    free = tuple((0.0,) * problem.cores[device] for device in search.devices)
    search.explore(_State(0, 0.0, free, (), sum(search.areas)))
    return ExactResult(Schedule(search.best.intervals, "exact"), search.complete, search.nodes)
