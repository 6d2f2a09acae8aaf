"""Instances of device placement in the authors' JSON: `maxSizePerFPGA`, `maxFPGAs`, `maxCPUs`, `nodes` and `edges`.

Times are milliseconds, sizes bytes. "FPGA" is any accelerator. The format is that of Tarnawski et al., github.com/msr-fiddle/
dnn-partitioning. The same files describe both problems: the largest load of a device, and the end of one sample.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from bricolage.base.codec import DecodeError, Length, Within, decode, parse
from bricolage.errors import BadPlacementInstance, MissingFile
from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.search.devices.topological_order import depth_first
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

_MOST_BYTES = 1 << 28
_MOST_NODES = 200_000


@dataclass(frozen=True)
class InstanceNode:
    """An operator: milliseconds on either kind of device, bytes, and the colour of those that stay together."""

    id: Annotated[int, Within(0, 2**31)]
    cpuLatency: Annotated[float, Within(0.0, 1e12)]
    fpgaLatency: Annotated[float, Within(0.0, 1e12)]
    supportedOnFpga: bool
    size: Annotated[float, Within(0.0, 1e18)] = 0.0
    isBackwardNode: bool = False
    colorClass: Annotated[int, Within(-1, 2**31)] | None = None


@dataclass(frozen=True)
class InstanceEdge:
    """`destId` reads from `sourceId`, whose output takes `cost` milliseconds to move."""

    sourceId: int
    destId: int
    cost: Annotated[float, Within(0.0, 1e12)]


@dataclass(frozen=True)
class PlacementInstance:
    """A file. Raises ValueError where nodes or edges contradict one another."""

    nodes: Annotated[tuple[InstanceNode, ...], Length(1, _MOST_NODES)]
    edges: Annotated[tuple[InstanceEdge, ...], Length(0, 20 * _MOST_NODES)]
    maxFPGAs: Annotated[int, Within(0, 4096)] = 1
    maxCPUs: Annotated[int, Within(0, 4096)] = 1
    maxSizePerFPGA: Annotated[float, Within(0.0, 1e18)] = math.inf

    def __post_init__(self) -> None:
        ids = [node.id for node in self.nodes]
        known = set(ids)
        if len(known) != len(ids):
            raise ValueError("two nodes have one id")
        for one in self.edges:
            if one.sourceId not in known or one.destId not in known:
                raise ValueError(f"an edge leads from {one.sourceId} to {one.destId}, and there is no such node")
        if len(_order(self)) != len(ids):
            raise ValueError("nodes read from one another in a circle")


def read_instance(path: Path, accelerators: int | None = None) -> DevicePlacementProblem:
    """The problem of a file, with another number of accelerators if one is given.

    Raises:
        MissingFile: there is no such file.
        BadPlacementInstance: it is no instance, or one that no placement can solve.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DecodeError("it is too large")
        instance = decode(PlacementInstance, _known(parse(path.read_bytes())), "it")
        problem = read_problem(instance)
        return problem if accelerators is None else replace(problem, accelerators=accelerators)
    except (OSError, UnicodeDecodeError, ValueError) as error:  # a DecodeError is a ValueError
        raise BadPlacementInstance(path=path, reason=str(error)) from error


def read_problem(instance: PlacementInstance) -> DevicePlacementProblem:
    """Operators are numbered in a depth-first topological order. An output's cost is the largest that any of its edges has."""
    order = _order(instance)
    number = {one: index for index, one in enumerate(order)}
    nodes = {node.id: node for node in instance.nodes}
    mine = [nodes[one] for one in order]
    consumers: list[set[int]] = [set() for _ in order]
    cost = [0.0] * len(order)
    for edge in instance.edges:
        source = number[edge.sourceId]
        consumers[source].add(number[edge.destId])
        cost[source] = max(cost[source], edge.cost)
    graph = WorkGraph(
        tuple(WorkOperator(str(one.id)) for one in mine),
        tuple(WorkTensor(str(order[one]), one, tuple(sorted(some))) for one, some in enumerate(consumers) if some),
    )
    return DevicePlacementProblem(
        graph,
        tuple(one.fpgaLatency if one.supportedOnFpga else math.inf for one in mine),
        processor_ms=tuple(one.cpuLatency for one in mine),
        move_ms=tuple(cost),
        memory=tuple(one.size for one in mine),
        colours=tuple(-1 if one.colorClass is None else one.colorClass for one in mine),
        backward=tuple(one.isBackwardNode for one in mine),
        accelerators=instance.maxFPGAs,
        processors=instance.maxCPUs,
        memory_bytes=instance.maxSizePerFPGA,
    )


def by_hand(
    problem: DevicePlacementProblem, data: Mapping[str, Sequence[Mapping[str, Sequence[int]]]]
) -> tuple[int, ...]:
    """A placement in the authors' JSON (`fpgas` and `cpus` with their `nodes`), by operator.

    Raises:
        ValueError: a node is missing, is there twice, or has a device too many.
    """
    where: dict[str, int] = {}
    for first, kind, most in ((0, "fpgas", problem.accelerators), (problem.accelerators, "cpus", problem.processors)):
        for device, part in enumerate(one for one in data[kind] if one["nodes"]):
            if device >= most:
                raise ValueError(f"more than {most} of the {kind} have nodes")
            for one in part["nodes"]:
                if where.setdefault(str(one), first + device) != first + device:
                    raise ValueError(f"node {one} is on two devices")
    names = [operator.name for operator in problem.graph.operators]
    if set(names) != set(where):
        raise ValueError("it has other nodes than the instance")
    return tuple(where[name] for name in names)


def _known(data: object) -> object:
    """Without the fields that say nothing of the problem (names, layers), with numbers for truth where files have them."""
    if not isinstance(data, dict):
        return data

    def only(row: object, kind: type[InstanceNode | InstanceEdge]) -> object:
        if not isinstance(row, dict):
            return row
        fields = {field.name for field in dataclasses.fields(kind)}
        kept = {key: value for key, value in row.items() if key in fields}
        truths = ("supportedOnFpga", "isBackwardNode")
        return {key: bool(value) if key in truths and value in (0, 1) else value for key, value in kept.items()}

    known = {field.name for field in dataclasses.fields(PlacementInstance)}
    found = {key: value for key, value in data.items() if key in known}
    kinds: dict[str, type[InstanceNode | InstanceEdge]] = {"nodes": InstanceNode, "edges": InstanceEdge}
    for key, kind in kinds.items():
        rows = found.get(key)
        if isinstance(rows, list):
            found[key] = [only(row, kind) for row in rows]
    return found


def _order(instance: PlacementInstance) -> Sequence[int]:
    """Ids; those on a circle, and behind one, are missing."""
    return depth_first([node.id for node in instance.nodes], ((edge.sourceId, edge.destId) for edge in instance.edges))
