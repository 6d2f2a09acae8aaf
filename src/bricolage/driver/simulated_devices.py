"""Where the sub-graphs of a plan would run on devices that a file describes, and how long that is predicted to take.

Sub-graphs are the chains between forks and joins of the planned graph. Each is timed here, in place: the plan's own program, cut
there. A described device takes that time scaled, or what its description says. Nothing runs on a described device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bricolage.costs.models.described import Scaled
from bricolage.costs.models.speedup import MeasuredCurves
from bricolage.device.description import DescribedDevices
from bricolage.driver.sub_graphs import Divided
from bricolage.errors import BadDevices
from bricolage.search.devices.predicted_schedules import Pipelined, PredictedSchedule, place_pipeline, predict_schedules
from bricolage.search.devices.subgraphs import contract_regions
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, task_times
from bricolage.work import bits
from bricolage.work.cost import Work
from bricolage.work.workload import workload_of


@dataclass(frozen=True)
class SubGraph:
    """A task: operators that go to one device as a whole. Times in milliseconds."""

    title: str
    operators: str
    """By number, as ranges."""
    measured_ms: Mapping[int, float]
    """Here, by count of cores."""


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


def predict_on_devices(divided: Divided, described: DescribedDevices, file: str | Path) -> Simulated:
    """What each method makes of a plan's sub-graphs on the devices that a file describes.

    Raises:
        BadDevices: none of them runs some sub-graph.
    """
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
            raise BadDevices(path=file, reason=f"none of them runs sub-graph {number + 1} ({sub_graphs[number].title})")
    nothing = {machine.devices[0].name: (0.0,)}
    problem = ScheduleProblem(
        contract_regions(divided.graph, divided.regions, [graph.title for graph in sub_graphs]),
        (nothing, *tasks, nothing),
        {device.name: device.threads for device in machine.devices},
        machine.move_ms,
    )
    schedules = predict_schedules(problem, certified=not machine.links)
    return Simulated(
        sub_graphs, tuple(problem.cores), schedules, lower_bound(problem), place_pipeline(problem, machine)
    )
