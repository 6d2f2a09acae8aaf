"""Placements: candidates that cover a work graph, the order in which they run, and their price in the additive model."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bricolage.work.bits import lowest, members
from bricolage.work.implementation import Assignment, Implementation
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph


@dataclass(frozen=True)
class Candidate:
    """A region on an implementation, and its cost in ms.

    `key` is the caller's own handle on it; the searches only carry it along. `merges`: whether its backend gains when
    neighbouring regions become one."""

    region: int
    implementation: Implementation
    cost_ms: float
    key: str = ""
    merges: bool = True

    @property
    def assignment(self) -> Assignment:
        """Without its cost."""
        return Assignment(self.region, self.implementation)


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
class PlacementResult:
    """Candidates that cover the graph exactly once, in an executable order, priced by the additive model.

    `lower_bound_ms` is a proven bound on the cost of any placement; it equals `total_ms`, up to rounding, when
    `proven_optimal`.
    """

    choices: tuple[Candidate, ...]
    compute_ms: float
    transfer_ms: float
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


def transfer_cost(graph: WorkGraph, choices: Sequence[Candidate], transfers: TransferCosts) -> float:
    """Total time of transfers in ms: once per region and tensor that it reads and another region produces."""
    owner = owners(graph, [choice.region for choice in choices])
    total = 0.0
    for tensor in graph.tensors:
        if tensor.producer == GRAPH_INPUT:
            continue
        source = owner[tensor.producer]
        source_endpoint = choices[source].implementation.endpoint
        for target in sorted({owner[consumer] for consumer in tensor.consumers} - {source}):
            total += transfers(source_endpoint, choices[target].implementation.endpoint, tensor.bytes).ms
    return total


def price(
    graph: WorkGraph,
    choices: Iterable[Candidate],
    transfers: TransferCosts,
    *,
    lower_bound_ms: float | None = None,
    statistics: SearchStatistics | None = None,
) -> PlacementResult:
    """The placement that `choices` are, with its cost; proven optimal unless a lower bound is given.

    Raises ValueError when they do not cover every operator exactly once, or form a cycle.
    """
    ordered = execution_order(graph, choices)
    if ordered is None:
        raise ValueError("the regions form a cycle")
    compute = sum(choice.cost_ms for choice in ordered)
    transfer = transfer_cost(graph, ordered, transfers)
    total = compute + transfer
    return PlacementResult(
        choices=ordered,
        compute_ms=compute,
        transfer_ms=transfer,
        total_ms=total,
        proven_optimal=lower_bound_ms is None,
        lower_bound_ms=total if lower_bound_ms is None else min(lower_bound_ms, total),
        statistics=statistics or SearchStatistics(),
    )
