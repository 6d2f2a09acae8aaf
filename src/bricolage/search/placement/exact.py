"""The exact placement: the cheapest candidates that cover the graph once and form no cycle.

Three methods, all exact; `solve` chooses:

- transfers are free: dynamic programming that always extends the lowest uncovered operator;
- transfers cost: variable elimination over operators and tensors, linear in the graph for a bounded width;
- tables or states grow too large: the binary programme of `milp`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bricolage.errors import NoCover
from bricolage.search.placement.dynamic import MAX_STATES, additive_optimum
from bricolage.search.placement.milp import solve_milp
from bricolage.search.placement.network import LONGEST_CUT, Network
from bricolage.search.placement.pruning import keep_cheapest, prune_dominated, usable_candidates
from bricolage.search.placement.quick import quick_covers
from bricolage.work.placement import Candidate, PlacementResult, SearchStatistics, execution_order, find_cycles, price
from bricolage.work.transfer import NoTransferCosts, TransferCosts
from bricolage.work.work_graph import WorkGraph

MAX_TABLE = 16_000_000
"""Entries of the largest table of variable elimination (128 MB)."""
MAX_ENTRIES = 600_000_000
"""Entries of all its tables together: some three seconds of work on one core."""
TIME_LIMIT_S = 60.0


def solve(
    graph: WorkGraph, candidates: Iterable[Candidate], transfers: TransferCosts, time_limit_s: float = TIME_LIMIT_S
) -> PlacementResult:
    """The cheapest placement under `transfers`, by whichever method suits the graph.

    After `time_limit_s` the best placement found so far is returned with `proven_optimal` False and a lower bound.
    Raises NoPlacement when an operator has no candidate, NoCover when no choice of candidates fits together.
    """
    if isinstance(transfers, NoTransferCosts):
        return solve_additive(graph, candidates, time_limit_s=time_limit_s)
    return solve_with_transfers(graph, candidates, transfers, time_limit_s=time_limit_s)


def solve_additive(
    graph: WorkGraph,
    candidates: Iterable[Candidate],
    *,
    max_states: int = MAX_STATES,
    time_limit_s: float = TIME_LIMIT_S,
) -> PlacementResult:
    """The cheapest placement when transfers are free.

    Dynamic programming over sets of covered operators; a state is extended by the candidates whose lowest operator is
    the lowest uncovered one, which loses nothing, because whatever covers that operator has it as its lowest. This is
    the order of TVM's port of Collage (RFC 0062), made linear in parallel chains by depth-first numbering. When its
    optimum forms a cycle, or the states exceed `max_states`, the other exact methods take over.
    Raises NoPlacement and NoCover as `solve` does.
    """
    started = time.monotonic()
    able = keep_cheapest(usable_candidates(graph, candidates))
    optimum = additive_optimum(graph, able, max_states)
    if optimum is not None and execution_order(graph, optimum[0]) is not None:
        choices, statistics = optimum
        return price(
            graph, choices, NoTransferCosts(), statistics=replace(statistics, seconds=time.monotonic() - started)
        )
    return _with_transfers(graph, able, NoTransferCosts(), time_limit_s, MAX_TABLE, MAX_ENTRIES)


def solve_with_transfers(
    graph: WorkGraph,
    candidates: Iterable[Candidate],
    transfers: TransferCosts,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    max_table: int = MAX_TABLE,
    max_entries: int = MAX_ENTRIES,
) -> PlacementResult:
    """The cheapest placement when a region pays for each tensor that another region produces.

    `max_table` and `max_entries` bound the tables of variable elimination; beyond them the binary programme takes over.
    Raises NoPlacement and NoCover as `solve` does.
    """
    able = prune_dominated(graph, usable_candidates(graph, candidates), transfers)
    return _with_transfers(graph, able, transfers, time_limit_s, max_table, max_entries)


def _with_transfers(
    graph: WorkGraph,
    candidates: Sequence[Candidate],
    transfers: TransferCosts,
    time_limit_s: float,
    max_table: int,
    max_entries: int,
) -> PlacementResult:
    """Variable elimination with cycle cuts as they are needed; the binary programme when the tables grow too large."""
    started = time.monotonic()
    network = Network(graph, candidates, transfers)
    bound, cuts, order = 0.0, 0, network.order()
    while order.largest <= max_table and order.entries <= max_entries:
        assignment = network.solve(order)
        if assignment is None:
            raise NoCover(where="")
        bound, chosen = assignment
        choices = [candidates[index] for index in chosen]
        cycles = find_cycles(graph, [choice.region for choice in choices])
        if not cycles:
            statistics = SearchStatistics(
                "variable elimination", len(order.variables), int(order.entries), cuts, time.monotonic() - started
            )
            return price(graph, choices, transfers, statistics=statistics)
        if max(map(len, cycles)) > LONGEST_CUT or time.monotonic() - started > time_limit_s / 2:
            break
        for cycle in cycles:
            network.forbid([chosen[index] for index in cycle])
        cuts += len(cycles)
        order = network.order()
    return _through_milp(graph, candidates, transfers, time_limit_s - (time.monotonic() - started), bound)


def _through_milp(
    graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts, time_limit_s: float, bound: float
) -> PlacementResult:
    """The binary programme, and the best of the quick covers if time runs out before it has found a better one."""
    started = time.monotonic()
    milp_result = solve_milp(graph, candidates, transfers, time_limit_s=time_limit_s)
    if milp_result.placement is not None and milp_result.placement.proven_optimal:
        return milp_result.placement
    bound = max(bound, milp_result.lower_bound_ms)
    options = quick_covers(graph, candidates, transfers, MAX_TABLE, MAX_ENTRIES)
    if milp_result.placement is not None:
        options.append(milp_result.placement.choices)
    if not options:
        raise NoCover(where=" (the search ran out of time)")
    seconds = time.monotonic() - started
    statistics = SearchStatistics("binary programme, out of time", cuts=milp_result.cuts, seconds=seconds)
    priced = [price(graph, choices, transfers, lower_bound_ms=bound, statistics=statistics) for choices in options]
    return min(priced, key=lambda placement: placement.total_ms)
