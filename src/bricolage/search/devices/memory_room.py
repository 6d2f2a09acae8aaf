"""How much memory devices have left while tasks are placed one after another."""

from __future__ import annotations

import math

from bricolage.errors import DevicesTooSmall
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem


class Room:
    """What is left of each device's memory."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._problem = problem
        self._left: dict[str, float] = {device: problem.memory.get(device, math.inf) for device in problem.cores}

    def bytes_of(self, task: int) -> int:
        """What a task takes."""
        return self._problem.task_bytes[task] if self._problem.task_bytes else 0

    def fits(self, task: int, device: str) -> bool:
        """Whether a device runs a task and has room for it."""
        return device in self._problem.times[task] and self.bytes_of(task) <= self._left[device]

    def take(self, task: int, device: str) -> None:
        """A task is on a device."""
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
