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
        node_ids = set(ids)
        if len(node_ids) != len(ids):
            raise ValueError("two nodes have one id")
        for edge in self.edges:
            if edge.sourceId not in node_ids or edge.destId not in node_ids:
                raise ValueError(f"an edge leads from {edge.sourceId} to {edge.destId}, and there is no such node")
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
        instance = decode(PlacementInstance, _select_fields(parse(path.read_bytes())), "it")
        problem = read_problem(instance)
        return problem if accelerators is None else replace(problem, accelerators=accelerators)
    except (OSError, UnicodeDecodeError, ValueError) as error:  # a DecodeError is a ValueError
        raise BadPlacementInstance(path=path, reason=str(error)) from error


def read_problem(instance: PlacementInstance) -> DevicePlacementProblem:
    """Operators are numbered in a depth-first topological order. An output's cost is the largest that any of its edges has."""
    order = _order(instance)
    number = {node_id: index for index, node_id in enumerate(order)}
    nodes = {node.id: node for node in instance.nodes}
    mine = [nodes[node_id] for node_id in order]
    consumers: list[set[int]] = [set() for _ in order]
    cost = [0.0] * len(order)
    for edge in instance.edges:
        source = number[edge.sourceId]
        consumers[source].add(number[edge.destId])
        cost[source] = max(cost[source], edge.cost)
    graph = WorkGraph(
        tuple(WorkOperator(str(operator.id)) for operator in mine),
        tuple(
            WorkTensor(str(order[position]), position, tuple(sorted(readers)))
            for position, readers in enumerate(consumers)
            if readers
        ),
    )
    return DevicePlacementProblem(
        graph,
        tuple(operator.fpgaLatency if operator.supportedOnFpga else math.inf for operator in mine),
        processor_ms=tuple(operator.cpuLatency for operator in mine),
        move_ms=tuple(cost),
        memory=tuple(operator.size for operator in mine),
        colours=tuple(-1 if operator.colorClass is None else operator.colorClass for operator in mine),
        backward=tuple(operator.isBackwardNode for operator in mine),
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
        for device, part in enumerate(entry for entry in data[kind] if entry["nodes"]):
            if device >= most:
                raise ValueError(f"more than {most} of the {kind} have nodes")
            for node in part["nodes"]:
                if where.setdefault(str(node), first + device) != first + device:
                    raise ValueError(f"node {node} is on two devices")
    names = [operator.name for operator in problem.graph.operators]
    if set(names) != set(where):
        raise ValueError("it has other nodes than the instance")
    return tuple(where[name] for name in names)


def _select_fields(data: object) -> object:
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

    field_names = {field.name for field in dataclasses.fields(PlacementInstance)}
    problem_fields = {key: value for key, value in data.items() if key in field_names}
    kinds: dict[str, type[InstanceNode | InstanceEdge]] = {"nodes": InstanceNode, "edges": InstanceEdge}
    for key, kind in kinds.items():
        rows = problem_fields.get(key)
        if isinstance(rows, list):
            problem_fields[key] = [only(row, kind) for row in rows]
    return problem_fields


def _order(instance: PlacementInstance) -> Sequence[int]:
    """Ids; those on a circle, and behind one, are missing."""
    return depth_first([node.id for node in instance.nodes], ((edge.sourceId, edge.destId) for edge in instance.edges))
