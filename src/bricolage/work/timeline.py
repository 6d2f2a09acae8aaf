"""Simulating a placement: when each region runs on its device, and what lies in each device's memory meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bricolage.device.device import Machine
from bricolage.work.bits import members
from bricolage.work.implementation import Assignment, Placement
from bricolage.work.liveness import Lifetime, peak
from bricolage.work.simulator import Task, simulate
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import WorkGraph


@dataclass(frozen=True)
class Slot:
    """One region on its device, in ms from the start of the run."""

    assignment: Assignment
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Timeline:
    """What a simulation found."""

    slots: tuple[Slot, ...]
    """In the order of the placement."""
    peak_bytes: Mapping[str, int]
    """By device: the most that tensors between operators and outputs of the graph take at a time, weights and inputs
    left out."""

    @property
    def makespan_ms(self) -> float:
        """From the start to the end of the last region."""
        return max((slot.end_ms for slot in self.slots), default=0.0)


def timeline(
    graph: WorkGraph,
    placement: Placement,
    cost: Callable[[Assignment], float],
    transfers: TransferCosts,
    machine: Machine | None = None,
) -> Timeline:
    """Runs a placement on paper. Every device takes its regions in their order, one at a time; a region starts when
    its device is free and all that it reads has arrived. Taking over a tensor costs its reader what `transfers` say,
    once for each region; between memories that a link of `machine` joins, it travels meanwhile, at the link's speed.

    `cost` is the time of a region in ms; `placement` covers the graph in an executable order.
    """
    owner = {number: index for index, assignment in enumerate(placement) for number in members(assignment.region)}
    tasks: list[Task] = []
    spans: list[tuple[int, int]] = []
    """Of each region its first and its last task."""
    for assignment in placement:
        mine, after, taking = assignment.implementation, [], 0.0
        for tensor in (graph.tensors[t] for t in graph.inputs_of(assignment.region)):
            if tensor.producer < 0:
                continue
            theirs, source = placement[owner[tensor.producer]].implementation, spans[owner[tensor.producer]][1]
            moved = machine.move_ms(theirs.device, mine.device, tensor.bytes) if machine is not None else 0.0
            if moved > 0.0:  # links do not queue: transfers occupy nothing
                tasks.append(Task(moved, (), (source,)))
                source = len(tasks) - 1
            after.append(source)
            taking += transfers(theirs.endpoint, mine.endpoint, tensor.bytes).ms
        first = len(tasks)
        if taking:
            tasks.append(Task(taking, (mine.device,), tuple(after)))
        tasks.append(Task(cost(assignment), (mine.device,), tuple(after)))
        spans.append((first, len(tasks) - 1))
    times = simulate(tasks)
    slots = [
        Slot(assignment, times.starts[first], times.ends[last])
        for assignment, (first, last) in zip(placement, spans, strict=True)
    ]
    return Timeline(tuple(slots), _peaks(graph, slots, owner))


def _peaks(graph: WorkGraph, slots: list[Slot], owner: Mapping[int, int]) -> dict[str, int]:
    """A tensor that leaves its region lies on the device of its producer from the start of that region to the end of
    its last reader, and on each other reader's device while that region runs; outputs of the graph stay to the
    end."""
    end = max((slot.end_ms for slot in slots), default=0.0)
    held: dict[str, list[Lifetime]] = defaultdict(list)
    for tensor in graph.tensors:
        if tensor.producer < 0:
            continue
        home = slots[owner[tensor.producer]]
        readers = {owner[consumer] for consumer in tensor.consumers} - {owner[tensor.producer]}
        if not readers and not tensor.is_output:
            continue
        last = end if tensor.is_output else max(slots[reader].end_ms for reader in readers)
        device = home.assignment.implementation.device
        held[device].append(Lifetime(tensor.bytes, home.start_ms, last))
        for reader in readers:
            other = slots[reader]
            if other.assignment.implementation.device != device:
                held[other.assignment.implementation.device].append(
                    Lifetime(tensor.bytes, other.start_ms, other.end_ms)
                )
    return {device: peak(lifetimes) for device, lifetimes in held.items()}
