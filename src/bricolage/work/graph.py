"""The work graph: numbered operators with their work, and the tensors between them.

It is all that the searches see. Whoever builds one numbers the operators in a depth-first topological order (a chain is
finished before its sibling begins): the searches are exact under any topological numbering, but only depth-first
numbering keeps their state spaces linear in parallel chains.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from bricolage.work.bits import lowest, members
from bricolage.work.bits import of as bitset
from bricolage.work.transfer import BoundaryCosts

GRAPH_INPUT = -1
"""Producer of a tensor that comes from outside the graph."""


@dataclass(frozen=True)
class WorkOperator:
    """One operator: its `flops`, the `bytes` it reads and writes; `op_type` only serves messages."""

    name: str
    flops: float = 0.0
    bytes: int = 0
    op_type: str = ""


@dataclass(frozen=True)
class WorkTensor:
    """One tensor of `bytes` bytes. `producer` is an operator's number, or `GRAPH_INPUT`."""

    name: str
    producer: int
    consumers: tuple[int, ...]
    bytes: int = 0
    is_output: bool = False


@dataclass(frozen=True)
class WorkGraph:
    """Operators 0..n-1 in topological order and the tensors between them.

    Raises ValueError when an edge does not lead from a lower to a higher number, or names no operator.
    """

    operators: tuple[WorkOperator, ...]
    tensors: tuple[WorkTensor, ...]

    def __post_init__(self) -> None:
        for tensor in self.tensors:
            if tensor.producer < GRAPH_INPUT or any(
                not tensor.producer < consumer < len(self.operators) for consumer in tensor.consumers
            ):
                raise ValueError(f"tensor '{tensor.name}' does not lead from a lower to a higher operator number")

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def everything(self) -> int:
        """The region of all operators."""
        return (1 << len(self.operators)) - 1

    @cached_property
    def reads(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the indices of the tensors that it reads, each once, ascending."""
        found: list[set[int]] = [set() for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            for consumer in tensor.consumers:
                found[consumer].add(index)
        return tuple(tuple(sorted(indices)) for indices in found)

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the indices of the tensors that it produces."""
        found: list[list[int]] = [[] for _ in self.operators]
        for index, tensor in enumerate(self.tensors):
            if tensor.producer != GRAPH_INPUT:
                found[tensor.producer].append(index)
        return tuple(tuple(indices) for indices in found)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the operators that it reads from, each once, ascending."""
        return tuple(
            tuple(sorted({self.tensors[t].producer for t in tensors} - {GRAPH_INPUT})) for tensors in self.reads
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the operators that read from it, each once, ascending."""
        found: list[list[int]] = [[] for _ in self.operators]
        for number, producers in enumerate(self.predecessors):
            for producer in producers:
                found[producer].append(number)
        return tuple(tuple(numbers) for numbers in found)

    def predecessors_of(self, region: int) -> int:
        """The operators outside `region` that it reads from."""
        return bitset({p for number in members(region) for p in self.predecessors[number]}) & ~region

    def successors_of(self, region: int) -> int:
        """The operators outside `region` that read from it."""
        return bitset({s for number in members(region) for s in self.successors[number]}) & ~region

    def inputs_of(self, region: int) -> tuple[int, ...]:
        """Indices of the tensors that `region` reads and does not produce, graph inputs included, ascending."""
        inside = set(members(region))
        return tuple(sorted({t for number in inside for t in self.reads[number] if self._producer(t) not in inside}))

    def outputs_of(self, region: int) -> tuple[int, ...]:
        """Indices of the tensors that `region` produces and that are read outside it or are graph outputs."""
        inside = set(members(region))
        return tuple(
            t
            for number in sorted(inside)
            for t in self.writes[number]
            if self.tensors[t].is_output or any(consumer not in inside for consumer in self.tensors[t].consumers)
        )

    def is_convex(self, region: int) -> bool:
        """Whether no path leaves `region` and comes back. Linear in the span of the region's numbers."""
        inside = set(members(region))
        if len(inside) < 2:
            return True
        after: set[int] = set()  # outside the region, yet reading (directly or not) from it
        for number in range(min(inside), max(inside) + 1):
            sources = self.predecessors[number]
            if number in inside:
                if any(source in after for source in sources):
                    return False
            elif any(source in inside or source in after for source in sources):
                after.add(number)
        return True

    def is_connected(self, region: int) -> bool:
        """Whether `region` hangs together through tensors that it produces itself, directions ignored."""
        return len(self.components(region)) <= 1

    def components(self, region: int) -> tuple[int, ...]:
        """`region` split into its connected parts, by their lowest operators."""
        ordered = members(region)
        left = set(ordered)
        parts = []
        for first in ordered:
            if first not in left:
                continue
            left.discard(first)
            part, stack = [first], [first]
            while stack:
                number = stack.pop()
                for other in (*self.predecessors[number], *self.successors[number]):
                    if other in left:
                        left.discard(other)
                        part.append(other)
                        stack.append(other)
            parts.append(bitset(part))
        return tuple(parts)

    def _producer(self, tensor: int) -> int:
        return self.tensors[tensor].producer


@dataclass(frozen=True)
class Candidate:
    """A region on a backend with a variant (precision, layout), and its cost in ms.

    `key` is the caller's own handle on it; the searches only carry it along.
    """

    region: int
    backend: str
    variant: str
    cost_ms: float
    key: str = ""
    kind: Literal["kernels", "engine"] = "engine"


@dataclass(frozen=True)
class SearchStatistics:
    """How a placement was found: the method, its size, and the cycle cuts that it needed.

    `states` and `transitions` count what the dynamic programme visits; for variable elimination they are the tables and
    their entries, for the binary programme its columns and rows.
    """

    method: str = ""
    states: int = 0
    transitions: int = 0
    cuts: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Placement:
    """Candidates that cover the graph exactly once, in an executable order, priced by the additive model.

    `lower_bound_ms` is a proven bound on the cost of any placement; it equals `total_ms`, up to rounding, when
    `proven_optimal`.
    """

    choices: tuple[Candidate, ...]
    compute_ms: float
    boundary_ms: float
    total_ms: float
    proven_optimal: bool
    lower_bound_ms: float
    statistics: SearchStatistics = field(default=SearchStatistics(), compare=False)


def owners(graph: WorkGraph, regions: Sequence[int]) -> list[int]:
    """Per operator the index of the region that holds it.

    Raises ValueError when the regions do not cover every operator exactly once.
    """
    owner = [-1] * len(graph)
    for index, region in enumerate(regions):
        for number in members(region):
            if number >= len(graph) or owner[number] != -1:
                raise ValueError(f"operator {number} is covered twice, or is not in the graph")
            owner[number] = index
    if -1 in owner:
        raise ValueError(f"operator {owner.index(-1)} is not covered")
    return owner


def quotient(graph: WorkGraph, regions: Sequence[int]) -> list[set[int]]:
    """Per region the set of regions that read from it. Raises ValueError as `owners` does."""
    owner = owners(graph, regions)
    successors: list[set[int]] = [set() for _ in regions]
    for number, sources in enumerate(graph.predecessors):
        for source in sources:
            if owner[source] != owner[number]:
                successors[owner[source]].add(owner[number])
    return successors


def region_order(graph: WorkGraph, regions: Sequence[int]) -> tuple[int, ...] | None:
    """Indices of `regions` in the topological order that prefers low operator numbers; None if they form a cycle."""
    successors = quotient(graph, regions)
    waiting = [0] * len(regions)
    for targets in successors:
        for target in targets:
            waiting[target] += 1
    ready = [(lowest(region), index) for index, region in enumerate(regions) if not waiting[index]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, index = heapq.heappop(ready)
        order.append(index)
        for target in successors[index]:
            waiting[target] -= 1
            if not waiting[target]:
                heapq.heappush(ready, (lowest(regions[target]), target))
    return tuple(order) if len(order) == len(regions) else None


def execution_order(graph: WorkGraph, choices: Iterable[Candidate]) -> tuple[Candidate, ...] | None:
    """`choices` in a topological order of the quotient graph, or None when their regions form a cycle.

    Two convex, connected regions can still need each other's results, so a cover alone is not executable.
    Raises ValueError when `choices` do not cover every operator exactly once.
    """
    listed = tuple(choices)
    order = region_order(graph, [choice.region for choice in listed])
    return None if order is None else tuple(listed[index] for index in order)


def find_cycles(graph: WorkGraph, regions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Disjoint short cycles of the quotient graph, as indices into `regions`; empty exactly when there is none."""
    successors = quotient(graph, regions)
    alive = set(range(len(regions)))
    cycles: list[tuple[int, ...]] = []
    while True:
        _peel(successors, alive)
        if not alive:
            return tuple(cycles)
        start = min(alive, key=lambda index: lowest(regions[index]))
        cycle = _shortest_cycle(successors, alive, start)
        # A region between two cycles survives peeling without being on one.
        alive.difference_update(cycle or (start,))
        if cycle:
            cycles.append(cycle)


def _peel(successors: Sequence[set[int]], alive: set[int]) -> None:
    """Take out of `alive`, again and again, the nodes without a live predecessor or without a live successor."""
    predecessors: dict[int, set[int]] = {index: set() for index in alive}
    for index in alive:
        for target in successors[index] & alive:
            predecessors[target].add(index)
    following = {index: successors[index] & alive for index in alive}
    stack = [index for index in alive if not predecessors[index] or not following[index]]
    while stack:
        index = stack.pop()
        if index not in alive:
            continue
        alive.discard(index)
        for target in following[index]:
            predecessors[target].discard(index)
            if not predecessors[target]:
                stack.append(target)
        for source in predecessors[index]:
            following[source].discard(index)
            if not following[source]:
                stack.append(source)


def _shortest_cycle(successors: Sequence[set[int]], alive: set[int], start: int) -> tuple[int, ...]:
    """A shortest cycle through `start` within `alive`, beginning with `start`; empty if there is none."""
    came_from = {start: start}
    level = [start]
    while level:
        following = []
        for index in level:
            for target in sorted(successors[index] & alive):
                if target == start:
                    path = [index]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    return tuple(reversed(path))
                if target not in came_from:
                    came_from[target] = index
                    following.append(target)
        level = following
    return ()


def boundary_cost(graph: WorkGraph, choices: Sequence[Candidate], boundary: BoundaryCosts) -> float:
    """Total hand-over time in ms: once per region and tensor that it reads and another region produces."""
    owner = owners(graph, [choice.region for choice in choices])
    total = 0.0
    for tensor in graph.tensors:
        if tensor.producer == GRAPH_INPUT:
            continue
        source = owner[tensor.producer]
        for target in sorted({owner[consumer] for consumer in tensor.consumers} - {source}):
            total += boundary(choices[source].backend, choices[target].backend, tensor.bytes)
    return total


def price(
    graph: WorkGraph,
    choices: Iterable[Candidate],
    boundary: BoundaryCosts,
    *,
    lower_bound_ms: float | None = None,
    statistics: SearchStatistics | None = None,
) -> Placement:
    """The placement that `choices` are, with its cost; proven optimal unless a lower bound is given.

    Raises ValueError when they do not cover every operator exactly once, or form a cycle.
    """
    ordered = execution_order(graph, choices)
    if ordered is None:
        raise ValueError("the regions form a cycle")
    compute = sum(choice.cost_ms for choice in ordered)
    transfer = boundary_cost(graph, ordered, boundary)
    total = compute + transfer
    return Placement(
        choices=ordered,
        compute_ms=compute,
        boundary_ms=transfer,
        total_ms=total,
        proven_optimal=lower_bound_ms is None,
        lower_bound_ms=total if lower_bound_ms is None else min(lower_bound_ms, total),
        statistics=statistics or SearchStatistics(),
    )
