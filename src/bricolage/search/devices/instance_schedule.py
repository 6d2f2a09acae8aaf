"""An instance of device placement as a problem of schedules: when one sample is done, operators one by one on each device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.work_graph import WorkGraph, WorkTensor

_PER_MS = 1e6
"""Of an edge's size, which has to be whole: what moves for a nanosecond is 1."""


def device_names(problem: DevicePlacementProblem) -> tuple[str, ...]:
    """Of accelerators, then of processors, as the numbers of devices have it."""
    return (
        *(f"accelerator {number}" for number in range(problem.accelerators)),
        *(f"processor {number}" for number in range(problem.processors)),
    )


def schedule_of_sample(problem: DevicePlacementProblem, names: Sequence[str]) -> ScheduleProblem:
    """Each edge between devices moves on its own: out of the accelerator that writes, and into the accelerator that reads, through
    the host's memory, so that from one accelerator to another it takes twice as long as to a processor.

    Args:
        problem: the instance.
        names: of its devices, accelerators first.

    Raises:
        ValueError: an operator runs on no device.
    """
    accelerators, processors = names[: problem.accelerators], names[problem.accelerators :]
    sizes = [round(ms * _PER_MS) for ms in problem.move_ms]
    tensors = tuple(
        WorkTensor(f"{source}-{reader}", source, (reader,), sizes[source])
        for source, readers in enumerate(problem.readers)
        for reader in readers
    )
    times: list[Mapping[str, tuple[float, ...]]] = []
    for on_accelerator, on_processor in zip(problem.accelerator_ms, problem.processor_ms, strict=True):
        able = {} if math.isinf(on_accelerator) else dict.fromkeys(accelerators, (on_accelerator,))
        times.append({**able, **dict.fromkeys(processors, (on_processor,))})
    around = frozenset(accelerators)

    def transfer(source: str, target: str, size: int) -> float:
        return ((source in around) + (target in around)) * size / _PER_MS

    limited = math.isfinite(problem.memory_bytes)
    return ScheduleProblem(
        WorkGraph(problem.graph.operators, tensors),
        tuple(times),
        dict.fromkeys(names, 1),
        transfer,
        tuple(int(size) for size in problem.memory),
        dict.fromkeys(accelerators, int(problem.memory_bytes)) if limited else {},
        problem.colours,
    )
