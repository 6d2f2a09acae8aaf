"""Dynamic programming over sets of covered operators: the cheapest cover when transfers are free."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.errors import NoCover
from bricolage.work.bits import lowest
from bricolage.work.placement import Candidate, SearchStatistics
from bricolage.work.work_graph import WorkGraph

MAX_STATES = 500_000
"""States beyond which another method takes over."""


def additive_optimum(
    graph: WorkGraph, candidates: Sequence[Candidate], max_states: int = MAX_STATES
) -> tuple[tuple[Candidate, ...], SearchStatistics] | None:
    """The cheapest cover, cycles allowed, and how many states and transitions it took; None beyond `max_states`.

    A state is the lowest uncovered operator together with the covered operators above it, shifted down by that number:
    so a step costs the span of a candidate, not the size of the graph.
    Raises NoCover when no choice of candidates covers the graph.
    """
    count = len(graph)
    filed: list[list[tuple[int, float, int]]] = [[] for _ in range(count)]
    for index, candidate in enumerate(candidates):
        low = lowest(candidate.region)
        filed[low].append((candidate.region >> low, candidate.cost_ms, index))
    # Per lowest uncovered operator: covered above -> (cost, previous lowest, previous covered, candidate).
    levels: list[dict[int, tuple[float, int, int, int]]] = [{} for _ in range(count + 1)]
    levels[0][0] = (0.0, -1, 0, -1)
    states, transitions = 1, 0
    for low in range(count):
        for covered, (cost, *_) in levels[low].items():
            for region, extra, index in filed[low]:
                if covered & region:
                    continue
                transitions += 1
                after = covered | region
                step = (~after & (after + 1)).bit_length() - 1
                level, rest = levels[low + step], after >> step
                previous = level.get(rest)
                if previous is None:
                    states += 1
                elif previous[0] <= cost + extra:
                    continue
                level[rest] = (cost + extra, low, covered, index)
        if states > max_states:
            return None
    if 0 not in levels[count]:
        raise NoCover(where=_stuck(graph, levels))
    chosen = []
    low, covered = count, 0
    while low:
        _, low, covered, index = levels[low][covered]
        chosen.append(candidates[index])
    statistics = SearchStatistics("lowest-uncovered dynamic programming", states, transitions)
    return tuple(reversed(chosen)), statistics


def _stuck(graph: WorkGraph, levels: Sequence[object]) -> str:
    """Where the furthest cover ended."""
    furthest = max((number for number in range(len(graph)) if levels[number]), default=0)
    return f": none reaches beyond operator '{graph.operators[furthest].name}'"
