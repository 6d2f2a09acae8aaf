"""A schedule as data, and whether it can be run."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from bricolage.search.schedules.scheduling_problem import ScheduleProblem

SLACK = 1e-9
"""Relative to the makespan: differences of sums of floats below it are none."""


@dataclass(frozen=True)
class Interval:
    """When a task runs, in ms from the start, and on which cores (numbers from 0) of a device."""

    device: str
    lanes: tuple[int, ...]
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Schedule:
    """For each task its interval; `method` says how it was found."""

    intervals: tuple[Interval, ...]
    method: str = ""

    @property
    def makespan_ms(self) -> float:
        """From the start to the end of the last task."""
        return max((interval.end_ms for interval in self.intervals), default=0.0)

    def order(self) -> tuple[int, ...]:
        """Tasks by their start; of those that start together, by number."""
        return tuple(sorted(range(len(self.intervals)), key=lambda task: (self.intervals[task].start_ms, task)))


@dataclass(frozen=True)
class Move:
    """What a task needs of another is brought to its device, in ms from the start."""

    source: int
    target: int
    from_device: str
    to_device: str
    start_ms: float
    end_ms: float


def moves(problem: ScheduleProblem, schedule: Schedule) -> tuple[Move, ...]:
    """Those of a schedule that take time, each as soon as its source ends, by their start."""
    transfers = []
    for task, interval in enumerate(schedule.intervals):
        for source in problem.graph.predecessors[task]:
            before = schedule.intervals[source]
            delay = problem.delay(source, task, before.device, interval.device)
            if delay > 0.0:
                transfers.append(
                    Move(source, task, before.device, interval.device, before.end_ms, before.end_ms + delay)
                )
    return tuple(sorted(transfers, key=lambda move: (move.start_ms, move.source, move.target)))


def check(problem: ScheduleProblem, schedule: Schedule) -> None:
    """Whether a schedule can be run as it stands.

    Raises:
        ValueError: a task is missing, runs on cores that are not there or for another time than it takes, two overlap on a
            core, one starts before what it reads has arrived, tasks of a colour are apart, or a device's
            memory does not hold its tasks. The message says which.
    """
    intervals, slack = schedule.intervals, SLACK * max(schedule.makespan_ms, 1e-300)
    if len(intervals) != len(problem):
        raise ValueError(f"{len(problem)} tasks, and intervals of {len(intervals)}")
    lanes: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    for task, interval in enumerate(intervals):
        if interval.device not in problem.times[task]:
            raise ValueError(f"task {task} does not run on '{interval.device}'")
        if len(set(interval.lanes)) != len(interval.lanes) or not interval.lanes:
            raise ValueError(f"task {task} has no cores, or one twice")
        if not all(0 <= lane < problem.cores[interval.device] for lane in interval.lanes):
            raise ValueError(f"task {task} runs on cores that '{interval.device}' does not have")
        takes = problem.ms(task, interval.device, len(interval.lanes))
        if interval.start_ms < 0.0 or abs(interval.end_ms - interval.start_ms - takes) > slack:
            raise ValueError(f"task {task} takes {takes} ms, not from {interval.start_ms} to {interval.end_ms}")
        for source in problem.graph.predecessors[task]:
            before = intervals[source]
            arrived = before.end_ms + problem.delay(source, task, before.device, interval.device)
            if interval.start_ms < arrived - slack:
                raise ValueError(
                    f"task {task} starts at {interval.start_ms}, before the results of task {source} have come"
                )
        for lane in interval.lanes:
            lanes.setdefault((interval.device, lane), []).append((interval.start_ms, interval.end_ms, task))
    for group in problem.together:
        if len({intervals[task].device for task in group}) > 1:
            raise ValueError(f"tasks {', '.join(map(str, group))} are of one colour, and on several devices")
    for device, most in problem.memory.items():
        taken = sum(
            size for size, interval in zip(problem.task_bytes, intervals, strict=False) if interval.device == device
        )
        if taken > most:
            raise ValueError(f"tasks on '{device}' take {taken} bytes, and it has {most}")
    for (device, lane), busy in lanes.items():
        busy.sort()
        for (_, end, first), (start, _, second) in itertools.pairwise(busy):
            if start < end - slack:
                raise ValueError(f"tasks {first} and {second} overlap on core {lane} of '{device}'")
