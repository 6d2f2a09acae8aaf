"""Small problems of device placement, and the best chain of parts by trying all placements: it shares no code with the searches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from hypothesis import strategies as st

from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

MS = (0.0, 0.5, 1.0, 2.0, 3.5)


def made(
    consumers: list[list[int]],
    accelerator: list[float],
    processor: list[float],
    move: list[float],
    memory: list[float],
    *,
    colours: list[int] | None = None,
    backward: list[bool] | None = None,
    accelerators: int = 2,
    processors: int = 1,
    memory_bytes: float = math.inf,
) -> DevicePlacementProblem:
    """A problem whose operator i is read by the operators `consumers[i]`."""
    count = len(consumers)
    tensors = [WorkTensor(str(one), one, tuple(some)) for one, some in enumerate(consumers) if some]
    return DevicePlacementProblem(
        WorkGraph(tuple(WorkOperator(str(one)) for one in range(count)), tuple(tensors)),
        tuple(accelerator),
        tuple(processor),
        tuple(move),
        tuple(memory),
        tuple(colours or [-1] * count),
        tuple(backward or [False] * count),
        accelerators,
        processors,
        memory_bytes,
    )


@st.composite
def problems(draw: st.DrawFn, *, training: bool | None = None) -> DevicePlacementProblem:
    """Up to five operators; in training each has a backward operator of its colour, but the first now and then."""
    count = draw(st.integers(1, 5))
    consumers = [
        [other for other in range(one + 1, count) if draw(st.sampled_from((True, True, False)))] for one in range(count)
    ]
    accelerator = [draw(st.sampled_from(MS)) for _ in range(count)]
    accelerator = [ms if draw(st.integers(0, 7)) else math.inf for ms in accelerator]
    processor = [draw(st.sampled_from((0.0, 1.0, 3.0, 7.0))) for _ in range(count)]
    move = [draw(st.sampled_from((0.0, 0.25, 1.0))) for _ in range(count)]
    memory = [draw(st.sampled_from((0.0, 1.0, 2.0))) for _ in range(count)]
    limit = draw(st.sampled_from((2.0, 4.0, math.inf)))
    colours, backward = list(range(count)), [False] * count
    if draw(st.booleans()) if training is None else training:
        mirrored = count - draw(st.integers(0, 1))
        for one in reversed(range(count - mirrored, count)):
            number = len(colours)
            consumers[one].append(number)
            for other in range(one + 1, count):
                if other in consumers[one] and other >= count - mirrored:
                    consumers[number - (other - one)].append(number)
            consumers.append([])
            colours.append(one)
            backward.append(True)
            accelerator.append(accelerator[one])
            processor.append(processor[one])
            move.append(draw(st.sampled_from((0.0, 0.25, 1.0))))
            memory.append(memory[one])
    accelerators = draw(st.integers(1, 3))
    return made(
        [sorted(set(some)) for some in consumers],
        accelerator,
        processor,
        move,
        memory,
        colours=colours,
        backward=backward,
        accelerators=accelerators,
        processors=draw(st.integers(0 if math.inf not in accelerator else 1, 1)),
        memory_bytes=limit,
    )


def placements(problem: DevicePlacementProblem) -> Iterator[tuple[int, ...]]:
    """All of them that keep colours together."""
    colours = sorted(set(problem.colours))
    devices = range(problem.accelerators + problem.processors)
    for chosen in itertools.product(devices, repeat=len(colours)):
        where = dict(zip(colours, chosen, strict=True))
        yield tuple(where[one] for one in problem.colours)


def load_of(problem: DevicePlacementProblem, devices: tuple[int, ...]) -> float:
    """The largest load, by its definition."""
    most = 0.0
    for device in range(problem.accelerators + problem.processors):
        inside = [one for one, there in enumerate(devices) if there == device]
        if device >= problem.accelerators:
            most = max(most, sum(problem.processor_ms[one] for one in inside))
            continue
        if sum(problem.memory[one] for one in inside) > problem.memory_bytes:
            return math.inf
        load = sum(problem.accelerator_ms[one] for one in inside)
        for source, readers in enumerate(problem.graph.successors):
            here = [reader for reader in readers if devices[reader] == device]
            if devices[source] == device and len(here) < len(readers):
                load += problem.move_ms[source]
            if devices[source] != device and here:
                load += problem.move_ms[source]
        most = max(most, load)
    return most


def is_chain(problem: DevicePlacementProblem, devices: tuple[int, ...]) -> bool:
    """Whether the forward graph leads round in no circle between devices."""
    edges = {
        (devices[source], devices[reader])
        for source, readers in enumerate(problem.graph.successors)
        for reader in readers
        if not problem.backward[source] and not problem.backward[reader] and devices[source] != devices[reader]
    }
    left = set(devices)
    while left:
        first = {one for one in left if not any(other == one and source in left for source, other in edges)}
        if not first:
            return False
        left -= first
    return True
