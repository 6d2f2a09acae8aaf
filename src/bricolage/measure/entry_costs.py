"""What entering an engine costs: the time of the smallest region there is, one Relu on one element."""

from __future__ import annotations

from collections.abc import Iterable

from bricolage.measure.loading import CandidateSpec, Stop, never
from bricolage.measure.measurer import Measurer, RegionTask
from bricolage.measure.probes import relu_region, vector
from bricolage.perf.merge_gain import Engine
from bricolage.plan.step import Step

_MINIMAL_KEY = "minimal region: Relu on one float32"


def minimal_task(measurer: Measurer, engines: Iterable[Engine], threads: int, alone: bool = False) -> RegionTask:
    """The smallest region there is, Relu on one element, as a task for these engines."""
    path = relu_region(measurer.scratch, "x", "y", 1)
    candidates = tuple(
        CandidateSpec(_MINIMAL_KEY, (Step(backend, variant, path),), ("y",), threads, alone)
        for backend, variant in engines
    )
    inputs = vector(measurer.scratch, ("x",), 1)
    return RegionTask(inputs, vector(measurer.scratch, ("y",), 1, rectified=True), 2e-2, candidates)


def fixed_costs(
    measurer: Measurer, engines: Iterable[Engine], threads: int, alone: bool = False, should_stop: Stop = never
) -> dict[Engine, float]:
    """Measured fixed costs in ms, from the database where known. Engines that cannot run the minimal region are
    absent."""
    task = minimal_task(measurer, engines, threads, alone)
    costs = measurer.measure([task], should_stop=should_stop)
    return {
        (spec.steps[0].backend, spec.steps[0].variant): cost.ms for spec, cost in costs.items() if cost.ms is not None
    }
