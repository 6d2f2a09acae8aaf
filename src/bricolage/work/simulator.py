"""The simulator: tasks that occupy resources one after another, and slow each other where they share something.

Its inputs are a placement of regions on devices (`work/timeline.py`), a schedule on cores (`search/schedules/simulate.py`), the
passes of a pipeline (`work/pipeline/table.py`), and a backward pass with the buckets of its gradients
(`train/predict/exchange.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work, or a transfer."""

    ms: float
    """When nothing slows it."""
    resources: tuple[Hashable, ...] = ()
    """What it occupies from its start to its end: a device, some of its cores, a link. What occupies nothing is not queued."""
    after: tuple[int, ...] = ()
    """Numbers of tasks that must have ended before."""


class Contention(Protocol):
    """How tasks slow each other while they run."""

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:
        """The speed of each running task, given by number: above 0; 1.0 where nothing slows it."""
        ...


@dataclass(frozen=True)
class TaskTimes:
    """For each task its start and its end, milliseconds from the begin."""

    starts: Sequence[float]
    ends: Sequence[float]


def simulate(
    tasks: Sequence[Task], order: Iterable[int] | None = None, contention: Contention | None = None
) -> TaskTimes:
    """When each task runs: as soon as all tasks that it comes after have ended, and those before it on each of its resources.

    Without contention that is one pass over the tasks; with it, one step for each task that ends.

    Args:
        tasks: with the numbers 0, 1, ...
        order: in which resources take the tasks that occupy any, by number; as they stand, by default. One order may serve all
            resources: only tasks that share one wait for each other.
        contention: how tasks that run at once slow each other; by default they do not.

    Raises:
        ValueError: tasks wait for each other in a circle.
    """
    waits = _waits(tasks, range(len(tasks)) if order is None else order)
    return _in_one_pass(tasks, waits) if contention is None else _simulate_contention(tasks, waits, contention)


def _waits(tasks: Sequence[Task], order: Iterable[int]) -> list[tuple[int, ...]]:
    """For each task those that must have ended before it starts."""
    waits = [task.after for task in tasks]
    before: dict[Hashable, int] = {}
    for number in order:
        for resource in tasks[number].resources:
            if resource in before:
                waits[number] = (*waits[number], before[resource])
            before[resource] = number
    return waits


def _in_one_pass(tasks: Sequence[Task], waits: Sequence[tuple[int, ...]]) -> TaskTimes:
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    for number in _executable(waits):
        starts[number] = start = max([ends[wait] for wait in waits[number]], default=0.0)
        ends[number] = start + tasks[number].ms
    return TaskTimes(starts, ends)


def _executable(waits: Sequence[tuple[int, ...]]) -> Iterable[int]:
    """Tasks behind those that they wait for; the order in which they stand, where it is one."""
    if all(dependency < number for number, dependencies in enumerate(waits) for dependency in dependencies):
        return range(len(waits))
    return TopologicalSorter(dict(enumerate(waits))).static_order()  # a circle is a CycleError, a ValueError


def _simulate_contention(tasks: Sequence[Task], waits: Sequence[tuple[int, ...]], contention: Contention) -> TaskTimes:
    """As in one pass, in steps from one end of a task to the next. A task's end is computed anew only when its speed changes, so
    that one that nothing slows ends exactly where the one pass has it."""
    starts, ends = [0.0] * len(tasks), [0.0] * len(tasks)
    sorter = TopologicalSorter(dict(enumerate(waits)))
    sorter.prepare()
    running: list[int] = []
    left, since, rate = [task.ms for task in tasks], [0.0] * len(tasks), [0.0] * len(tasks)
    now = 0.0
    while sorter.is_active():
        for number in sorter.get_ready():
            starts[number] = since[number] = now
            running.append(number)
        for number, speed in zip(running, contention.rates(tasks, running), strict=True):
            if speed != rate[number]:
                left[number] -= (now - since[number]) * rate[number]
                since[number], rate[number] = now, speed
                ends[number] = now + max(left[number], 0.0) / speed
        now = min(ends[number] for number in running)
        done = [number for number in running if ends[number] == now]
        running = [number for number in running if ends[number] != now]
        sorter.done(*done)
    return TaskTimes(starts, ends)
