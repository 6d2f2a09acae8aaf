"""Taking turns: contestants run again and again, one after another, so that what changes on the machine hits all alike.

Whatever is compared is compared like this: jobs in worker processes, programs in this process, ways to train. Rounds go forwards
and backwards, since who comes after whom matters, too. The ratio of two is a paired bootstrap over the rounds that both took part
in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from bricolage.costs.latency import Latency
from bricolage.measure.statistics import Ratio, paired_ratio

T = TypeVar("T")
Round: TypeAlias = Mapping[str, tuple[float, ...]]
"""The contestants that took part, by name, with their samples in milliseconds a run."""


@dataclass(frozen=True)
class Turns:
    """What was timed in turns."""

    rounds: tuple[Round, ...]
    """In order."""

    def samples(self, name: str) -> list[list[float]]:
        """Samples of a contestant, one list for each round in which it took part."""
        return [list(round_[name]) for round_ in self.rounds if name in round_]

    def latency(self, name: str) -> Latency:
        """Median and interval of a contestant that took part: a round counts once."""
        return Latency.of_rounds(self.samples(name))

    def ratio(self, challenger: str, incumbent: str) -> Ratio | None:
        """Speed-up of the challenger over the incumbent in the rounds that both took part in; None where there are none."""
        shared = [round_ for round_ in self.rounds if challenger in round_ and incumbent in round_]
        if not shared:
            return None
        return paired_ratio([round_[incumbent] for round_ in shared], [round_[challenger] for round_ in shared])


def take_turns(
    contestants: Sequence[T],
    turn: Callable[[T], object],
    remaining: Callable[[int, list[T]], Sequence[T]],
    *,
    first: int = 0,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> int:
    """Gives contestants their turns, round by round, until none remains. Returns the number of the round after the last.

    Args:
        contestants: who takes part.
        turn: runs one of them once.
        remaining: given the number of the next round and those who took part in the last one, says who goes on. It retires who
            cannot win and ends it all with an empty sequence.
        first: number of the first round. Even ones go forwards, odd ones backwards.
        around: entered for each round.
    """
    number, running = first, list(remaining(first, list(contestants)))
    while running:
        with around():
            for contestant in running if number % 2 == 0 else reversed(running):
                turn(contestant)
        number += 1
        running = list(remaining(number, running))
    return number


def time_in_turns(
    contestants: Mapping[str, Callable[[], Sequence[float]]],
    rounds: int,
    *,
    least: int | None = None,
    seconds: float = math.inf,
) -> Turns:
    """Samples of contestants in this process, milliseconds a run, in `rounds` rounds; in `least` rounds at least (all of them by
    default) where `seconds` are over earlier. A contestant whose turn gives no samples has nothing left to run, and takes part no
    more."""
    end = time.perf_counter() + seconds
    enough = rounds if least is None else least
    round_samples: list[dict[str, tuple[float, ...]]] = []

    def turn(name: str) -> None:
        samples = tuple(contestants[name]())
        if samples:
            round_samples[-1][name] = samples

    def remaining(number: int, running: list[str]) -> Sequence[str]:
        if number >= rounds or (number >= enough and time.perf_counter() > end):
            return ()
        going = [name for name in running if not round_samples or name in round_samples[-1]]
        if going:
            round_samples.append({})
        return going

    take_turns(list(contestants), turn, remaining)
    return Turns(tuple(round_samples))


def make_turn(call: Callable[[], object], runs: int = 1, warming: int = 0) -> Callable[[], Sequence[float]]:
    """A turn of some runs of `call`, after others that do not count: what ran before has the caches and the cores' threads."""

    def turn() -> Sequence[float]:
        for _ in range(warming):
            call()
        return tuple(once() for _ in range(runs))

    def once() -> float:
        begun = time.perf_counter()
        call()
        return (time.perf_counter() - begun) * 1e3

    return turn
