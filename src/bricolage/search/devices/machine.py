"""The problem of placing a graph on a machine's devices, where these are alike accelerators around a host."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bricolage.device.device import Link, Machine
from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.work.work_graph import WorkGraph


def on_machine(
    graph: WorkGraph, ms: Sequence[Mapping[str, float]], machine: Machine
) -> tuple[DevicePlacementProblem, tuple[str, ...]] | None:
    """The problem, and the names of its devices in the order of their numbers.

    None where accelerators or processors differ from one another, or in their links to the host. Links between accelerators do not
    count: what moves goes through the host's memory.

    Args:
        graph: with bytes of its tensors.
        ms: for each operator its milliseconds by device; it does not run on a device that is missing.
        machine: its devices of the kind "cpu" are processors, which share the host's memory; all others are accelerators.
    """
    processors = [device.name for device in machine.devices if device.kind == "cpu"]
    accelerators = [device for device in machine.devices if device.kind != "cpu"]
    names = [accelerator.name for accelerator in accelerators]
    if not processors or len({accelerator.memory_bytes for accelerator in accelerators}) > 1:
        return None
    links = {name: _link(machine, processors, name) for name in names}
    if len({(host_link.gbytes, host_link.latency_us) if host_link else None for host_link in links.values()}) > 1:
        return None
    rows = []
    for kind in (names, processors):
        times = [{by_device.get(name, math.inf) for name in kind} for by_device in ms]
        if any(len(time) > 1 for time in times):
            return None
        rows.append(tuple(next(iter(time), math.inf) for time in times))
    if math.inf in rows[1]:
        return None  # every operator has to run on the host's processors, as in the problem
    link = next(iter(links.values()), None)
    move = tuple(0.0 if link is None else _moved_ms(graph, operator, link) for operator in range(len(graph)))
    nothing = (0.0,) * len(graph)
    problem = DevicePlacementProblem(
        graph,
        rows[0] if names else rows[1],
        processor_ms=rows[1],
        move_ms=move,
        memory=nothing,
        colours=(-1,) * len(graph),
        backward=(False,) * len(graph),
        accelerators=len(names),
        processors=len(processors),
    )
    return problem, (*names, *processors)


def _link(machine: Machine, processors: Sequence[str], name: str) -> Link | None:
    return next((link for link in machine.links if name in link.between and set(link.between) & set(processors)), None)


def _moved_ms(graph: WorkGraph, operator: int, link: Link) -> float:
    """Of all its outputs that are read."""
    return math.fsum(
        link.ms(graph.tensors[write].bytes) for write in graph.writes[operator] if graph.tensors[write].consumers
    )
