"""FastT: critical-path placement (DPOS), and operators that are split where that shortens it (OS-DPOS).

Yi, Luo, Diao, Zhang, Yang, Yan and Long, "Fast training of deep learning models over multiple GPUs", Middleware 2020. Times count
at their worst over devices, transfers at their worst over pairs. Algorithm 1, line 20 of the paper takes a start for an end; here
it is the end that counts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from bricolage.search.devices.baechi import allot_device
from bricolage.search.devices.list_placement import insert
from bricolage.search.devices.memory_room import Room
from bricolage.search.schedules.schedule import Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, TaskTimes
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor


def dpos(problem: ScheduleProblem) -> Schedule:
    """Tasks by upward rank at their worst; those of the critical path together on the device that is fastest for them.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    rank = _ranks(problem)
    path = _critical_path(problem, rank)
    only = _path_devices(problem, path)
    order = sorted(range(len(problem)), key=lambda task: (-rank[task], task))
    nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
    return insert(problem, order, nothing, "DPOS", only)


def os_dpos(problem: ScheduleProblem, splittable: Collection[int]) -> tuple[ScheduleProblem, Schedule]:
    """DPOS on the problem with some tasks split, and that problem. The longest task of the critical path is split first, into as
    many parts as end the whole soonest; it stops at the first one that no split helps.

    Args:
        problem: the problem.
        splittable: tasks that may be divided, as along their batch: n parts take an nth of the time, read and write an nth each.
            Those of a colour are not: their parts would have to stay together.

    Raises:
        DevicesTooSmall: no device has room left for some task.
    """
    best, schedule = problem, dpos(problem)
    names = {
        problem.graph.operators[task].name for task in splittable if not problem.colours or problem.colours[task] < 0
    }
    path = sorted(_critical_path(problem, _ranks(problem)), key=lambda task: -min(_times(problem, task).values()))
    for name in [problem.graph.operators[task].name for task in path if task in splittable]:
        if name not in names:
            continue
        task = next(number for number, operator in enumerate(best.graph.operators) if operator.name == name)
        tried = [split_task(best, task, parts) for parts in range(2, len(problem.cores) + 1)]
        attempts = [(dpos(variant), variant) for variant in tried]
        shortest = min(attempts, key=lambda attempt: attempt[0].makespan_ms, default=None)
        if shortest is None or shortest[0].makespan_ms >= schedule.makespan_ms:
            break
        schedule, best = shortest
    return best, replace(schedule, method="OS-DPOS")


def split_task(problem: ScheduleProblem, task: int, parts: int) -> ScheduleProblem:
    """The problem with a task as `parts` parts, a task without time that divides what it reads, and one that joins the results.

    Both are where any device may have them; each part takes an nth of the time and of the memory.
    """
    graph, more = problem.graph, parts + 1
    name = graph.operators[task].name
    operators = [
        *graph.operators[:task],
        WorkOperator(f"{name}/split"),
        *(WorkOperator(f"{name}/{part}") for part in range(parts)),
        WorkOperator(f"{name}/join"),
        *graph.operators[task + 1 :],
    ]
    first, join = task + 1, task + parts + 1

    def shift_number(number: int) -> int:
        return number if number < task else number + more

    tensors = []
    for tensor in graph.tensors:
        producer = (
            join
            if tensor.producer == task
            else tensor.producer
            if tensor.producer == GRAPH_INPUT
            else shift_number(tensor.producer)
        )
        consumers = tuple(task if reader == task else shift_number(reader) for reader in tensor.consumers)
        tensors.append(replace(tensor, producer=producer, consumers=tuple(sorted(consumers))))
    read = sum(graph.tensors[index].bytes for index in graph.reads[task])
    written = sum(graph.tensors[write].bytes for write in graph.writes[task])
    for part in range(parts):
        tensors.append(WorkTensor(f"{name}/in{part}", task, (first + part,), read // parts))
        tensors.append(WorkTensor(f"{name}/out{part}", first + part, (join,), written // parts))
    share = {device: tuple(ms / parts for ms in row) for device, row in problem.times[task].items()}
    nothing: TaskTimes = dict.fromkeys(problem.cores, (0.0,))
    times = (*problem.times[:task], nothing, *(share,) * parts, nothing, *problem.times[task + 1 :])
    sizes = problem.task_bytes
    if sizes:
        sizes = (*sizes[:task], 0, *(-(-sizes[task] // parts),) * parts, 0, *sizes[task + 1 :])
    colours = problem.colours
    if colours:
        colours = (*colours[:task], *(-1,) * (parts + 2), *colours[task + 1 :])
    graph = WorkGraph(tuple(operators), tuple(tensors))
    return replace(problem, graph=graph, times=times, task_bytes=sizes, colours=colours)


def _times(problem: ScheduleProblem, task: int) -> Mapping[str, float]:
    return {device: allot_device(problem, task, device).ms for device in problem.times[task]}


def _ranks(problem: ScheduleProblem) -> list[float]:
    """Upward, with the longest times and transfers."""
    pairs = [(core, other) for core in problem.cores for other in problem.cores if core != other]
    ranks = [0.0] * len(problem)
    for task in reversed(range(len(problem))):
        after = [
            ranks[other] + max((problem.delay(task, other, *pair) for pair in pairs), default=0.0)
            for other in problem.graph.successors[task]
        ]
        ranks[task] = max(_times(problem, task).values()) + max(after, default=0.0)
    return ranks


def _critical_path(problem: ScheduleProblem, rank: Sequence[float]) -> list[int]:
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
                mean = sum(_times(problem, task)[device] for task in fitting_tasks) / len(fitting_tasks)
                best = min(best or (mean, device, fitting_tasks), (mean, device, fitting_tasks))
        if best is None:
            break
        _, device, fitting_tasks = best
        for task in fitting_tasks:
            path_devices[task] = device
        devices.discard(device)
        left = left[len(fitting_tasks) :]
    return path_devices
