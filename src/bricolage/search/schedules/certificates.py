"""Certificates: what no schedule goes below, and what no work-conserving scheduler goes above.

The upper bounds are for tasks of one core each, on a device that is given: NEW-B-1 here and NEW-B-2 in `path_bound.py` (Han, Guan,
Sun, He, Deng and Liu, "Response time bounds for typed DAG parallel tasks on heterogeneous multi-cores", TPDS 2019). Transfers are
not in them: they hold where nothing has to be moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.search.schedules.scheduling_problem import ScheduleProblem, bottom_levels
from bricolage.work.work_graph import WorkGraph


@dataclass(frozen=True)
class TypedTasks:
    """Tasks of which each takes one core of a given device for a given time.

    Raises ValueError where the lengths differ, or a device has no cores.
    """

    graph: WorkGraph
    ms: tuple[float, ...]
    device: tuple[str, ...]
    cores: Mapping[str, int]

    def __post_init__(self) -> None:
        if not len(self.graph) == len(self.ms) == len(self.device):
            raise ValueError("tasks, times and devices are not equally many")
        if any(self.cores.get(device, 0) < 1 for device in self.device):
            raise ValueError("a task is on a device without cores")

    def volume(self, device: str) -> float:
        """All work of a device, core × ms."""
        return sum(ms for ms, task_device in zip(self.ms, self.device, strict=True) if task_device == device)

    @property
    def spread(self) -> float:
        """The sum over devices of volume by cores, in ms."""
        return sum(self.volume(device) / count for device, count in self.cores.items())


def lower_bound(problem: ScheduleProblem) -> float:
    """The longest path of least times, or the least volume that some devices must do, by their cores."""
    path = max(bottom_levels(problem.graph, problem.shortest_ms), default=0.0)
    # Devices that no task needs only add cores: unions of the sets of devices that tasks have are enough.
    areas = [min(allotment.area for allotment in mine) for mine in problem.allotments]
    able = [(frozenset(times), area) for times, area in zip(problem.times, areas, strict=True)]
    unions = {frozenset[str]()}
    for devices in {devices for devices, _ in able}:
        unions |= {union | devices for union in unions}
    volumes = [
        sum(area for devices, area in able if devices <= union) / sum(problem.cores[device] for device in union)
        for union in unions
        if union
    ]
    return max(path, 0.0, *volumes)


def longest_path(graph: WorkGraph, ms: Sequence[float]) -> float:
    """Of the paths, in ms."""
    return max(bottom_levels(graph, ms), default=0.0)


def new_b_1(tasks: TypedTasks) -> float:
    """The volumes by their cores + the longest path, where of a task's time one share for each core is left out."""
    scaled = [ms * (1.0 - 1.0 / tasks.cores[device]) for ms, device in zip(tasks.ms, tasks.device, strict=True)]
    return longest_path(tasks.graph, scaled) + tasks.spread
