"""What is to be scheduled: tasks of a work graph, their times on devices and cores, and what it takes to move between devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from bricolage.device.device import Device
from bricolage.work.cost import CostModel, Setting, Work
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph

Transfer: TypeAlias = Callable[[str, str, int], float]
"""Milliseconds to bring a number of bytes from one device to another; `device.Machine.move_ms` is one."""


TaskTimes: TypeAlias = Mapping[str, Sequence[float]]
"""By device: milliseconds on one core, on two, ...; the last holds for more, too."""


def task_times(works: Sequence[Work], devices: Sequence[Device], costs: CostModel) -> tuple[TaskTimes, ...]:
    """What tasks take on devices, by a model of costs; without the devices on which it does not know all of a task's times."""
    times: list[dict[str, list[float]]] = [{} for _ in works]
    for device in devices:
        rows = [costs.estimate(works, Setting(device, cores)) for cores in range(1, device.threads + 1)]
        for mine, row in zip(times, zip(*rows, strict=True), strict=True):
            row_ms = [estimate.ms for estimate in row if estimate is not None]
            if len(row_ms) == len(row):
                mine[device.name] = row_ms
    return tuple(times)


def shared_memory(source: str, target: str, size: int) -> float:  # noqa: ARG001 - the shape of a Transfer
    """Nothing has to be moved."""
    return 0.0


@dataclass(frozen=True)
class Allotment:
    """How a task may run: on a number of cores of a device, and the milliseconds that it then takes."""

    device: str
    cores: int
    ms: float

    @property
    def area(self) -> float:
        """Cores × milliseconds."""
        return self.cores * self.ms


@dataclass(frozen=True)
class ScheduleProblem:
    """Tasks are the operators of `graph`: edges are its tensors.

    Raises ValueError where a task has no device, a device no cores, or a time is negative or not finite.
    """

    graph: WorkGraph
    times: tuple[TaskTimes, ...]
    """For each task; one does not run on a device that is missing."""
    cores: Mapping[str, int]
    """Of each device."""
    transfer: Transfer = shared_memory
    """Between different devices; cores of one device share its memory."""
    task_bytes: tuple[int, ...] = ()
    """What each task takes of the memory of its device for good: weights, and what it keeps. Empty: nothing."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of devices; one that is missing holds everything."""
    colours: tuple[int, ...] = ()
    """Tasks of one colour go to one device, as those that share weights; a negative number is no colour. Empty: no task has one.
    Methods that place one task after another keep to them (`devices.memory_room.Room`), and `schedule.check` sees it."""

    def __post_init__(self) -> None:
        if len(self.times) != len(self.graph):
            raise ValueError(f"{len(self.graph)} tasks, and times of {len(self.times)}")
        if any(count < 1 for count in self.cores.values()):
            raise ValueError("a device has no cores")
        if self.task_bytes and len(self.task_bytes) != len(self.graph):
            raise ValueError(f"{len(self.graph)} tasks, and bytes of {len(self.task_bytes)}")
        if self.colours and len(self.colours) != len(self.graph):
            raise ValueError(f"{len(self.graph)} tasks, and colours of {len(self.colours)}")
        for task, able in enumerate(self.times):
            if not able or not set(able) <= set(self.cores):
                raise ValueError(f"task {task} runs on none of the devices, or on one that is not there")
            if any(not row or any(not 0.0 <= ms < math.inf for ms in row) for row in able.values()):
                raise ValueError(f"task {task} has no time, or one that is negative or not finite")

    def __len__(self) -> int:
        return len(self.graph)

    def ms(self, task: int, device: str, cores: int) -> float:
        """Milliseconds of a task on `cores` cores of a device."""
        row = self.times[task][device]
        return row[min(cores, len(row)) - 1]

    @cached_property
    def allotments(self) -> tuple[tuple[Allotment, ...], ...]:
        """For each task those that are not slower than one with fewer cores of the same device, by device and cores."""
        by_task = []
        for able in self.times:
            mine: list[Allotment] = []
            for device, row in able.items():
                best = float("inf")
                for cores, ms in enumerate(row[: self.cores[device]], 1):
                    if ms < best:
                        mine.append(Allotment(device, cores, ms))
                        best = ms
            by_task.append(tuple(mine))
        return tuple(by_task)

    @cached_property
    def together(self) -> tuple[tuple[int, ...], ...]:
        """Tasks that go to one device, by the first of each group; a task without a colour is a group of its own."""
        groups: dict[tuple[bool, int], list[int]] = {}
        for task in range(len(self)):
            colour = self.colours[task] if self.colours else -1
            groups.setdefault((colour >= 0, colour if colour >= 0 else task), []).append(task)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def shortest_ms(self) -> tuple[float, ...]:
        """For each task its least time on anything."""
        return tuple(min(allotment.ms for allotment in mine) for mine in self.allotments)

    @cached_property
    def moved_bytes(self) -> Mapping[tuple[int, int], int]:
        """By edge (from task, to task): the bytes of all tensors along it."""
        edge_bytes: dict[tuple[int, int], int] = {}
        for tensor in self.graph.tensors:
            if tensor.producer != GRAPH_INPUT:
                for consumer in set(tensor.consumers):
                    edge = (tensor.producer, consumer)
                    edge_bytes[edge] = edge_bytes.get(edge, 0) + tensor.bytes
        return edge_bytes

    def delay(self, source: int, target: int, from_device: str, to_device: str) -> float:
        """Milliseconds from the end of a task until another, that reads from it, has its results."""
        if from_device == to_device:
            return 0.0
        return self.transfer(from_device, to_device, self.moved_bytes[source, target])

    @property
    def device(self) -> str:
        """The only device. Raises ValueError where there are several: for methods that know one kind of core."""
        if len(self.cores) != 1:
            raise ValueError(f"{len(self.cores)} devices, and this method knows one kind of core")
        return next(iter(self.cores))


def bottom_levels(graph: WorkGraph, ms: Sequence[float]) -> list[float]:
    """For each task the longest path, in ms, from its start to the end of a last task."""
    levels = [0.0] * len(graph)
    for task in reversed(range(len(graph))):
        levels[task] = ms[task] + max((levels[after] for after in graph.successors[task]), default=0.0)
    return levels
