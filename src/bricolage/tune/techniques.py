"""Search techniques: each proposes the next point of a task's grid to try. They share all results, whichever proposed them.

To add one, derive from `Technique` and give it a line in `TECHNIQUES`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from bricolage.tune.grid import Grid, History, Point
from bricolage.tune.surrogate import Surrogate
from bricolage.tune.technique import Technique


class RandomSearch(Technique):
    """Points drawn independently."""

    name: ClassVar[str] = "random"

    def _draw(self) -> Point:
        return self.grid.draw(self.rng)


class Evolution(Technique):
    """Crossover and mutation of the fastest points known: a steady-state genetic algorithm with truncation selection."""

    name: ClassVar[str] = "evolutionary"
    _PARENTS = 8
    _MUTATES = 0.7

    def _draw(self) -> Point:
        parents = self.history.best(self._PARENTS)
        if len(parents) < 2:
            return self.grid.draw(self.rng)
        parent, other = self.rng.sample(parents, 2)
        child = tuple(self.rng.choice(pair) for pair in zip(parent, other, strict=True))
        return self.grid.step(child, self.rng) if self.rng.random() < self._MUTATES else child


class Annealing(Technique):
    """A walk that accepts worse points with a probability that falls (Kirkpatrick et al., Science 1983); energies are logarithms of
    shares, so that the temperature is a relative loss."""

    name: ClassVar[str] = "annealing"
    _HOT, _COOLING = 0.2, 0.95

    def __init__(self, grid: Grid, history: History, seed: int) -> None:
        super().__init__(grid, history, seed)
        self._at, self._share, self._temperature = grid.origin, 1.0, self._HOT

    def _draw(self) -> Point:
        return self.grid.step(self._at, self.rng)

    def tell(self, point: Point, share: float) -> None:
        """Goes there, or stays."""
        loss = math.log(share / self._share) if share < math.inf else math.inf
        if loss <= 0 or self.rng.random() < math.exp(-loss / self._temperature):
            self._at, self._share = point, share
        self._temperature *= self._COOLING


class PatternSearch(Technique):
    """Exploratory moves along one axis after another around the best point, then a move on in the direction that has paid (Hooke
    and Jeeves, JACM 1961); axes without an order go through their values."""

    name: ClassVar[str] = "pattern"

    def __init__(self, grid: Grid, history: History, seed: int) -> None:
        super().__init__(grid, history, seed)
        self._base, self._before = grid.origin, grid.origin

    def _draw(self) -> Point | None:
        best = next(iter(self.history.best(1)), self.grid.origin)
        if best != self._base:
            self._before, self._base = self._base, best
        moves = [self._onward(), *self.grid.neighbours(self._base)]
        return next(self.history.fresh(moves), None)

    def _onward(self) -> Point:
        """As far again in the direction of the last gain, on ordered axes."""
        point = []
        for at, was, radix, ordered in zip(self._base, self._before, self.grid.radix, self.grid.ordered, strict=True):
            point.append(min(max(at + (at - was), 0), radix - 1) if ordered else at)
        return tuple(point)


class Bandit(Technique):
    """OpenTuner's choice among techniques (Ansel et al., PACT 2014): the one with the greatest area under its curve of new bests,
    plus what is owed to those that were seldom asked.

        score(t) = AUC_t + C sqrt(2 log2 |H| / n_t),   AUC_t = 2 Σ positions of new bests / (n_t (n_t + 1))
    """

    name: ClassVar[str] = "bandit"
    _C, _WINDOW = 0.05, 500

    def __init__(self, grid: Grid, history: History, seed: int, arms: list[Technique] | None = None) -> None:
        super().__init__(grid, history, seed)
        default_arms = [kind(grid, history, seed + n) for n, kind in enumerate(_available()) if kind is not Bandit]
        self.arms = {arm.name: arm for arm in arms or default_arms}
        self._asked: list[tuple[str, bool]] = []
        """The window: who was asked, and whether it gave a new best."""
        self._by: dict[Point, tuple[str, float]] = {}

    def propose(self) -> Point | None:
        """Of the arm with the best score that has something to propose."""
        for name in sorted(self.arms, key=self.score, reverse=True):
            point = self.arms[name].propose()
            if point is not None:
                self._by[point] = name, self.history.least
                return point
        return None

    def score(self, name: str) -> float:
        """Exploitation and exploration."""
        hits = [gave for asked, gave in self._asked if asked == name]
        if not hits:
            return math.inf
        area = 2.0 * sum(n for n, gave in enumerate(hits, 1) if gave) / (len(hits) * (len(hits) + 1))
        return area + self._C * math.sqrt(2.0 * math.log2(len(self._asked)) / len(hits))

    def tell(self, point: Point, share: float) -> None:
        """Credits the arm."""
        name, least = self._by.pop(point, ("", 0.0))
        if name:
            self.arms[name].tell(point, share)
            self._asked = [*self._asked, (name, share < least)][-self._WINDOW :]

    def _draw(self) -> None:
        return None


def technique(name: str, grid: Grid, history: History, seed: int) -> Technique:
    """A technique by name, one of `techniques`."""
    return next(kind for kind in _available() if kind.name == name)(grid, history, seed)


def techniques() -> tuple[str, ...]:
    """Names of those that can be used here."""
    return tuple(kind.name for kind in _available())


def _available() -> list[type[Technique]]:
    return [*TECHNIQUES.values(), *([Surrogate] if Surrogate.installed() else [])]


TECHNIQUES: Mapping[str, type[Technique]] = {
    kind.name: kind for kind in (RandomSearch, Evolution, Annealing, PatternSearch, Bandit)
}
"""By name; in addition `surrogate.Surrogate`, where its library is installed."""
