"""A biased random-key genetic algorithm over devices and order, which begins at HEFT and DPOS.

Gonçalves and Resende, "Biased random-key genetic algorithms for combinatorial optimization", 2011; for graphs on devices as in
Paliwal, Gimeno, Nair, Li, Lubin, Kohli and Vinyals, "REGAL", ICLR 2020, whose learnt part, distributions of the first keys, is here
those of HEFT and DPOS. Keys are numbers in [0, 1]: for each task and device how much it wants to be there, for each task
how urgent it is. A decoder that never varies makes them a schedule, so that any keys are one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bricolage.errors import DevicesTooSmall
from bricolage.schedule.fastt import dpos
from bricolage.schedule.heterogeneous import by_readiness, heft, insert, upward_ranks
from bricolage.schedule.problem import ScheduleProblem
from bricolage.schedule.schedule import Schedule


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


def random_keys(problem: ScheduleProblem, options: RandomKeyOptions | None = None) -> Schedule:
    """The best schedule found; never longer than HEFT's or DPOS's. A function of its arguments.

    Raises:
        DevicesTooSmall: HEFT or DPOS finds no room for some task.
    """
    chosen = options or RandomKeyOptions()
    draw = np.random.default_rng(chosen.seed)
    devices, count = list(problem.cores), len(problem)
    starts = sorted((heft(problem), dpos(problem)), key=lambda one: one.makespan_ms)
    if not count:
        return Schedule((), "BRKGA")
    ranks = np.array(upward_ranks(problem))
    keys_of = []
    for start in starts:
        keys = np.full((count, len(devices) + 1), 0.5)
        keys[:, -1] = ranks / max(float(ranks.max()), 1e-300)
        for task, one in enumerate(start.intervals):
            keys[task, devices.index(one.device)] = 1.0
        keys_of.append(keys)
    biased = keys_of[0]

    def decoded(keys: np.ndarray) -> Schedule | None:
        only = {task: max(problem.times[task], key=lambda one: keys[task, devices.index(one)]) for task in range(count)}
        nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
        try:
            return insert(problem, by_readiness(problem, keys[:, -1].tolist()), nothing, "BRKGA", only)
        except DevicesTooSmall:
            return None

    def near(share: float) -> np.ndarray:
        """The keys of the better start, some of them anew."""
        return np.where(draw.random(biased.shape) < share, draw.random(biased.shape), biased)

    best = Schedule(starts[0].intervals, "BRKGA")
    size, elites = chosen.population, max(1, round(chosen.population * chosen.elites))
    mutants = round(size * chosen.mutants)
    people = [*keys_of, *(near(0.1 + 0.4 * number / size) for number in range(len(keys_of), size))]
    for _ in range(chosen.generations + 1):
        scored = []
        for keys in people:
            found = decoded(keys)
            scored.append((found.makespan_ms if found is not None else np.inf, keys))
            if found is not None and found.makespan_ms < best.makespan_ms:
                best = found
        scored.sort(key=lambda one: one[0])
        parents = [keys for _, keys in scored]
        people = [*parents[:elites], *(near(0.5) for _ in range(mutants))]
        while len(people) < size:
            strong, other = parents[draw.integers(elites)], parents[draw.integers(elites, size)]
            people.append(np.where(draw.random(strong.shape) < chosen.inherit, strong, other))
    return best
