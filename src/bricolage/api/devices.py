"""Where the sub-graphs of a plan would run on devices that a file describes, and how long that is predicted to take.

Sub-graphs are the chains between forks and joins of the planned graph. Each is timed here, in place: the plan's own program, cut
there. A described device takes that time scaled, or what its description says. Nothing runs on a described device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bricolage.costs.models.described import Scaled
from bricolage.costs.models.speedup import MeasuredCurves
from bricolage.device.description import read_devices
from bricolage.device.device import Machine
from bricolage.driver.sub_graphs import divide
from bricolage.errors import BadDevices
from bricolage.search.devices.baechi import m_etf, m_sct
from bricolage.search.devices.downsets import contiguous
from bricolage.search.devices.duet import duet
from bricolage.search.devices.fastt import dpos
from bricolage.search.devices.genetic_placement import random_keys
from bricolage.search.devices.list_placement import cpop, heft, peft
from bricolage.search.devices.machine import on_machine
from bricolage.search.devices.subgraphs import contract_regions
from bricolage.search.schedules.certificates import TypedTasks, lower_bound
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.path_bound import new_b_2
from bricolage.search.schedules.schedule import Move, Schedule, check, moves
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, task_times
from bricolage.work import bits
from bricolage.work.cost import Work
from bricolage.work.work_graph import WorkGraph
from bricolage.work.workload import workload_of

_PLACING_S = 10.0
_KEYS_UP_TO = 64
"""Tasks; the search over random keys makes some hundred schedules."""
_EXACT_UP_TO = 20
"""Sub-graphs; the search over all schedules proves little beyond."""


@dataclass(frozen=True)
class SubGraph:
    """A task: operators that go to one device as a whole. Times in milliseconds."""

    title: str
    operators: str
    """By number, as ranges."""
    measured_ms: Mapping[int, float]
    """Here, by count of cores."""


@dataclass(frozen=True)
class PredictedSchedule:
    """What a method makes of the sub-graphs. Times in milliseconds."""

    method: str
    makespan_ms: float
    schedule: Schedule
    """Its tasks are the inputs, the sub-graphs and the outputs, in this order."""
    moves: tuple[Move, ...]
    """Tensors that go from one device to another."""
    upper_ms: float | None
    """With each sub-graph on its device here, no order that leaves no core idle needlessly takes more (NEW-B-2); None where that
    is not proven, since something has to be moved or a sub-graph has several cores."""
    proven: bool = False
    """Whether no schedule is shorter."""


@dataclass(frozen=True)
class Pipelined:
    """Where sub-graphs would be when samples follow one another through all devices at once. Times in milliseconds."""

    devices: tuple[str, ...]
    """Of each sub-graph."""
    sample_ms: float
    """For each sample: what the busiest device takes, its transfers included."""
    bound_ms: float
    """No placement takes less of which each device has what lies between two cuts of the graph."""


@dataclass(frozen=True)
class Simulated:
    """Predicted schedules, the shortest first."""

    sub_graphs: tuple[SubGraph, ...]
    devices: tuple[str, ...]
    predicted: tuple[PredictedSchedule, ...]
    lower_ms: float
    """No schedule takes less, by these times."""
    pipelined: Pipelined | None = None
    """None where accelerators or processors differ from one another."""


def simulate_devices(path: str | Path, devices: str | Path, inputs: Mapping[str, Any] | None = None) -> Simulated:
    """What each method makes of an artifact's sub-graphs on described devices. `inputs` choose the bucket; without them it is the
    first one, with values by chance.

    Raises:
        MissingFile, BadDevices: no file, or it describes no devices, or none that runs some sub-graph.
        MissingFile, BadArtifact, ... UnsupportedType: as `divide`.
    """
    described = read_devices(Path(devices))
    divided = divide(path, inputs)
    curves = divided.curves()
    sub_graphs = tuple(
        SubGraph(region.title, region.operators, dict(curve.points))
        for region, curve in zip(divided.plan.buckets[0].program.regions, curves, strict=True)
    )
    machine = described.machine
    works = [
        Work(workload_of(divided.graph.operators[member] for member in bits.members(region)), key=str(number))
        for number, region in enumerate(divided.regions, 1)
    ]
    here = MeasuredCurves({work.key: curve for work, curve in zip(works, curves, strict=True)})
    costs = Scaled(here, described.times, divided.device, tuple(range(1, len(divided.cores) + 1)))
    tasks = task_times(works, machine.devices, costs)
    for number, able in enumerate(tasks):
        if not able:
            raise BadDevices(
                path=devices, reason=f"none of them runs sub-graph {number + 1} ({sub_graphs[number].title})"
            )
    nothing = {machine.devices[0].name: (0.0,)}
    problem = ScheduleProblem(
        contract_regions(divided.graph, divided.regions, [graph.title for graph in sub_graphs]),
        (nothing, *tasks, nothing),
        {device.name: device.threads for device in machine.devices},
        machine.move_ms,
    )
    schedules = _predict_schedules(problem, certified=not machine.links)
    return Simulated(
        sub_graphs, tuple(problem.cores), schedules, lower_bound(problem), _place_pipeline(problem, machine)
    )


def _place_pipeline(problem: ScheduleProblem, machine: Machine) -> Pipelined | None:
    """Without the tasks that hold the inputs and take the outputs: those of the next sample move meanwhile."""
    last = len(problem) - 1
    tensors = []
    for tensor in problem.graph.tensors:
        readers = tuple(reader - 1 for reader in tensor.consumers if reader < last)
        if tensor.producer > 0 and readers:
            tensors.append(replace(tensor, producer=tensor.producer - 1, consumers=readers))
    graph = WorkGraph(problem.graph.operators[1:last], tuple(tensors))
    ms = [
        {name: problem.ms(task, name, problem.cores[name]) for name in problem.times[task]} for task in range(1, last)
    ]
    mapping = on_machine(graph, ms, machine)
    if mapping is None or not ms:
        return None
    placed = contiguous(mapping[0], limit_s=_PLACING_S)
    return Pipelined(tuple(mapping[1][device] for device in placed.devices), placed.max_load, placed.bound)


def _predict_schedules(problem: ScheduleProblem, *, certified: bool) -> tuple[PredictedSchedule, ...]:
    schedules = [method(problem) for method in (heft, peft, cpop, dpos, m_etf, m_sct)]
    if len(problem) <= _KEYS_UP_TO:
        schedules.append(random_keys(problem))
    with contextlib.suppress(ValueError):  # where no device runs all of some branch: DUET does not divide them
        schedules.append(duet(problem))
    proven = False
    if len(problem) <= _EXACT_UP_TO + 2:
        result = shortest_schedule(problem)
        proven = result.proven
        schedules.append(result.schedule)
    predictions = []
    for schedule in schedules:
        check(problem, schedule)
        upper = _upper(problem, schedule) if certified else None
        shortest = proven and schedule.method == "exact"
        predictions.append(
            PredictedSchedule(
                schedule.method, schedule.makespan_ms, schedule, moves(problem, schedule), upper, shortest
            )
        )
    return tuple(sorted(predictions, key=lambda prediction: (prediction.makespan_ms, prediction.method)))


def _upper(problem: ScheduleProblem, schedule: Schedule) -> float | None:
    """NEW-B-2 of the schedule's placement."""
    intervals = schedule.intervals
    if any(len(interval.lanes) > 1 for interval in intervals):
        return None
    ms = tuple(problem.ms(task, interval.device, 1) for task, interval in enumerate(intervals))
    return new_b_2(TypedTasks(problem.graph, ms, tuple(interval.device for interval in intervals), problem.cores))
