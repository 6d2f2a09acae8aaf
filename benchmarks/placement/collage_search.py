"""Collage's own algorithm as a baseline: what "Collage: Seamless Integration of Deep Learning Backends with Automatic
Placement" (PACT 2022) does, with our costs and backends.

Level 1: the cheapest cover by operator patterns with one root, each group costing a constant more; nothing for transfers.
Level 2: one bit for each group of that cover, whether it moves to the one graph-level engine, whose neighbouring groups merge;
a genetic algorithm with the released code's constants, judged end to end. (`cmu-catalyst/collage`, 2022-08-15.)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bricolage.search.placement.exact import solve_additive
from bricolage.search.placement.merge import merge_regions
from bricolage.work.bits import members
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement import Candidate, PlacementResult
from bricolage.work.work_graph import WorkGraph

GROUP_MS = 0.01
"""What a group costs besides its time."""
_POPULATION, _TOURNAMENT, _SEED = 50, 5, 64
_CROSSOVER, _MUTATION, _FLIP = 0.5, 0.2, 0.05

Genome = tuple[bool, ...]


def op_level(graph: WorkGraph, candidates: Sequence[Candidate]) -> PlacementResult:
    """The cheapest cover. `candidates` are of single operators and of what grows from one.

    Raises:
        NoPlacement, NoCover: they do not cover the graph.
    """
    rooted = [one for one in candidates if _roots(graph, one.region) == 1]
    return solve_additive(graph, [replace(one, cost_ms=one.cost_ms + GROUP_MS, merges=False) for one in rooted])


def _roots(graph: WorkGraph, region: int) -> int:
    """Operators whose results are read outside."""
    inside = set(members(region))
    read = {t.producer for t in graph.tensors if t.producer in inside and not inside.issuperset(t.consumers)}
    return len(read | {t.producer for t in graph.tensors if t.producer in inside and t.is_output})


@dataclass(frozen=True)
class Found:
    """What the graph level came to."""

    placement: Placement
    ms: float | None
    """End to end; None where nothing ran."""
    evaluations: int
    bits: int


def graph_level(
    graph: WorkGraph,
    groups: Sequence[Candidate],
    engine: Implementation,
    claimed: int,
    measure: Callable[[list[Placement]], Sequence[float | None]],
    stop: Callable[[], bool],
) -> Found:
    """Moves groups to `engine`, which accepts the operators of `claimed`, until `stop` says so. `measure` gives end-to-end
    times in ms."""
    movable = [i for i, one in enumerate(groups) if one.implementation != engine and one.region & claimed == one.region]
    rng = random.Random(_SEED)
    known: dict[Genome, float | None] = {}
    best: tuple[float, Genome] | None = None

    def placement(genome: Genome) -> Placement:
        moved = {movable[bit] for bit, flipped in enumerate(genome) if flipped}
        choices = [
            replace(one, implementation=engine, merges=True)
            if index in moved
            else replace(one, merges=one.implementation == engine)
            for index, one in enumerate(groups)
        ]
        return merge_regions(graph, choices)

    def judge(population: Sequence[Genome]) -> None:
        nonlocal best
        for genome in dict.fromkeys(population):
            if genome in known or (known and stop()):
                continue
            (known[genome],) = measure([placement(genome)])
            ms = known[genome]
            if ms is not None and (best is None or ms < best[0]):
                best = (ms, genome)

    count = len(movable)
    population: list[Genome] = [(False,) * count, (True,) * count]
    population += [tuple(rng.random() < 0.5 for _ in range(count)) for _ in range(_POPULATION - 2)]
    judge(population)
    while count and not stop() and len(known) < 2**count:
        population = _next(population, known, rng)
        judge(population)
    if best is None:
        return Found(placement((False,) * count), None, len(known), count)
    return Found(placement(best[1]), best[0], len(known), count)


def _next(population: Sequence[Genome], known: dict[Genome, float | None], rng: random.Random) -> list[Genome]:
    """A generation of tournaments, two-point crossover and flipped bits; nobody stays for being the best."""

    def time(genome: Genome) -> float:
        ms = known.get(genome)
        return float("inf") if ms is None else ms

    chosen: list[list[bool]] = []
    for _ in population:
        best: Genome = min(rng.choices(population, k=_TOURNAMENT), key=time)
        chosen.append(list(best))
    for one, other in zip(chosen[::2], chosen[1::2], strict=False):
        if len(one) > 1 and rng.random() < _CROSSOVER:
            start, stop = sorted(rng.sample(range(len(one) + 1), 2))
            one[start:stop], other[start:stop] = other[start:stop], one[start:stop]
    for genome in chosen:
        if rng.random() < _MUTATION:
            genome[:] = [bit ^ (rng.random() < _FLIP) for bit in genome]
    return [tuple(genome) for genome in chosen]
