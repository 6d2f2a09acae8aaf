"""A tuning task as a grid of points, and what is known of them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from bricolage.work.config_space import Choice, TuningTask

Point: TypeAlias = tuple[int, ...]
"""For each parameter of a task, in order of names, the number of its value; 0 is what rules of thumb say."""


class Grid:
    """The choices of a task as points."""

    def __init__(self, task: TuningTask) -> None:
        self.names = tuple(sorted(task.parameters))
        self._values = [task.parameters[name] for name in self.names]
        self.radix = tuple(len(values) + 1 for values in self._values)
        """How many values each parameter has, the usual one included."""
        self.ordered = tuple(
            len(values) > 1 and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
            for values in self._values
        )
        """Whether values near each other may be alike."""
        self.size = math.prod(self.radix)
        self.origin: Point = (0,) * len(self.radix)
        """All by rules of thumb."""

    def choice(self, point: Point) -> Choice:
        """The configuration of a point."""
        axes = zip(self.names, self._values, point, strict=True)
        return tuple((name, values[at - 1]) for name, values, at in axes if at)

    def point(self, choice: Choice) -> Point | None:
        """Where a choice is; None where it is none of this task."""
        given = dict(choice)
        if len(given) != len(choice) or not set(given) <= set(self.names):
            return None
        coordinates: list[int] = []
        for name, values in zip(self.names, self._values, strict=True):
            at = 0
            if name in given:
                setting = given[name]
                at = next((n for n, v in enumerate(values, 1) if v == setting and type(v) is type(setting)), -1)
            if at < 0:
                return None
            coordinates.append(at)
        return tuple(coordinates)

    def draw(self, rng: random.Random) -> Point:
        """A point; each parameter is as usual half of the time, since most choices do nothing for most kernels."""
        return tuple(0 if rng.random() < 0.5 else rng.randrange(1, radix) for radix in self.radix)

    def step(self, point: Point, rng: random.Random) -> Point:
        """A neighbour: one parameter has another value; an ordered one the next or the usual one, mostly."""
        axis = rng.randrange(len(point))
        return self._with(point, axis, rng.choice(self._near(point, axis)))

    def neighbours(self, point: Point) -> Iterator[Point]:
        """All points with one other value."""
        for axis, radix in enumerate(self.radix):
            for at in range(radix):
                if at != point[axis]:
                    yield self._with(point, axis, at)

    def _near(self, point: Point, axis: int) -> list[int]:
        at, radix = point[axis], self.radix[axis]
        if not self.ordered[axis] or at == 0:
            return [other for other in range(radix) if other != at]
        return [other for other in (0, at - 1, at + 1) if other != at and 0 <= other < radix]

    def _with(self, point: Point, axis: int, at: int) -> Point:
        return (*point[:axis], at, *point[axis + 1 :])


@dataclass
class History:
    """What is known of the points of a grid: the part of the usual time that each takes; infinite for those that fail."""

    shares: dict[Point, float] = field(default_factory=dict)
    pending: set[Point] = field(default_factory=set)
    """Proposed, and not known yet."""
    curve: list[float] = field(default_factory=list)
    """Least share after each trial."""

    def tell(self, point: Point, share: float) -> None:
        """What came of a trial."""
        self.pending.discard(point)
        self.shares[point] = share
        self.curve.append(min(share, self.curve[-1] if self.curve else 1.0))

    def fresh(self, points: Iterable[Point]) -> Iterator[Point]:
        """Those that are neither known nor pending."""
        return (point for point in points if point not in self.shares and point not in self.pending)

    @property
    def least(self) -> float:
        """The least share; 1 where nothing is faster than usual."""
        return self.curve[-1] if self.curve else 1.0

    def best(self, count: int) -> list[Point]:
        """The fastest points of those that work, fastest first."""
        measured = [(share, point) for point, share in self.shares.items() if share < math.inf]
        return [point for _, point in sorted(measured)[:count]]
