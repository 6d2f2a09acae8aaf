"""Dispatch overhead of engines: the time of the smallest region there is, one Relu on one element."""

from __future__ import annotations

from collections.abc import Iterable

from bricolage.device.device import Device
from bricolage.measure.measurer import Measurer
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop, never
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation

_MINIMAL_KEY = "minimal region: Relu on one float32"


def dispatch_overheads(
    measurer: Measurer, engines: Iterable[Implementation], threads: int, device: Device, should_stop: Stop = never
) -> dict[Implementation, float]:
    """Measured times in ms of the smallest region, from the database where known. Engines that cannot run it are absent."""
    path = relu_region(measurer.scratch, "x", "y", 1)
    inputs = vector(measurer.scratch, ("x",), 1)
    expected = vector(measurer.scratch, ("y",), 1, rectified=True)
    asked = tuple(
        CandidateSpec(_MINIMAL_KEY, (Step(engine, path),), ("y",), threads, alone=False, device=device)
        for engine in engines
    )
    task = RegionTask(inputs, expected, 2e-2, asked, _MINIMAL_KEY)
    costs = measurer.measure([task], should_stop=should_stop)
    return {spec.steps[0].implementation: cost.ms for spec, cost in costs.items() if cost.ms is not None}
