"""Placement as a binary linear programme, solved by HiGHS.

Set partitioning: one binary variable per candidate, and every operator is covered exactly once. Transfer costs are a
transport problem for each tensor and reading operator: the weight of the consumers' endpoints flows from the weight of
the producers' endpoints, at the transfer cost of each pair. Its variables may stay continuous, because once the
candidates are chosen only one flow is left; and its bound is much tighter than one inequality per pair of candidates.
Cycles among chosen regions are cut off as they appear. (Korch, arXiv 2406.09465, uses a binary programme over profiled
kernels; the transport form of the transfers is ours.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.errors import NoCover
from bricolage.search.placement.linear_rows import LinearRows
from bricolage.work.bits import members
from bricolage.work.implementation import Endpoint
from bricolage.work.placement import Candidate, PlacementResult, SearchStatistics, find_cycles, price
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkTensor

_SCALE = 1000.0
"""The objective is in microseconds: HiGHS stops at an absolute gap of 1e-6, which is then 1e-9 ms."""


@dataclass(frozen=True)
class ProgrammeResult:
    """`placement` is the best one found, if any; `lower_bound_ms` holds for all; `cuts` counts the cycles cut off."""

    placement: PlacementResult | None
    lower_bound_ms: float
    cuts: int


def solve_milp(
    graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts, *, time_limit_s: float
) -> ProgrammeResult:
    """The optimum over usable `candidates`, or the best placement and bound found within `time_limit_s`.

    Raises NoCover when no choice of candidates covers the graph without a cycle.
    """
    started = time.monotonic()
    rows = _programme(graph, candidates, transfers)
    bound, cuts = 0.0, 0
    while True:
        chosen, dual, optimal = _run(rows, len(candidates), time_limit_s - (time.monotonic() - started))
        # Cuts only remove placements, so an earlier bound still holds.
        bound = max(bound, dual)
        if chosen is None:
            return ProgrammeResult(None, bound, cuts)
        choices = [candidates[index] for index in chosen]
        cycles = find_cycles(graph, [choice.region for choice in choices])
        if not cycles:
            statistics = SearchStatistics(
                "binary programme", len(rows.cost), len(rows.low), cuts, time.monotonic() - started
            )
            lower = None if optimal else bound
            placement = price(graph, choices, transfers, lower_bound_ms=lower, statistics=statistics)
            return ProgrammeResult(placement, placement.lower_bound_ms, cuts)
        if not optimal:
            return ProgrammeResult(None, bound, cuts)
        for cycle in cycles:
            rows.add([(chosen[index], 1.0) for index in cycle], -math.inf, len(cycle) - 1.0)
        cuts += len(cycles)


def _programme(graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts) -> LinearRows:
    rows = LinearRows([candidate.cost_ms * _SCALE for candidate in candidates])
    covering: list[list[int]] = [[] for _ in graph.operators]
    for index, candidate in enumerate(candidates):
        for operator in members(candidate.region):
            covering[operator].append(index)
    for indices in covering:
        rows.add([(index, 1.0) for index in indices], 1.0, 1.0)
    sets = [frozenset(indices) for indices in covering]
    for tensor in graph.tensors:
        if tensor.producer != GRAPH_INPUT:
            _add_transport(rows, candidates, sets, tensor, transfers)
    return rows


def _add_transport(
    rows: LinearRows,
    candidates: Sequence[Candidate],
    covering: Sequence[frozenset[int]],
    tensor: WorkTensor,
    transfers: TransferCosts,
) -> None:
    """Transfer costs of one tensor: a transport problem for each operator at which a region may first read it."""
    inside = covering[tensor.producer]
    seen: set[int] = set()
    for consumer in sorted(set(tensor.consumers)):
        reading = covering[consumer] - inside - seen
        seen |= covering[consumer]
        supply = _by_endpoint(candidates, inside - covering[consumer])
        leaving: dict[Endpoint, list[int]] = {source: [] for source in supply}
        for target, readers in _by_endpoint(candidates, reading).items():
            costs = {source: transfers(source, target, tensor.bytes).ms for source in supply}
            if not any(costs.values()):
                # Free whatever the producer is: this demand needs no flow, and leaves the supply to the others.
                continue
            flows = {source: rows.new_column(cost * _SCALE) for source, cost in costs.items()}
            rows.add([*((flow, 1.0) for flow in flows.values()), *((index, -1.0) for index in readers)], 0.0, 0.0)
            for source, flow in flows.items():
                leaving[source].append(flow)
        for source, flows_out in leaving.items():
            if flows_out:
                weights = [(index, -1.0) for index in supply[source]]
                rows.add([*((flow, 1.0) for flow in flows_out), *weights], -math.inf, 0.0)


def _by_endpoint(candidates: Sequence[Candidate], indices: Iterable[int]) -> dict[Endpoint, list[int]]:
    grouped: dict[Endpoint, list[int]] = {}
    for index in sorted(indices):
        grouped.setdefault(candidates[index].implementation.endpoint, []).append(index)
    return grouped


def _run(rows: LinearRows, binaries: int, time_limit_s: float) -> tuple[list[int] | None, float, bool]:
    """The chosen candidates if there is a solution, the bound in ms, and whether the solution is proven optimal."""
    if time_limit_s <= 0:
        return None, 0.0, False
    integrality = np.zeros(len(rows.cost))
    integrality[:binaries] = 1
    result = rows.solve(integrality, time_limit_s)
    if result.infeasible:
        raise NoCover(where="")
    bound = 0.0 if result.bound is None else result.bound / _SCALE
    if result.x is None:
        return None, bound, False
    chosen = np.flatnonzero(result.x[:binaries] > 0.5).tolist()
    return chosen, bound, result.optimal
