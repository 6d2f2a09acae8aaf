"""Precision by structure: breadth-first search over the parts of a network, as CRAFT does over those of a program (Lam,
Hollingsworth, de Supinski and LeGendre, "Automatically adapting programs for mixed-precision floating-point computation", ICS
2013).

The whole runs in the low precision; what is too inaccurate is divided, at segments first and then between operators, and its
halves are tried in their turn, those that compute most first. At the end everything that passed alone is tried together, and
where that fails parts are taken out by delta debugging (Zeller and Hildebrandt, TSE 2002). Several low precisions are tried one
after another, the most accurate first; each may take the place of those before it. Nothing is predicted: each trial is
compiled, checked and timed end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bricolage.work.bits import members
from bricolage.work.implementation import Assignment, Implementation, Placement

Trial = Callable[[Sequence[Placement]], Sequence[float | None]]
"""Times placements end to end in ms; None for one that is too inaccurate, fails or was not measured."""


@dataclass
class PrecisionSearchResult:
    """Every placement that passed, with its time in ms, in the order of the trials; how many were tried."""

    passed: list[tuple[Placement, float]] = field(default_factory=list)
    trials: int = 0

    @property
    def best(self) -> tuple[Placement, float] | None:
        """The fastest that passed."""
        return min(self.passed, key=lambda one: one[1], default=None)


def breadth_first(
    segments: Sequence[int],
    work: Mapping[int, float],
    full: Implementation,
    lows: Sequence[Implementation],
    trial: Trial,
    turn: Callable[[int], Callable[[], bool]] = lambda _: lambda: False,
    *,
    wrong: Collection[Placement] = (),
    smallest: int = 1,
    trials: int = 200,
) -> PrecisionSearchResult:
    """Looks for placements in several precisions of which as much as possible is low.

    Args:
        segments: bit-sets that cover the graph in executable order.
        work: of each operator, by number: parts with more are tried first.
        full: runs what no low precision may.
        lows: implementations in low precisions, the most accurate first: each may take the place of those before it.
        trial: times placements; those of one level of the search come together.
        turn: given how many low precisions are left, what to ask before each level whether the time of this one is over.
        wrong: placements that are known to be too inaccurate.
        smallest: operators of a part that is not divided further.
        trials: no more placements than these are tried, for each precision its part.
    """
    known: dict[Placement, float | None] = dict.fromkeys(wrong)
    return _Search(segments, work, full, trial, turn, smallest, trials, known).run(lows)


@dataclass
class _Search:
    segments: Sequence[int]
    work: Mapping[int, float]
    full: Implementation
    trial: Trial
    turn: Callable[[int], Callable[[], bool]]
    smallest: int
    most: int
    known: dict[Placement, float | None]
    found: PrecisionSearchResult = field(default_factory=PrecisionSearchResult)
    stop: Callable[[], bool] = lambda: False
    standing: dict[int, Implementation] = field(default_factory=dict)
    """Who runs an operator that a low precision was found for."""

    def run(self, lows: Sequence[Implementation]) -> PrecisionSearchResult:
        most = self.most
        for number, low in enumerate(lows):
            left = len(lows) - number
            self.stop, self.most = self.turn(left), self.found.trials + -(-(most - self.found.trials) // left)
            kept = self._together(low, self._alone(low))
            self.standing.update((number, low) for part in kept for number in members(part))
        return self.found

    def _alone(self, low: Implementation) -> list[int]:
        """Disjoint parts that pass with nothing else in this precision, as large as they come."""
        level, passed = [sum(self.segments)], list[int]()
        while level and not self.stop() and self.found.trials < self.most:
            level.sort(key=lambda part: -sum(self.work.get(number, 0.0) for number in members(part)))
            right = self._passing([self._placement([part], low) for part in level])
            passed += [part for part, good in zip(level, right, strict=True) if good]
            level = [half for part, good in zip(level, right, strict=True) if not good for half in self._halves(part)]
        return passed

    def _together(self, low: Implementation, parts: list[int]) -> list[int]:
        """A large set of the parts that pass together: all of them, or what delta debugging leaves, taking out pieces that get
        smaller as long as nothing passes."""
        pieces = 2
        while len(parts) > 1 and not self.stop() and self.found.trials < self.most:
            if self._passing([self._placement(parts, low)])[0]:
                return parts
            size = -(-len(parts) // pieces)
            cuts = [parts[at : at + size] for at in range(0, len(parts), size)]
            fewer = [[part for part in parts if part not in cut] for cut in cuts]
            right = self._passing([self._placement(some, low) for some in fewer])
            good = [some for some, passes in zip(fewer, right, strict=True) if passes and some]
            if good:
                return max(good, key=lambda some: sum(self.work.get(n, 0.0) for part in some for n in members(part)))
            if pieces >= len(parts):  # not even all but one: the one with the least work is left out for good
                parts = sorted(parts, key=lambda part: -sum(self.work.get(n, 0.0) for n in members(part)))[:-1]
                pieces = 2
            else:
                pieces = min(2 * pieces, len(parts))
        return parts

    def _halves(self, part: int) -> list[int]:
        """A part divided between segments, or between operators where it lies within one."""
        if part.bit_count() <= self.smallest:
            return []
        touched = [segment & part for segment in self.segments if segment & part]
        if len(touched) > 1:
            middle = len(touched) // 2
            return [sum(touched[:middle]), sum(touched[middle:])]
        numbers = members(part)
        middle = len(numbers) // 2
        return [sum(1 << n for n in some) for some in (numbers[:middle], numbers[middle:])]

    def _placement(self, parts: Sequence[int], low: Implementation) -> Placement:
        """These parts in the low precision, what was found before as it is, the rest in full; neighbours together."""
        lowered = sum(parts)
        order = [number for segment in self.segments for number in members(segment)]

        def who(number: int) -> Implementation:
            return low if lowered >> number & 1 else self.standing.get(number, self.full)

        return tuple(Assignment(sum(1 << n for n in numbers), one) for one, numbers in groupby(order, key=who))

    def _passing(self, placements: Sequence[Placement]) -> list[bool]:
        """Whether each is accurate enough; what passes is remembered with its time."""
        new = [one for one in dict.fromkeys(placements) if one not in self.known][
            : max(0, self.most - self.found.trials)
        ]
        times = self.trial(new) if new else []
        self.found.trials += len(new)
        for one, ms in zip(new, times, strict=True):
            self.known[one] = ms
            if ms is not None:
                self.found.passed.append((one, ms))
        return [self.known.get(one) is not None for one in placements]
