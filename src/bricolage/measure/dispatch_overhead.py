"""What entering an engine costs: the time of the smallest region there is, one Relu on one element."""

from __future__ import annotations

from collections.abc import Iterable

from bricolage.device.device import Device
from bricolage.measure.measurer import Measurer
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop, never
from bricolage.plan.step import Step
from bricolage.work.implementation import Implementation

_MINIMAL_KEY = "minimal region: Relu on one float32"


def minimal_task(
    measurer: Measurer, engines: Iterable[Implementation], threads: int, device: Device, alone: bool = False
) -> RegionTask:
    """The smallest region there is, Relu on one element, as a task for these engines."""
    path = relu_region(measurer.scratch, "x", "y", 1)
    candidates = tuple(
        CandidateSpec(_MINIMAL_KEY, (Step(engine, path),), ("y",), threads, alone, device) for engine in engines
    )
    inputs = vector(measurer.scratch, ("x",), 1)
    return RegionTask(inputs, vector(measurer.scratch, ("y",), 1, rectified=True), 2e-2, candidates, _MINIMAL_KEY)


def dispatch_overheads(
    measurer: Measurer,
    engines: Iterable[Implementation],
    threads: int,
    device: Device,
    alone: bool = False,
    should_stop: Stop = never,
) -> dict[Implementation, float]:
    """Measured fixed costs in ms, from the database where known. Engines that cannot run the minimal region are
    absent."""
    task = minimal_task(measurer, engines, threads, device, alone)
    costs = measurer.measure([task], should_stop=should_stop)
    return {spec.steps[0].implementation: cost.ms for spec, cost in costs.items() if cost.ms is not None}
