"""A biased random-key genetic algorithm: Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial
optimization", Journal of Heuristics 17, 2011.

An individual is numbers in [0, 1], which a decoder that never varies makes a solution; so any keys are one. The best survive,
some are drawn near a start that is known to be good, the others inherit each key from one of two parents, more often from the
better one. Where something is known of each key (`KeyDistributions`), new individuals are drawn from that instead, as REGAL's are
(Paliwal et al., ICLR 2020).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RandomKeyOptions:
    """Raises ValueError where parents would be missing.

    population: individuals. elites, mutants: shares that survive, and that are new, in each generation. inherit: probability of
    a key to come from the elite parent. generations: how many. seed: of chance."""

    population: int = 24
    elites: float = 0.25
    mutants: float = 0.2
    inherit: float = 0.7
    generations: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.population < 4 or not 0.0 < self.elites < 0.5 or not 0.0 <= self.mutants <= 0.5:
            raise ValueError(
                "random keys need four individuals, less than half of them elites, and at most half of them new"
            )


@dataclass(frozen=True)
class KeyDistributions:
    """A beta distribution of each key, by its two parameters, [keys] each. Raises ValueError where one is not above 0."""

    alpha: np.ndarray
    beta: np.ndarray

    def __post_init__(self) -> None:
        if self.alpha.shape != self.beta.shape or not (np.all(self.alpha > 0.0) and np.all(self.beta > 0.0)):
            raise ValueError("a beta distribution has two parameters above 0 for each key")

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """Keys, [keys] in [0, 1]."""
        return random.beta(self.alpha, self.beta)


def minimise(
    score: Callable[[np.ndarray], float],
    starts: Sequence[np.ndarray],
    options: RandomKeyOptions,
    *,
    distributions: KeyDistributions | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> np.ndarray:
    """The keys with the lowest score that were met. The same arguments give the same keys, unless it is `stopped`.

    Args:
        score: of keys; infinite where they are no solution.
        starts: keys to begin with, at least one, all of one shape; new ones are drawn near the first.
        options: sizes and shares.
        distributions: that new individuals are drawn from, those of the first generation too; without them near the first start.
        stopped: asked after each individual; what is best by then is returned.
    """
    draw = np.random.default_rng(options.seed)
    biased = starts[0]

    def near(share: float) -> np.ndarray:
        """The keys of the first start, some of them anew; all of them anew from what is known of them."""
        if distributions is not None:
            return distributions.draw(draw)
        return np.where(draw.random(biased.shape) < share, draw.random(biased.shape), biased)

    size, elites = options.population, max(1, round(options.population * options.elites))
    mutants = round(size * options.mutants)
    people = [*starts, *(near(0.1 + 0.4 * number / size) for number in range(len(starts), size))]
    best, lowest = biased, np.inf
    for _ in range(options.generations + 1):
        scored: list[tuple[float, np.ndarray]] = []
        for keys in people:
            fitness = score(keys)
            scored.append((fitness, keys))
            if fitness < lowest:
                best, lowest = keys, fitness
            if stopped():
                return best
        scored.sort(key=lambda pair: pair[0])
        parents = [keys for _, keys in scored]
        people = [*parents[:elites], *(near(0.5) for _ in range(mutants))]
        while len(people) < size:
            strong, other = parents[draw.integers(elites)], parents[draw.integers(elites, size)]
            people.append(np.where(draw.random(strong.shape) < options.inherit, strong, other))
    return best
