"""`Technique`: what proposes points of a grid to try."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from typing import ClassVar

from bricolage.tune.grid import Grid, History, Point

_TRIES = 64
"""Draws before a technique says that it knows nothing more."""


class Technique(ABC):
    """Proposes points of one grid."""

    name: ClassVar[str]

    def __init__(self, grid: Grid, history: History, seed: int) -> None:
        self.grid, self.history, self.rng = grid, history, random.Random(seed)

    def propose(self) -> Point | None:
        """A point that is neither known nor pending, which is pending from now on; None where it has none."""
        point = next(self.history.fresh(itertools.islice(iter(self._draw, None), _TRIES)), None)
        if point is None:
            point = next(self.history.fresh(self._last()), None)
        if point is not None:
            self.history.pending.add(point)
        return point

    @abstractmethod
    def _draw(self) -> Point | None:
        """A point that may be known already; None to give up."""

    def _last(self) -> list[Point]:
        """Where draws found nothing new: neighbours of the best."""
        return [point for best in [*self.history.best(3), self.grid.origin] for point in self.grid.neighbours(best)]

    def tell(self, point: Point, share: float) -> None:
        """What came of a point that this technique proposed; the history knows it already."""
        del point, share
