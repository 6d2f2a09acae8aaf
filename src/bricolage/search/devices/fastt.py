"""FastT: critical-path placement (DPOS).

Yi, Luo, Diao, Zhang, Yang, Yan and Long, "Fast training of deep learning models over multiple GPUs", Middleware 2020. Times count
at their worst over devices, transfers at their worst over pairs. Algorithm 1, line 20 of the paper takes a start for an end; here
it is the end that counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bricolage.search.devices.baechi import allot_device
from bricolage.search.devices.list_placement import insert
from bricolage.search.devices.memory_room import Room
from bricolage.search.schedules.schedule import Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem


def dpos(problem: ScheduleProblem) -> Schedule:
    """Tasks by upward rank at their worst; those of the critical path together on the device that is fastest for them.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    rank = worst_ranks(problem)
    path = critical_path(problem, rank)
    only = _path_devices(problem, path)
    order = sorted(range(len(problem)), key=lambda task: (-rank[task], task))
    nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
    return insert(problem, order, nothing, "DPOS", only)


def worst_times(problem: ScheduleProblem, task: int) -> Mapping[str, float]:
    """Milliseconds of a task by device."""
    return {device: allot_device(problem, task, device).ms for device in problem.times[task]}


def worst_ranks(problem: ScheduleProblem) -> list[float]:
    """Upward, with the longest times and transfers."""
    pairs = [(core, other) for core in problem.cores for other in problem.cores if core != other]
    ranks = [0.0] * len(problem)
    for task in reversed(range(len(problem))):
        after = [
            ranks[other] + max((problem.delay(task, other, *pair) for pair in pairs), default=0.0)
            for other in problem.graph.successors[task]
        ]
        ranks[task] = max(worst_times(problem, task).values()) + max(after, default=0.0)
    return ranks


def critical_path(problem: ScheduleProblem, rank: Sequence[float]) -> list[int]:
    """From the task of the highest rank always to the one behind it of the highest rank."""
    path: list[int] = []
    ahead: Sequence[int] = [task for task in range(len(problem)) if not problem.graph.predecessors[task]]
    while ahead:
        path.append(max(ahead, key=lambda candidate: (rank[candidate], -candidate)))
        ahead = problem.graph.successors[path[-1]]
    return path


def _path_devices(problem: ScheduleProblem, path: Sequence[int]) -> dict[int, str]:
    """By task of the critical path its device: the one with the least mean time for as many as its memory holds, then the next."""
    path_devices: dict[int, str] = {}
    left = list(path)
    devices = set(problem.cores)
    while left and devices:
        best: tuple[float, str, list[int]] | None = None
        for device in sorted(devices):
            fitting_tasks, trial = [], Room(problem)
            for task in left:
                if not trial.fits(task, device):
                    break
                trial.take(task, device)
                fitting_tasks.append(task)
            if fitting_tasks:
                mean = sum(worst_times(problem, task)[device] for task in fitting_tasks) / len(fitting_tasks)
                best = min(best or (mean, device, fitting_tasks), (mean, device, fitting_tasks))
        if best is None:
            break
        _, device, fitting_tasks = best
        for task in fitting_tasks:
            path_devices[task] = device
        devices.discard(device)
        left = left[len(fitting_tasks) :]
    return path_devices
