"""Executable covers found quickly, for when an exact search runs out of time. Good, not optimal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from bricolage.errors import NoCover, NoPlacement
from bricolage.search.placement.dynamic import additive_optimum
from bricolage.search.placement.network import Network
from bricolage.search.placement.pruning import by_region, keep_cheapest, usable_candidates
from bricolage.work.placement import Candidate, find_cycles
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import WorkGraph

Cover: TypeAlias = tuple[Candidate, ...]
_ENOUGH_STATES = 100_000


def quick_covers(
    graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts, max_table: int, max_entries: int
) -> list[Cover]:
    """Executable covers from usable `candidates`: the best of connected regions under `transfers`, the best without
    transfer costs, and the best that uses each backend wherever it can. Those that cannot be found are left out.
    """
    connected = [c for region, group in by_region(candidates) if graph.is_connected(region) for c in group]
    most = 1.0 + sum(abs(candidate.cost_ms) for candidate in candidates)

    def eliminate(pool: Sequence[Candidate]) -> Cover | None:
        network = Network(graph, usable_candidates(graph, pool), transfers)
        order = network.order()
        if order.largest > max_table or order.entries > max_entries:
            return None
        assignment = network.solve(order)
        return None if assignment is None else tuple(network.candidates[index] for index in assignment[1])

    def add_up(favourite: str | None, pool: Sequence[Candidate]) -> Cover | None:
        weighted = [
            replace(
                c,
                cost_ms=c.cost_ms + (most if favourite not in (None, c.implementation.backend) else 0.0),
                key=str(index),
            )
            for index, c in enumerate(pool)
        ]
        optimum = additive_optimum(graph, keep_cheapest(usable_candidates(graph, weighted)), _ENOUGH_STATES)
        return None if optimum is None else tuple(pool[int(choice.key)] for choice in optimum[0])

    favourites = (None, *sorted({candidate.implementation.backend for candidate in candidates}))
    covers = [_without_cycles(graph, connected, eliminate)]
    covers += [_without_cycles(graph, candidates, partial(add_up, favourite)) for favourite in favourites]
    return [cover for cover in covers if cover is not None]


def _without_cycles(
    graph: WorkGraph, candidates: Sequence[Candidate], search: Callable[[Sequence[Candidate]], Cover | None]
) -> Cover | None:
    """What `search` finds once a region of every cycle that it ran into is taken out of the candidates."""
    pool = list(candidates)
    while True:
        try:
            cover = search(pool)
        except (NoCover, NoPlacement):
            return None
        if cover is None:
            return None
        cycles = find_cycles(graph, [choice.region for choice in cover])
        if not cycles:
            return cover
        # Single operators never cause a cycle; of the others the smallest is the least loss.
        dropped = {
            min((cover[i].region for i in cycle if cover[i].region.bit_count() > 1), key=lambda r: (r.bit_count(), r))
            for cycle in cycles
        }
        pool = [candidate for candidate in pool if candidate.region not in dropped]
