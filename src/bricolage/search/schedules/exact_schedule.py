"""The shortest schedule of up to some twenty tasks: bounded dynamic programming over starts in the order of time.

A shortest schedule may be taken to start its tasks one after the other in the order of time, each as early as that allows. So a
state is the set of tasks that have started, how long each core is still busy, and when what the other tasks wait for arrives at
each device. States are visited in layers, by how many tasks have started; of two with the same tasks, the one that is nowhere
later suffices, and what cannot end before the best schedule known is left (`LowerBounds`).

A layer that is wider than allowed keeps the most promising states: a beam search, which finds good schedules. Widths grow until
nothing had to be dropped, which proves that there is nothing shorter (the widening of anytime beam searches; Bautista and
Pereira, "A dynamic programming based heuristic for the assembly line balancing problem", EJOR 2009, prune layers alike). Layers
are arrays, a state a row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from bricolage.search.devices.list_placement import heft, peft
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.lower_bounds import LowerBounds, States
from bricolage.search.schedules.moldable import cpa, cpr
from bricolage.search.schedules.schedule import SLACK, Interval, Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem

MOST_TASKS = 62
"""Of which sets are numbers of 64 bits."""
_FIRST_WIDTH, _WIDER = 64, 16
_CHUNK = 4096
"""States that are followed at a time, to bound the memory."""
_LEADERS = 48
"""States of a set of tasks with which the others are compared. More would only prune more."""


@dataclass(frozen=True)
class ExactResult:
    """The best schedule found; `proven` where no other is shorter by more than rounding."""

    schedule: Schedule
    proven: bool
    nodes: int
    """States followed, over all widths."""
    lower_ms: float
    """No schedule is shorter."""


@dataclass(frozen=True)
class _Step:
    """How a layer's states came about."""

    parent: np.ndarray
    """Row in the layer before."""
    move: np.ndarray
    """Index of the task and allotment."""
    start: np.ndarray


class _OutOfTime(Exception):
    pass


class _Search:
    def __init__(self, problem: ScheduleProblem, best: Schedule, until: float) -> None:
        self.problem, self.best, self.until = problem, best, until
        self.floor = LowerBounds(problem)
        self.moves = [(task, allotment) for task, mine in enumerate(problem.allotments) for allotment in mine]
        self.alike = _alike(problem)
        self.nodes = 0

    @property
    def limit(self) -> float:
        """Only what ends before it is of use."""
        return self.best.makespan_ms * (1.0 - SLACK)

    def walk(self, width: int) -> float:
        """All layers with at most a number of states each. Returns what the states that were dropped cannot end before."""
        dropped = np.inf
        states, steps = self.floor.root(), []
        for _ in range(len(self.problem)):
            states, step = self._next(states)
            if not len(states):
                return dropped
            if len(states) > width:
                order = np.argsort(states.bound, kind="stable")
                dropped = min(dropped, float(states.bound[order[width]]))
                states, step = states.take(order[:width]), _take_rows(step, order[:width])
            steps.append(step)
        end = states.free.max(axis=1)
        row = int(end.argmin())
        if end[row] < self.limit:
            self.best = self._schedule(steps, row)
        return dropped

    def _next(self, states: States) -> tuple[States, _Step]:
        """The states with one more task, each with its parent and the move."""
        batches: list[tuple[States, _Step]] = []
        for begin in range(0, len(states), _CHUNK):
            if time.monotonic() > self.until:
                raise _OutOfTime
            chunk = states.take(np.arange(begin, min(begin + _CHUNK, len(states))))
            self.nodes += len(chunk)
            extensions = [self._extend_states(chunk, index, begin) for index in range(len(self.moves))]
            extensions = [extension for extension in extensions if len(extension[0])]
            if extensions:
                batches.append(self._prune_states(extensions))
        if not batches:
            return states.take(np.empty(0, np.intp)), _Step(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))
        return self._prune_states(batches, again=len(batches) > 1)

    def _extend_states(self, states: States, index: int, begin: int) -> tuple[States, _Step]:
        task, allotment = self.moves[index]
        floor = self.floor
        rows = np.flatnonzero(floor.startable(states, task) & self._canonical(states, task))
        start = floor.start(states, rows, task, allotment)
        keep = start + allotment.ms + floor.after(task, allotment.device) < self.limit
        rows, start = rows[keep], start[keep]
        return floor.started(states, rows, task, allotment, start), _Step(
            rows + begin, np.full(len(rows), index, np.intp), start
        )

    def _canonical(self, states: States, task: int) -> np.ndarray:
        """Tasks that do not differ start by number."""
        before = self.alike[task]
        return (
            np.ones(len(states), bool)
            if before < 0
            else (states.tasks >> np.uint64(before) & np.uint64(1)).astype(bool)
        )

    def _prune_states(self, made: list[tuple[States, _Step]], again: bool = True) -> tuple[States, _Step]:
        """What may become the shortest schedule and is not later than another state of the same tasks."""
        states = States.joined([group for group, _ in made])
        step = _Step(
            *(np.concatenate(columns) for columns in zip(*((s.parent, s.move, s.start) for _, s in made), strict=True))
        )
        if not again:
            return states, step
        keep = np.flatnonzero(self.floor.bounded(states, self.limit))
        states, step = states.take(keep), _take_rows(step, keep)
        keep = _find_undominated(states)
        return states.take(keep), _take_rows(step, keep)

    def _schedule(self, steps: list[_Step], row: int) -> Schedule:
        starts: list[tuple[float, int]] = []
        for step in reversed(steps):
            starts.append((float(step.start[row]), int(step.move[row])))
            row = int(step.parent[row])
        intervals: dict[int, Interval] = {}
        free = {(device, lane): 0.0 for device, count in self.problem.cores.items() for lane in range(count)}
        for start, index in reversed(starts):
            task, allotment = self.moves[index]
            idle = sorted((end, lane) for (device, lane), end in free.items() if device == allotment.device)[
                : allotment.cores
            ]
            lanes = tuple(sorted(lane for _, lane in idle))
            intervals[task] = Interval(allotment.device, lanes, start, start + allotment.ms)
            free |= {(allotment.device, lane): start + allotment.ms for lane in lanes}
        return Schedule(tuple(intervals[task] for task in range(len(self.problem))), "exact")


def _take_rows(step: _Step, rows: np.ndarray) -> _Step:
    return _Step(step.parent[rows], step.move[rows], step.start[rows])


def _alike(problem: ScheduleProblem) -> list[int]:
    """For each task the last one before it that differs from it in nothing, or -1."""
    latest: dict[object, int] = {}
    twins = []
    graph, moved = problem.graph, problem.moved_bytes
    for task in range(len(problem)):
        key = (
            tuple((predecessor, moved[predecessor, task]) for predecessor in graph.predecessors[task]),
            tuple((successor, moved[task, successor]) for successor in graph.successors[task]),
            problem.allotments[task],
        )
        twins.append(latest.get(key, -1))
        latest[key] = task
    return twins


def _find_undominated(states: States) -> np.ndarray:
    """Rows that are somewhere earlier than each of the first states, by promise, of the same tasks."""
    vector = states.vector()
    order = np.lexsort((vector.sum(axis=1), states.tasks))
    alive = np.ones(len(order), bool)
    tasks, vector = states.tasks[order], vector[order]
    first = np.flatnonzero(np.r_[True, tasks[1:] != tasks[:-1]])
    group = np.cumsum(np.r_[False, tasks[1:] != tasks[:-1]])
    leader = first.copy()
    ends = np.r_[first[1:], len(order)]
    candidates = np.arange(len(order))
    for _ in range(_LEADERS):
        # Only rows behind their group's leader can still be dominated by it: sums ascend.
        candidates = candidates[alive[candidates] & (candidates > leader[group[candidates]])]
        if not len(candidates):
            break
        mine = leader[group[candidates]]
        beaten = (vector[mine] <= vector[candidates]).all(axis=1)
        alive[candidates[beaten]] = False
        left = candidates[~beaten]
        leader = ends.copy()  # groups without another candidate have none to be compared with
        np.minimum.at(leader, group[left], left)
        candidates = left
    return np.sort(order[alive])


def shortest_schedule(
    problem: ScheduleProblem, *, most_nodes: int = 200_000, time_limit_s: float = 60.0
) -> ExactResult:
    """The shortest schedule over all devices and counts of cores, or the best found within the limits. Of more than `MOST_TASKS`
    tasks it is what the heuristics find."""
    fastest = [min(mine, key=lambda allotment: (allotment.ms, allotment.cores)) for mine in problem.allotments]
    narrow = [min(mine, key=lambda allotment: (allotment.area, allotment.ms)) for mine in problem.allotments]
    ways = [heft(problem), peft(problem), list_schedule(problem, fastest), list_schedule(problem, narrow)]
    if len(problem.cores) == 1:
        ways += [cpa(problem), cpr(problem)]
    first = min(ways, key=lambda way: way.makespan_ms)
    lower = lower_bound(problem)
    if first.makespan_ms <= lower * (1.0 + SLACK) or len(problem) > MOST_TASKS:
        proven = first.makespan_ms <= lower * (1.0 + SLACK)
        return ExactResult(Schedule(first.intervals, "exact"), proven, 0, first.makespan_ms if proven else lower)
    search = _Search(problem, first, time.monotonic() + time_limit_s)
    width, proven = _FIRST_WIDTH, False
    try:
        while True:
            allowed = max(1, (most_nodes - search.nodes) // len(problem))
            dropped = search.walk(min(width, allowed))
            lower = max(lower, min(dropped, search.best.makespan_ms))
            proven = dropped >= search.limit
            if proven or allowed <= width:
                break
            width *= _WIDER
    except _OutOfTime:
        pass
    best = search.best
    return ExactResult(Schedule(best.intervals, "exact"), proven, search.nodes, best.makespan_ms if proven else lower)
