"""Stages: tasks that run at the same time, then a barrier. The best row of stages, and the greedy one, on one kind of core."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bricolage.search.schedules.ios_endings import IosEndings
from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.bits import members
from bricolage.work.work_graph import WorkGraph

StageCost: TypeAlias = Callable[[tuple[int, ...]], float]
"""Milliseconds of a stage, from its groups (bit-sets of tasks)."""


@dataclass(frozen=True)
class StageSearch:
    """What the dynamic programme found. States are sets of tasks that are still to be done; transitions their endings."""

    stages: tuple[tuple[int, ...], ...]
    """In the order in which they run; each its groups."""
    cost_ms: float
    states: int
    transitions: int
    schedules: int
    """Rows of stages that there are."""


def best_stages(
    graph: WorkGraph, cost: StageCost, *, largest_group: int | None = None, most_groups: int | None = None
) -> StageSearch:
    """The cheapest row of stages: cost[S] = min over endings E of S of cost[S - E] + the cost of stage E (IOS, MLSys 2021).

    `cost` is asked once for each ending. IOS prunes with groups of 3 tasks and 8 groups at most; see `Endings`. Exponential in
    the width of the graph.

    Raises:
        ValueError: no row of stages keeps to the limits.
    """
    endings = IosEndings(graph, largest_group, most_groups)
    costs: dict[int, float] = {}
    optima: dict[int, tuple[float, tuple[int, ...], int]] = {0: (0.0, (), 0)}
    ways: dict[int, int] = {0: 1}
    transitions = 0
    stack = [graph.everything]
    options: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
    while stack:
        state = stack[-1]
        if state in optima:
            stack.pop()
            continue
        if state not in options:
            options[state] = list(endings.of(state))
            transitions += len(options[state])
            missing = {state & ~ending for ending, _ in options[state]} - optima.keys()
            if missing:
                stack += missing
                continue
        stack.pop()
        best: tuple[float, tuple[int, ...], int] | None = None
        total = 0
        for ending, groups in options.pop(state):
            rest = state & ~ending
            total += ways[rest]
            if ending not in costs:
                costs[ending] = cost(groups)
            price = optima[rest][0] + costs[ending]
            if best is None or price < best[0]:
                best = (price, groups, rest)
        if best is None:
            raise ValueError("no row of stages keeps to the limits")
        optima[state], ways[state] = best, total
    stages = []
    state = graph.everything
    while state:
        _, chosen, state = optima[state]
        stages.append(chosen)
    everything = graph.everything
    return StageSearch(tuple(reversed(stages)), optima[everything][0], len(optima) - 1, transitions, ways[everything])


@dataclass(frozen=True)
class _Job:
    """A group of a stage: its tasks one after the other."""

    tasks: tuple[int, ...]
    ms: tuple[float, ...]
    """By cores, from one."""


class StageCosts:
    """Stages on the cores of one device: each group has cores of its own, or waits for those of another."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._problem = problem
        self._cores = problem.cores[problem.device]
        self._jobs: dict[int, _Job] = {}

    def __call__(self, groups: tuple[int, ...]) -> float:
        """Milliseconds of a stage; see `StageCost`."""
        return max((start + ms for _, _, start, ms in self.layout(groups)), default=0.0)

    def layout(self, groups: Sequence[int]) -> list[tuple[_Job, tuple[int, ...], float, float]]:
        """For each group its cores, start and duration in ms: cores go to the group that ends last, as long as that helps."""
        jobs = [self._job(group) for group in groups]
        share = [1] * len(jobs)
        best = self._pack_jobs(jobs, share)
        while True:
            last = max(range(len(jobs)), key=lambda index: best[index][2] + best[index][3])
            if share[last] == self._cores:
                return best
            share[last] += 1
            other = self._pack_jobs(jobs, share)
            if _end(other) >= _end(best):
                return best
            best = other

    def _pack_jobs(
        self, jobs: Sequence[_Job], share: Sequence[int]
    ) -> list[tuple[_Job, tuple[int, ...], float, float]]:
        """The longest first, each on the cores that are free first."""
        free = [0.0] * self._cores
        placed: dict[int, tuple[_Job, tuple[int, ...], float, float]] = {}
        for index in sorted(range(len(jobs)), key=lambda number: (-jobs[number].ms[share[number] - 1], number)):
            lanes = sorted(range(self._cores), key=lambda lane: (free[lane], lane))[: share[index]]
            start, ms = max(free[lane] for lane in lanes), jobs[index].ms[share[index] - 1]
            for lane in lanes:
                free[lane] = start + ms
            placed[index] = (jobs[index], tuple(sorted(lanes)), start, ms)
        return [placed[index] for index in range(len(jobs))]

    def _job(self, group: int) -> _Job:
        if group not in self._jobs:
            tasks, device = tuple(members(group)), self._problem.device
            counts = range(1, self._cores + 1)
            times = (sum(self._problem.ms(task, device, cores) for task in tasks) for cores in counts)
            self._jobs[group] = _Job(tasks, tuple(times))
        return self._jobs[group]


def _end(placed: Sequence[tuple[_Job, tuple[int, ...], float, float]]) -> float:
    return max(start + ms for _, _, start, ms in placed)


def ios(problem: ScheduleProblem, *, largest_group: int | None = 3, most_groups: int | None = 8) -> Schedule:
    """The schedule of the best stages, with IOS's pruning unless told otherwise."""
    costs = StageCosts(problem)
    stage_search = best_stages(problem.graph, costs, largest_group=largest_group, most_groups=most_groups)
    return _schedule_stages(problem, costs, stage_search.stages, "IOS")


def wavefront(problem: ScheduleProblem) -> Schedule:
    """Every stage runs all that is ready: IOS's greedy baseline."""
    graph, done = problem.graph, 0
    stages = []
    while done != graph.everything:
        ready = [
            task
            for task in members(graph.everything & ~done)
            if all(done >> source & 1 for source in graph.predecessors[task])
        ]
        stages.append(tuple(1 << task for task in ready))
        done |= sum(1 << task for task in ready)
    return _schedule_stages(problem, StageCosts(problem), stages, "wavefront")


def _schedule_stages(
    problem: ScheduleProblem, costs: StageCosts, stages: Sequence[tuple[int, ...]], method: str
) -> Schedule:
    intervals: dict[int, Interval] = {}
    now = 0.0
    for groups in stages:
        end = now
        for job, lanes, start, _ in costs.layout(groups):
            at = now + start
            for task in job.tasks:
                ms = problem.ms(task, problem.device, len(lanes))
                intervals[task] = Interval(problem.device, lanes, at, at + ms)
                at += ms
            end = max(end, at)
        now = end
    return Schedule(tuple(intervals[task] for task in range(len(problem))), method)
