"""OS-DPOS of FastT (Yi et al., Middleware 2020): operators that are split where that shortens the critical path."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from bricolage.search.devices.fastt import critical_path, dpos, worst_ranks, worst_times
from bricolage.search.schedules.schedule import Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, TaskTimes
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor


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
    path = sorted(
        critical_path(problem, worst_ranks(problem)), key=lambda task: -min(worst_times(problem, task).values())
    )
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
