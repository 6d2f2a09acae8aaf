"""Evolutionary refinement of a placement, judged by end-to-end time.

The additive model cannot see that an engine gains when its neighbours join it. So the regions of the op-level optimum
become the genes of an evolutionary search, as in Collage (PACT'22, section 4), but with every engine at once as a
possible value, with the best individuals always kept, and with a model to sort out poor offspring before they cost a
measurement.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from bricolage.errors import BadOption
from bricolage.search.placement.merge import merge_regions
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement import Candidate, quotient
from bricolage.work.work_graph import WorkGraph

Genome: TypeAlias = tuple[int, ...]
Stop: TypeAlias = Literal["generations", "asked", "patience", "exhausted"]


@dataclass(frozen=True)
class EvolutionOptions:
    """What the search may spend, and how it varies placements.

    population: individuals that survive a generation. offspring: placements measured in each generation, the seeds
    aside. generations: an upper bound, 0 measures the seeds only. oversampling: offspring made for each one
    measured. tournament: survivors among which a parent is the best. crossover, spread: shares of offspring with two
    parents, and with a connected run of groups moved to one engine. mutation: expected number of groups changed singly.
    patience: generations without a gain before it stops.
    """

    population: int = 16
    offspring: int = 12
    generations: int = 20
    seed: int = 0
    oversampling: int = 6
    tournament: int = 3
    crossover: float = 0.5
    spread: float = 0.6
    mutation: float = 1.0
    patience: int = 6

    def __post_init__(self) -> None:
        least = {"population": 1, "offspring": 1, "generations": 0, "oversampling": 1, "tournament": 1, "patience": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise BadOption(option=name, value=getattr(self, name), advice=f"Give at least {value}")


@dataclass(frozen=True)
class Individual:
    """A measured placement: its genes, and its end-to-end time in ms (None: it failed)."""

    genome: Genome
    placement: Placement
    measured_ms: float | None


@dataclass(frozen=True)
class Generation:
    """One step of the history; generation 0 holds the seeds. `best_ms` is the best so far."""

    number: int
    measured: tuple[Individual, ...]
    best_ms: float | None


@dataclass(frozen=True)
class EvolutionResult:
    """The best individual ever measured (the unmeasured op-level optimum if all failed), and how it came about."""

    best: Individual
    history: tuple[Generation, ...]
    stopped: Stop

    @property
    def measured(self) -> tuple[Individual, ...]:
        """All individuals in the order of their measurement."""
        return tuple(individual for generation in self.history for individual in generation.measured)


def evolve(
    graph: WorkGraph,
    optimum: Sequence[Candidate],
    *,
    allowed: Callable[[int], Sequence[Implementation]],
    measure: Callable[[list[Placement]], Sequence[float | None]],
    predict: Callable[[Placement], float],
    options: EvolutionOptions | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_generation: Callable[[Generation], None] = lambda _: None,
) -> EvolutionResult:
    """Refine `optimum`, the choices of an op-level placement, by moving its regions between engines.

    `allowed` gives the implementations by engines that may run a region; `measure` the end-to-end times in ms of some
    placements, None for one that failed; `predict` a cheap estimate in ms. The seeds are the optimum, and each engine
    wherever it is allowed with the optimum elsewhere, so each engine alone where that is legal. Equal placements are
    measured once.

    With a `should_stop` that stays False, the result is a function of the arguments and the
    callbacks' answers. It may be stopped between any two generations; what was measured is never lost.
    """
    options = options or EvolutionOptions()
    space = _Space(graph, optimum, allowed)
    seen: set[Placement] = set()
    best = Individual(space.origin, space.placement(space.origin), None)
    survivors: list[Individual] = []
    history: list[Generation] = []
    rng = random.Random(options.seed)
    stale = 0
    while True:
        if should_stop():
            return EvolutionResult(best, tuple(history), "asked")
        if len(history) > options.generations:
            return EvolutionResult(best, tuple(history), "generations")
        if stale >= options.patience:
            return EvolutionResult(best, tuple(history), "patience")
        brood = (
            space.fresh(space.seeds(), seen) if not history else _brood(space, survivors, seen, rng, options, predict)
        )
        if not brood:
            return EvolutionResult(best, tuple(history), "exhausted")
        seen.update(individual.placement for individual in brood)
        times = measure([individual.placement for individual in brood])
        measured = tuple(replace(child, measured_ms=ms) for child, ms in zip(brood, times, strict=True))
        # Stable: of equals the earlier one stays, so the best never changes without a gain.
        survivors = sorted([*survivors, *measured], key=_fitness)[: options.population]
        gained = _fitness(survivors[0]) < _fitness(best)
        best = survivors[0] if gained else best
        stale = 0 if gained else stale + 1
        history.append(Generation(len(history), measured, best.measured_ms))
        on_generation(history[-1])


def _fitness(individual: Individual) -> float:
    return float("inf") if individual.measured_ms is None else individual.measured_ms


def _brood(
    space: _Space,
    survivors: Sequence[Individual],
    seen: set[Placement],
    rng: random.Random,
    options: EvolutionOptions,
    predict: Callable[[Placement], float],
) -> list[Individual]:
    """The most promising of many new offspring, by prediction; fewer, or none, when little is left to try."""
    wanted = options.offspring * options.oversampling
    offspring: dict[Placement, Individual] = {}
    for _ in range(10 * wanted):
        if len(offspring) >= wanted:
            break
        parents = [min(rng.choices(survivors, k=options.tournament), key=_fitness) for _ in range(2)]
        genome = space.vary([parent.genome for parent in parents], rng, options)
        placement = space.placement(genome)
        if placement not in seen:
            offspring.setdefault(placement, Individual(genome, placement, None))
    # Python's sort is stable, so equal predictions keep the order in which they were made.
    return sorted(offspring.values(), key=lambda individual: predict(individual.placement))[: options.offspring]


class _Space:
    """The genomes over one optimum: gene 0 keeps the optimum's choice, gene k moves the group to its k-th engine."""

    def __init__(
        self, graph: WorkGraph, optimum: Sequence[Candidate], allowed: Callable[[int], Sequence[Implementation]]
    ) -> None:
        self._graph = graph
        self._groups = tuple(optimum)
        self._values: list[list[Candidate]] = []
        self._gene: list[dict[Implementation, int]] = []
        for group in self._groups:
            engines = dict.fromkeys([group.implementation, *allowed(group.region)])
            self._gene.append({engine: index for index, engine in enumerate(engines)})
            moved = [
                replace(group, implementation=implementation, merges=True, key="")
                for implementation in list(engines)[1:]
            ]
            self._values.append([group, *moved])
        self._engines = sorted({engine for genes in self._gene for engine in genes})
        self._movable = [index for index, genes in enumerate(self._gene) if len(genes) > 1]
        regions = [group.region for group in self._groups]
        neighbours: list[set[int]] = [set() for _ in regions]
        for source, targets in enumerate(quotient(graph, regions)):
            neighbours[source] |= targets
            for target in targets:
                neighbours[target].add(source)
        self._neighbours = [sorted(around) for around in neighbours]
        self.origin: Genome = (0,) * len(self._groups)

    def placement(self, genome: Genome) -> Placement:
        """The canonical merged placement of `genome`."""
        choices = [values[gene] for values, gene in zip(self._values, genome, strict=True)]
        return merge_regions(self._graph, choices)

    def seeds(self) -> list[Genome]:
        """The optimum, then every engine wherever it is allowed."""
        return [self.origin, *(tuple(genes.get(engine, 0) for genes in self._gene) for engine in self._engines)]

    def fresh(self, genomes: Sequence[Genome], seen: set[Placement]) -> list[Individual]:
        """Individuals for the genomes with distinct placements that are not in `seen`."""
        individuals: dict[Placement, Individual] = {}
        for genome in genomes:
            placement = self.placement(genome)
            if placement not in seen:
                individuals.setdefault(placement, Individual(genome, placement, None))
        return list(individuals.values())

    def vary(self, parents: Sequence[Genome], rng: random.Random, options: EvolutionOptions) -> Genome:
        """A child of `parents`: crossed over between two points, then mutated."""
        genes = list(parents[0])
        if not self._movable:
            return tuple(genes)
        if rng.random() < options.crossover:
            start, stop = sorted(rng.choices(range(len(genes) + 1), k=2))
            genes[start:stop] = parents[1][start:stop]
        if rng.random() < options.spread:
            self._spread(genes, rng)
        rate = options.mutation / len(self._movable)
        for index in self._movable:
            if rng.random() < rate:
                genes[index] = rng.randrange(len(self._values[index]))
        return tuple(genes)

    def _spread(self, genes: list[int], rng: random.Random) -> None:
        """Move a connected run of groups, of random length, to one engine: this is what makes larger regions."""
        start = rng.choice(self._movable)
        engine = rng.choice(list(self._gene[start]))
        length = 1 + int(rng.expovariate(1 / 3))
        visited, run = {start}, [start]
        while run and length:
            index = run.pop(rng.randrange(len(run)))
            genes[index] = self._gene[index][engine]
            length -= 1
            for other in self._neighbours[index]:
                if other not in visited and engine in self._gene[other]:
                    visited.add(other)
                    run.append(other)
