"""How much memory devices have left while tasks are placed one after another, and where tasks of a colour have to go."""

from __future__ import annotations

import math

from bricolage.errors import DevicesTooSmall
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem


class Room:
    """What is left of each device's memory. The first task of a colour takes the memory of all of them, so that the others fit."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._problem = problem
        self._left: dict[str, float] = {device: problem.memory.get(device, math.inf) for device in problem.cores}
        self._groups = problem.together
        self._group_of = {task: number for number, group in enumerate(self._groups) for task in group}
        self._settled: dict[int, str] = {}

    def bytes_of(self, task: int) -> int:
        """What a task takes, with all that go where it goes."""
        sizes = self._problem.task_bytes
        return sum(sizes[other] for other in self._groups[self._group_of[task]]) if sizes else 0

    def settled(self, task: int) -> str | None:
        """The device of a task, where one of its colour is placed already."""
        return self._settled.get(self._group_of[task])

    def fits(self, task: int, device: str) -> bool:
        """Whether a device runs a task and those of its colour, and has room for them."""
        settled = self.settled(task)
        if settled is not None:
            return settled == device
        able = all(device in self._problem.times[other] for other in self._groups[self._group_of[task]])
        return able and self.bytes_of(task) <= self._left[device]

    def take(self, task: int, device: str) -> None:
        """A task is on a device."""
        if self.settled(task) is None:
            self._settled[self._group_of[task]] = device
            self._left[device] -= self.bytes_of(task)

    def for_task(self, task: int) -> list[Allotment]:
        """How a task may run where there is room.

        Raises:
            DevicesTooSmall: nowhere.
        """
        allotments = [allotment for allotment in self._problem.allotments[task] if self.fits(task, allotment.device)]
        if not allotments:
            name = self._problem.graph.operators[task].name
            raise DevicesTooSmall(task=name, wanted=f"{self.bytes_of(task)} bytes")
        return allotments
