"""A training step on described devices, which may be unlike, as the methods of `search.devices.placement_methods` take it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from bricolage.base.options import available_cores
from bricolage.costs.models.described import Scaled
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.errors import BadDevices, BadTrainingSpec
from bricolage.search.devices.machine import on_machine
from bricolage.search.devices.placement_methods import PlacementCase
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, TaskTimes
from bricolage.train.place.step_tasks import StepTasks, tasks_of_step
from bricolage.train.predict.profiled_step import profile_step
from bricolage.train.predict.step_cost_model import step_works
from bricolage.train.predict.variant import Variant
from bricolage.train.step.spec import StepSpec
from bricolage.work.cost import Setting

_ROUNDS = 3
"""Of a step, at least."""
_UNLIKE = (
    "its problem has alike accelerators around a host: at least one device of the kind 'cpu' that runs every operator, and "
    "accelerators of one memory, one speed and equal links to it"
)


@dataclass(frozen=True)
class StepCase:
    """A step as a case of placement, and its pieces."""

    case: PlacementCase
    tasks: StepTasks
    threads: int
    """Of this machine, at which the devices that are no processors are compared with it."""


def step_case(spec: StepSpec, *, seconds: float = 2.0, here: bool = False) -> StepCase:
    """A step with its described devices. The step runs in this process to time its operators.

    Args:
        spec: the step, with its devices.
        seconds: for each number of threads at which it is timed.
        here: the devices are processes of this machine, whatever their kind: each takes its own cores' time by its scale.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable: as `predict_step` does.
        BadTrainingSpec: it describes no devices, or a link between two of them is missing.
        BadDevices: no device runs some operator.
    """
    described = described_devices(spec)
    kept = torch.get_num_threads()
    try:
        tasks, times = _times(spec, described, seconds, here=here)
    finally:
        torch.set_num_threads(kept)
    return StepCase(case_of_tasks(tasks, times, described), tasks, available_cores())


def described_devices(spec: StepSpec) -> DescribedDevices:
    """The devices of a spec, each joined with each.

    Raises:
        BadTrainingSpec: it describes none, or two of them have no link.
    """
    if spec.devices is None or spec.devices.here is not None:
        reason = "operators are placed on described devices: tables [[devices.device]] and [[devices.link]]"
        raise BadTrainingSpec(path=spec.folder, reason=reason)
    described = spec.devices.described()
    check_links(described, spec)
    return described


def check_links(described: DescribedDevices, spec: StepSpec) -> None:
    """Raises BadTrainingSpec where two devices have no link."""
    joined = {frozenset(link.between) for link in described.machine.links}
    names = [device.name for device in described.machine.devices]
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            if frozenset((name, other)) not in joined:
                reason = f"devices '{name}' and '{other}' have no link, and tensors go between any two"
                raise BadTrainingSpec(path=spec.folder, reason=reason)


def case_of_tasks(tasks: StepTasks, times: Sequence[TaskTimes], described: DescribedDevices) -> PlacementCase:
    """Pieces with their times on each device, as a case.

    Raises:
        BadDevices: no device runs some piece.
    """
    machine = described.machine
    for operator, able in zip(tasks.graph.operators, times, strict=True):
        if not able:
            raise BadDevices(path="[devices]", reason=f"none of them runs '{operator.name}'")
    names = tuple(device.name for device in machine.devices)
    memory = {device.name: device.memory_bytes for device in machine.devices if device.memory_bytes}
    sample = ScheduleProblem(
        tasks.graph,
        tuple(times),
        dict.fromkeys(names, 1),
        machine.move_ms,
        tasks.kept_bytes,
        memory,
        tasks.colours,
    )
    mapping = on_machine(tasks.graph, [{name: row[0] for name, row in able.items()} for able in times], machine)
    if mapping is None:
        return PlacementCase(sample, names, None, _UNLIKE)
    around, numbered = mapping
    limit = next((memory[name] for name in numbered[: around.accelerators] if name in memory), math.inf)
    around = replace(
        around,
        memory=tuple(map(float, tasks.kept_bytes)),
        memory_bytes=float(limit),
        colours=tasks.colours,
        backward=tasks.backward,
    )
    return PlacementCase(sample, numbered, around)


def _times(
    spec: StepSpec, described: DescribedDevices, seconds: float, *, here: bool
) -> tuple[StepTasks, list[TaskTimes]]:
    """The pieces, and by piece what each device takes that runs all of its operators."""
    devices = described.machine.devices
    threads = {device.name: _threads(device, here=here) for device in devices}
    graph, models = profile_step(spec, Variant(), sorted(set(threads.values())), seconds, _ROUNDS)
    tasks, works = tasks_of_step(graph), step_works(graph)
    rows: list[dict[str, tuple[float]]] = [{} for _ in tasks.operators]
    for device in devices:
        count = threads[device.name]
        scaled = Scaled(models[count], described.times, host(), (count,))
        estimates = scaled.estimate(works, Setting(device, min(count, device.threads)))
        for row, piece in zip(rows, tasks.operators, strict=True):
            ms = [estimate.ms for operator in piece if (estimate := estimates[operator]) is not None]
            if len(ms) == len(piece):
                row[device.name] = (math.fsum(ms),)
    times: list[Mapping[str, Sequence[float]]] = list(rows)
    return tasks, times


def _threads(device: Device, *, here: bool) -> int:
    """Of this machine, with which a device is compared."""
    return min(device.threads, available_cores()) if here or device.kind == "cpu" else available_cores()
