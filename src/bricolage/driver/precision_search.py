"""Precision by structure: which parts of a network bear a low precision, found by trials end to end.

The parts are searched from large to small over the structure, as CRAFT does over that of a program (Lam, Hollingsworth, de Supinski
and LeGendre, "Automatically adapting programs for mixed-precision floating-point computation", ICS 2013). CRAFT asks of each part
whether it passes. Here a trial also says how far off it is, and from that follows:

* Squares of errors of parts add up, as those of independent roundings do. So the parts that run in low precision together are those
  with the most gain for their square error that the bound has room for (a greedy choice for a knapsack with several sizes of each
  item), at every moment, from the errors that are known; of a part that does not fit as a whole, as many segments as do.
* How the error of a part, and what it gains, are spread over its segments is taken from what segments showed alone, on their own
  inputs, as far as that was measured, and else from their work. So the first choice knows of a segment that bears nothing.
* What such a choice measures corrects the next one, by as much as its error was more or less than predicted.

Then a part is divided, where a low precision has most to gain, and its halves are tried alone. Several low precisions take part one
after another, the most accurate first, in one choice with those before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from bricolage.costs.entries import Cost
from bricolage.work.bits import members
from bricolage.work.implementation import Assignment, Implementation, Placement

Trial = Callable[[Sequence[Placement]], Sequence[Cost | None]]
"""Checks and times placements end to end; None for one that was not measured."""

_ROOM = 0.97
"""Part of the bound that a choice may take by prediction."""
_LEAST_CAUTION = 0.25
"""Part of the room that is left after choices have failed, at least."""
_CORRECTION = (0.25, 16.0)
"""What squares of errors are multiplied by at least and at most after a choice that was better or worse than predicted."""
_GAIN = (0.25, 2.0)
"""Times what is expected of a part: what a trial of it may say that it gains, since times are noisy."""
_LITTLE = 0.01
"""Of the time in full precision: a part that could gain less is not divided."""
_ABOUT = 0.9
"""Times the error of another one: less is more accurate than it."""
_FAR = 100.0
"""Times the bound: what a part is off by of which nothing is known but that it fails."""


@dataclass
class PrecisionSearchResult:
    """Every placement that passed, with its time in ms, in the order of the trials; how many were tried."""

    passed: list[tuple[Placement, float]] = field(default_factory=list)
    trials: int = 0

    @property
    def best(self) -> tuple[Placement, float] | None:
        """The fastest that passed."""
        return min(self.passed, key=lambda entry: entry[1], default=None)


@dataclass(frozen=True)
class LowPrecision:
    """One that is too inaccurate for the whole, whose relative error and time in ms are known."""

    implementation: Implementation
    ms: float
    error: float | None = None


@dataclass(frozen=True)
class AloneCost:
    """What a low precision gains on one segment alone, in ms, and its relative error there."""

    gain_ms: float
    error: float


@dataclass(frozen=True)
class _Part:
    """What is known of operators in a low precision that are alone in it."""

    bits: int
    gain_ms: float
    square: float
    """Of the relative error."""


def search_precisions(
    segments: Sequence[int],
    work: Mapping[int, float],
    fulls: Mapping[Implementation, float],
    lows: Sequence[LowPrecision],
    bound: float,
    trial: Trial,
    turn: Callable[[int], Callable[[], bool]] = lambda _: lambda: False,
    *,
    alone: Mapping[int, AloneCost] | None = None,
    trials: int = 200,
) -> PrecisionSearchResult:
    """Looks for placements in several precisions of which as much as possible is low.

    Args:
        segments: bit-sets that cover the graph in executable order.
        work: of each operator, by number, in any unit.
        fulls: who may run what no low precision may, with the time in ms of the whole, the fastest first. Of several, the one with
            which the first choice is fastest.
        lows: low precisions, all of them faster than the first of `fulls`, in the order in which they take part.
        bound: the relative error that passes.
        trial: measures placements; those of one level of the search come together.
        turn: given how many low precisions are left, what to ask before each level whether the time of this one is over.
        alone: of segments, measured in one of the low precisions.
        trials: no more placements than these are tried.
    """
    shares = _Shares(segments, work, alone or {})
    return _Search(segments, shares, fulls, bound, trial, turn, trials).run(lows)


class _Shares:
    """What operators are expected to gain and to err, in proportion to each other."""

    def __init__(self, segments: Sequence[int], work: Mapping[int, float], alone: Mapping[int, AloneCost]) -> None:
        least = 1e-6 * sum(work.values()) or 1.0
        loads = {number: max(work.get(number, 0.0), least) for number in members(sum(segments))}
        covered = sum(loads[number] for segment in alone for number in members(segment))
        by_work = {
            "gain": sum(alone_cost.gain_ms for alone_cost in alone.values()) / covered if covered else 1.0,
            "square": sum(alone_cost.error**2 for alone_cost in alone.values()) / covered if covered else 1.0,
        }
        self._gains: dict[int, float] = {}
        self._squares: dict[int, float] = {}
        for segment in segments:
            total = sum(loads[number] for number in members(segment))
            cost = alone.get(segment)
            gain = by_work["gain"] * total if cost is None else cost.gain_ms
            square = by_work["square"] * total if cost is None else cost.error**2
            for number in members(segment):
                self._gains[number] = max(gain, 1e-12) * loads[number] / total
                self._squares[number] = max(square, 1e-20) * loads[number] / total

    def gain(self, bits: int) -> float:
        """Of these operators."""
        return sum(self._gains[number] for number in members(bits))

    def square(self, bits: int) -> float:
        """Of the error of these operators."""
        return sum(self._squares[number] for number in members(bits))


@dataclass
class _Search:
    segments: Sequence[int]
    shares: _Shares
    fulls: Mapping[Implementation, float]
    bound: float
    trial: Trial
    turn: Callable[[int], Callable[[], bool]]
    most: int
    known: dict[Placement, Cost | None] = field(default_factory=dict)
    found: PrecisionSearchResult = field(default_factory=PrecisionSearchResult)
    parts: dict[Implementation, list[_Part]] = field(default_factory=dict)
    """Of each low precision: disjoint, together all operators."""
    last: dict[Implementation, tuple[dict[int, Implementation], float]] = field(default_factory=dict)
    """Who ran which operator in the last choice that was measured, and its relative error: of the precision in it of which the
    least is known."""
    caution: float = 1.0
    """What the room is multiplied by since choices failed."""

    def run(self, lows: Sequence[LowPrecision]) -> PrecisionSearchResult:
        everything = sum(self.segments)
        self.full, self.full_ms = next(iter(self.fulls.items()))
        for number, low in enumerate(lows):
            square = (_FAR * self.bound if low.error is None else low.error) ** 2
            self.parts[low.implementation] = [_Part(everything, max(0.0, self.full_ms - low.ms), square)]
            self.known[(Assignment(everything, low.implementation),)] = Cost("wrong", error=low.error)
            left = len(lows) - number
            most = self.found.trials + -(-(self.most - self.found.trials) // left)
            self._turn(self.turn(left), most, full_open=number == 0 and len(self.fulls) > 1)
        return self.found

    def _turn(self, stop: Callable[[], bool], most: int, *, full_open: bool) -> None:
        """Until no choice is new and nothing is worth dividing."""
        if full_open and (first := self._choice()):
            self._choose_full(first)
        while not stop() and self.found.trials < most:
            chosen = self._new_choice()
            divided = self._to_divide(chosen or self._choice())
            if chosen is None and divided is None:
                break
            self._level(chosen, divided)

    def _choose_full(self, chosen: Mapping[int, Implementation]) -> None:
        """Tries the first choice with each that may run the rest."""
        placements = [self._placement(chosen, full) for full in self.fulls]
        costs = self._measure(placements)
        times = [math.inf if cost is None or cost.ms is None else cost.ms for cost in costs]
        self._note(chosen, costs[0])
        best = min(range(len(times)), key=times.__getitem__)
        if times[best] < math.inf:
            self.full = list(self.fulls)[best]

    def _level(self, chosen: Mapping[int, Implementation] | None, divided: tuple[Implementation, _Part] | None) -> None:
        """Tries what is chosen, and the halves of one part, together."""
        placements = [] if chosen is None else [self._placement(chosen)]
        halves = [] if divided is None else self._halves(divided[1].bits)
        placements += [self._placement({half: divided[0]}) for half in halves if divided is not None]
        costs = self._measure(placements)
        if chosen is not None:
            self._note(chosen, costs.pop(0))
        if divided is not None and len(costs) == len(halves):
            low, whole = divided
            self.parts[low].remove(whole)
            self.parts[low] += map(partial(self._part, whole), halves, costs)

    def _part(self, whole: _Part, bits: int, cost: Cost | None) -> _Part:
        """A half of a part, by what a trial of it says and, as far as it says nothing, by its share."""
        gain = whole.gain_ms * self.shares.gain(bits) / self.shares.gain(whole.bits)
        square = whole.square * self.shares.square(bits) / self.shares.square(whole.bits)
        if cost is not None and cost.error is not None:
            square = cost.error**2
        if cost is not None and cost.ms is not None:
            gain = min(max(self.full_ms - cost.ms, _GAIN[0] * gain), _GAIN[1] * gain)
        elif cost is not None:
            square = max(square, (self.bound if cost.error is not None else _FAR * self.bound) ** 2)
        return _Part(bits, gain, square)

    # --- what runs in low precision together ------------------------------------------------------------------------

    def _new_choice(self) -> dict[int, Implementation] | None:
        """A choice that has not been tried; of one that is known to fail, less."""
        while (chosen := self._choice()) and (placement := self._placement(chosen)) in self.known:
            cost = self.known[placement]
            if (cost is not None and cost.ms is not None) or self.caution < _LEAST_CAUTION:
                return None
            self.caution *= 0.9
        return chosen or None

    def _choice(self) -> dict[int, Implementation]:
        """Pieces of segments with the precision of each, of which the bound has room for all."""
        steps: list[tuple[float, int, int, Implementation, float]] = []
        for number, (piece, options) in enumerate(self._options().items()):
            gain = square = 0.0
            for low, more, worse in _hull(options):
                slope = (more - gain) / max(worse - square, 1e-30)
                steps.append((-slope, number, piece, low, worse - square))
                gain, square = more, worse
        steps.sort(key=lambda step: step[:2])
        room, chosen, full = (_ROOM * self.caution * self.bound) ** 2, dict[int, Implementation](), set[int]()
        for _, _, piece, low, square in steps:
            if piece in full or square > room:
                full.add(piece)
            else:
                chosen[piece], room = low, room - square
        return chosen

    def _options(self) -> dict[int, list[tuple[Implementation, float, float]]]:
        """Pieces of segments that no part divides, in order, with the gain and the square error of each precision there. How the
        error of a part is spread over its pieces says the precision of which most is known."""
        pieces = list(self.segments)
        for parts in self.parts.values():
            pieces = [piece & part.bits for piece in pieces for part in parts if piece & part.bits]
        finest = max(self.parts.values(), key=len)
        spread = {
            piece: part.square * self.shares.square(piece) / self.shares.square(part.bits)
            for part in finest
            for piece in pieces
            if piece & part.bits
        }
        choices: dict[int, list[tuple[Implementation, float, float]]] = {piece: [] for piece in pieces}
        for low, parts in self.parts.items():
            for part in parts:
                part_pieces = [piece for piece in pieces if piece & part.bits]
                total = max(sum(spread[piece] for piece in part_pieces), 1e-300)
                for piece in part_pieces:
                    gain = part.gain_ms * self.shares.gain(piece) / self.shares.gain(part.bits)
                    choices[piece].append((low, gain, part.square * spread[piece] / total))
        by = self._corrections(choices)
        return {
            piece: [(low, gain, square * by[low]) for low, gain, square in piece_choices]
            for piece, piece_choices in choices.items()
        }

    def _note(self, chosen: Mapping[int, Implementation], cost: Cost | None) -> None:
        """What a choice measured corrects the errors of the precision in it of which the least is known."""
        if cost is None:
            return
        if cost.error is None or (cost.ms is None and cost.error <= self.bound):
            self.caution *= 0.7
            return
        self.caution = 1.0
        least = min(dict.fromkeys(chosen.values()), key=lambda low: len(self.parts[low]))
        self.last[least] = {number: low for piece, low in chosen.items() for number in members(piece)}, cost.error

    def _corrections(
        self, options: Mapping[int, Sequence[tuple[Implementation, float, float]]]
    ) -> dict[Implementation, float]:
        """What squares of errors of each precision are multiplied by: as much as the last choice with it was off."""
        corrections = dict.fromkeys(self.parts, 1.0)
        for low in sorted(self.last, key=lambda low: -len(self.parts[low])):
            who, error = self.last[low]
            own_square = others = 0.0
            for piece, costs in options.items():
                for precision, _, square in costs:
                    share = sum(who.get(number) == precision for number in members(piece)) / piece.bit_count()
                    own_square += share * square if precision == low else 0.0
                    others += share * square * corrections[precision] if precision != low else 0.0
            corrections[low] = min(max((error**2 - others) / max(own_square, 1e-30), _CORRECTION[0]), _CORRECTION[1])
        return corrections

    # --- which part is divided --------------------------------------------------------------------------------------

    def _to_divide(self, chosen: Mapping[int, Implementation]) -> tuple[Implementation, _Part] | None:
        """The part in the precision that could gain most over what is chosen, weighed by how far off it is."""
        options = self._options()
        gains = {
            piece: next((gain for low, gain, _ in options[piece] if low == chosen.get(piece)), 0.0) for piece in options
        }
        best: tuple[float, Implementation, _Part] | None = None
        for low, parts in self.parts.items():
            for part in parts:
                if part.bits.bit_count() < 2:
                    continue
                reached = sum(gain for piece, gain in gains.items() if piece & part.bits)
                if part.gain_ms - reached > _LITTLE * self.full_ms:
                    far = math.sqrt(part.square) / self.bound
                    score = (part.gain_ms - reached) / max(1.0, far) ** 2
                    if best is None or score > best[0]:
                        best = score, low, part
        return None if best is None else best[1:]

    def _halves(self, part: int) -> list[int]:
        """A part divided between segments, or between operators where it lies within one."""
        touched = [segment & part for segment in self.segments if segment & part]
        if len(touched) > 1:
            middle = len(touched) // 2
            return [sum(touched[:middle]), sum(touched[middle:])]
        numbers = members(part)
        middle = len(numbers) // 2
        return [sum(1 << n for n in half) for half in (numbers[:middle], numbers[middle:])]

    # --- trials -----------------------------------------------------------------------------------------------------

    def _placement(self, chosen: Mapping[int, Implementation], full: Implementation | None = None) -> Placement:
        """These pieces in their precisions, the rest in full; neighbours together."""
        who = {number: low for piece, low in chosen.items() for number in members(piece)}
        order = [number for segment in self.segments for number in members(segment)]
        groups = groupby(order, key=lambda number: who.get(number, full or self.full))
        return tuple(Assignment(sum(1 << n for n in numbers), implementation) for implementation, numbers in groups)

    def _measure(self, placements: Sequence[Placement]) -> list[Cost | None]:
        """Of each its cost, measured once; what passes is remembered with its time. What no trial is left for is None."""
        new = [placement for placement in dict.fromkeys(placements) if placement not in self.known][
            : max(0, self.most - self.found.trials)
        ]
        costs = self.trial(new) if new else []
        self.found.trials += len(new)
        for placement, cost in zip(new, costs, strict=True):
            self.known[placement] = cost
            if cost is not None and cost.ms is not None:
                self.found.passed.append((placement, cost.ms))
        return [self.known.get(placement) for placement in placements]


def worth_trying(lows: Sequence[LowPrecision]) -> list[LowPrecision]:
    """Those than which none that is faster is about as accurate, the most accurate first."""
    kept: list[LowPrecision] = []
    for low in sorted(lows, key=lambda candidate: (candidate.ms, _error(candidate))):
        if all(_error(low) < _ABOUT * _error(other) for other in kept):
            kept.append(low)
    return sorted(kept, key=_error)


def _error(low: LowPrecision) -> float:
    return math.inf if low.error is None else low.error


def _hull(options: Sequence[tuple[Implementation, float, float]]) -> list[tuple[Implementation, float, float]]:
    """Of (who, gain, cost), those on the upper concave hull from (0, 0), by rising cost and gain."""
    kept: list[tuple[Implementation, float, float]] = []
    for option in sorted(options, key=lambda entry: (entry[2], -entry[1])):
        if option[1] <= (kept[-1][1] if kept else 0.0):
            continue
        while kept:
            gain, cost = (kept[-2][1], kept[-2][2]) if len(kept) > 1 else (0.0, 0.0)
            _, middle, at = kept[-1]
            if (middle - gain) * (option[2] - cost) > (option[1] - gain) * (at - cost):
                break
            kept.pop()
        kept.append(option)
    return kept
