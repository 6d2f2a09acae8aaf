"""The problem of Tarnawski et al.: operators of a work graph on alike accelerators and processors around one host memory.

Tarnawski, Phanishayee, Devanur, Mahajan and Nina Paravecino, "Efficient algorithms for device placement of DNN graph operators",
NeurIPS 2020. An output moves between an accelerator and the host's memory, once for each operator and accelerator: out of the
accelerator that makes it if it is read elsewhere, and into each other accelerator that reads it. Processors move nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from bricolage.work.work_graph import WorkGraph

SLACK = 1e-9
"""Relative: differences of sums of floats below it are none."""


@dataclass(frozen=True)
class DevicePlacementProblem:
    """Operators by number, with their times in milliseconds and their memory in bytes.

    Raises ValueError where something has another length than the graph, an operator runs nowhere, or there is no device.
    """

    graph: WorkGraph
    accelerator_ms: tuple[float, ...]
    """Infinite where an accelerator does not run the operator."""
    processor_ms: tuple[float, ...]
    move_ms: tuple[float, ...]
    """To move each operator's output between an accelerator and the host's memory."""
    memory: tuple[float, ...]
    """Bytes that each operator takes of the accelerator that it is on: weights, and what it keeps."""
    colours: tuple[int, ...]
    """Operators of one colour go to one device; a negative number is no colour."""
    backward: tuple[bool, ...]
    accelerators: int
    processors: int
    memory_bytes: float = math.inf
    """Of each accelerator."""

    def __post_init__(self) -> None:
        rows = (self.accelerator_ms, self.processor_ms, self.move_ms, self.memory, self.colours, self.backward)
        if any(len(row) != len(self.graph) for row in rows):
            raise ValueError(f"{len(self.graph)} operators, and facts about {[len(row) for row in rows]}")
        if self.accelerators < 0 or self.processors < 0 or not self.accelerators + self.processors:
            raise ValueError("there is no device")
        if not self.processors and math.inf in self.accelerator_ms:
            raise ValueError("an operator runs on no accelerator, and there is no processor")

    def __len__(self) -> int:
        return len(self.graph)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the operators that read its output."""
        return self.graph.successors

    def load(self, part: Iterable[int], *, processor: bool = False) -> float:
        """Milliseconds that a device is busy for one sample when it has these operators; infinite where they do not fit."""
        inside = set(part)
        if processor:
            return math.fsum(self.processor_ms[operator] for operator in inside)
        if math.fsum(self.memory[operator] for operator in inside) > self.memory_bytes:
            return math.inf
        moved = {operator for operator in inside if any(reader not in inside for reader in self.readers[operator])}
        moved |= {source for operator in inside for source in self.graph.predecessors[operator] if source not in inside}
        return math.fsum(self.accelerator_ms[operator] for operator in inside) + math.fsum(
            self.move_ms[operator] for operator in moved
        )


@dataclass(frozen=True)
class PlacedOperators:
    """For each operator its device: accelerators from 0, then processors; and what is proven of the largest load."""

    devices: tuple[int, ...]
    method: str
    max_load: float
    """Milliseconds for one sample on the busiest device; infinite where there is no placement."""
    bound: float
    """No placement of the kind that the method looks for has less. 0 where nothing is known."""
    seconds: float = 0.0
    note: str = ""

    @property
    def gap(self) -> float:
        """Part of the largest load that is not proven to be needed."""
        return 0.0 if self.max_load <= self.bound else 1.0 - self.bound / self.max_load

    @property
    def proven(self) -> bool:
        """Whether no placement is better."""
        return self.max_load <= self.bound * (1.0 + SLACK)


def without_spare_devices(problem: DevicePlacementProblem, most: int) -> DevicePlacementProblem:
    """The problem with at most `most` devices of each kind: more than there are groups of operators are never in use."""
    return replace(problem, accelerators=min(problem.accelerators, most), processors=min(problem.processors, most))


def max_load(problem: DevicePlacementProblem, devices: Sequence[int]) -> float:
    """The largest load of a placement, milliseconds; infinite where operators of a colour are apart, or memory does not suffice.

    Raises:
        ValueError: it does not give each operator one of the devices.
    """
    if len(devices) != len(problem) or not all(
        0 <= number < problem.accelerators + problem.processors for number in devices
    ):
        raise ValueError("a placement gives each operator one of the devices")
    where: dict[int, int] = {}
    for colour, device in zip(problem.colours, devices, strict=True):
        if colour >= 0 and where.setdefault(colour, device) != device:
            return math.inf
    parts: dict[int, list[int]] = {}
    for operator, device in enumerate(devices):
        parts.setdefault(device, []).append(operator)
    loads = (problem.load(part, processor=device >= problem.accelerators) for device, part in parts.items())
    return max(loads, default=0.0)


def least_load(problem: DevicePlacementProblem) -> float:
    """What no placement goes below: all work in fractions over all devices, or the operator that is long on every device.

    The dual of the linear programme: each kind of device has a price by the hour, an operator costs what it costs where it is
    cheaper, and the hours of all devices are worth at least that. The prices that matter are those at which an operator changes
    sides.
    """
    accelerator, processor = np.array(problem.accelerator_ms), np.array(problem.processor_ms)
    usable = [(accelerator, problem.accelerators), (processor, problem.processors)]
    longest = float(np.min([ms for ms, count in usable if count], axis=0).max(initial=0.0))
    if not problem.processors or not problem.accelerators:
        ms, count = next(kind for kind in usable if kind[1])
        return max(math.fsum(ms.tolist()) / count, longest)
    whole = np.where(np.isinf(accelerator), 0.0, accelerator)
    prices = {0.0, 1.0, *(processor / np.maximum(whole + processor, 1e-300)).tolist()}
    best = longest
    for price in prices:
        costs = np.where(np.isinf(accelerator), np.inf, whole * price)
        work = float(np.minimum(costs, processor * (1.0 - price)).sum())
        best = max(best, work / (price * problem.accelerators + (1.0 - price) * problem.processors))
    return best * (1.0 - 1e-12)
