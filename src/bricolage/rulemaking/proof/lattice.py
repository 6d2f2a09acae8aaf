"""Maxima that choose: the laws of a lattice, with truth values that are 0 or 1, at the price of more trials.

Here a maximum is the member that comes last in a random total order of each trial's numbers, in which literals keep their
own order. So minima distribute over maxima, one absorbs the other, and bounds of clips merge; but nothing is known of how
the order goes with addition. Where numbers tie over the reals, any order of them chooses the right value, so what holds for
all strict orders holds there too. (A comparison would not choose the right value, and remains an opaque function.)

A false equation differs for one order of the numbers that it compares and one choice of its truth values at least. With n
numbers among l literals and k truth values a trial meets that one with a chance of 1 / ((l + 1) ** n n! 2 ** k) or more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np

from bricolage.rulemaking.proof.field import Residues

_GAP = 51  # residues have 50 bits
_LITERAL = -1


class Draws(Protocol):
    """What an order asks of a random point."""

    @property
    def literals(self) -> Mapping[float, Residues]:
        """Residues [rows] of the literals that were read."""

    @property
    def functions(self) -> set[str]:
        """Names of the functions that took part uninterpreted; the order adds its own."""

    def function(self, name: str, values: Residues) -> Residues:
        """A random function of each row: equal arguments give equal results."""


class RandomOrder:
    """A random order for each trial. `literals` are those among which numbers are placed, found by a first evaluation."""

    def __init__(self, literals: Collection[float] = ()) -> None:
        self.literals = sorted(literals)
        self.met: set[float] = set()
        """Literals that were compared."""
        self._compared: list[Residues] = []
        self._decided: dict[str, list[Residues]] = {}

    def ranks(self, draws: Draws, values: Residues) -> Residues:
        """Numbers in whose order the values stand, the same in both rows of a trial."""
        residues = values[::2]
        drawn = draws.function("order", values)[::2]
        gaps = len(self.literals) + 1
        ranks = (drawn % gaps * 2 << _GAP) + drawn // gaps
        variable = np.ones(residues.shape, bool)
        for literal, row in draws.literals.items():
            here = residues == row[::2].reshape((-1,) + (1,) * (residues.ndim - 1))
            if here.any():
                self.met.add(literal)
                variable &= ~here
                if literal in self.literals:
                    ranks[here] = 2 * self.literals.index(literal) + 1 << _GAP
        self._compared.append(np.where(variable, residues, _LITERAL).reshape(len(residues), -1))
        return np.repeat(ranks, 2, axis=0)

    def decide(self, draws: Draws, name: str, values: Residues) -> Residues:
        """A random truth value, 0 or 1, for each number, the same in both rows of a trial."""
        draws.functions.add("truth values of 0 and 1")
        residues = values[::2]
        self._decided.setdefault(name, []).append(residues.reshape(len(residues), -1))
        return np.repeat(draws.function(name, values)[::2] & 1, 2, axis=0)

    def chance(self) -> float:
        """The least chance that one trial meets a given order and given truth values of all that it compares.

        Taken for as many numbers as any trial compared: which ones are compared depends on the order itself.
        """
        numbers = _distinct(self._compared)
        truths = sum(_distinct(parts) for parts in self._decided.values())
        return math.exp(-numbers * math.log(len(self.met) + 1) - math.lgamma(numbers + 1) - truths * math.log(2))


def _distinct(parts: list[Residues]) -> int:
    """How many different numbers a trial has at most, literals aside; `parts` are [trials, count]."""
    if not parts:
        return 0
    numbers = np.sort(np.concatenate(parts, 1), 1)
    numbers = np.concatenate([np.full((len(numbers), 1), _LITERAL), numbers], 1)
    return int((numbers[:, 1:] != numbers[:, :-1]).sum(1).max())
