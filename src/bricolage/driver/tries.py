"""What the log of decisions says of ways to a faster plan in general: on how many networks like this one each gained."""

from __future__ import annotations

import math
from statistics import fmean

from bricolage.driver.agenda import Promise
from bricolage.driver.state import DecisionState

UNKNOWN_GAIN = 0.1
"""Of what has never gained, and has not been tried often enough to say that it does not."""
_SUREST = 0.02
"""Chance that a single kind of evidence is wrong, at least: a model of costs may be wrong altogether."""


def by_tries(way: str, state: DecisionState, seconds: float, *, timed: bool = False) -> Promise:
    """What a way to a faster plan promises by how often it gained on other networks. Where too few say anything, its chance is
    unknown. What is `timed` finds the more the longer it takes."""
    incumbent = state.incumbent
    backend = incumbent.backend if incumbent is not None else ""
    tries = state.session.record.tries(way, state.subject, backend, seconds if timed else None)
    gain = fmean(tries.gains) if tries.gains else UNKNOWN_GAIN
    if not tries.networks:
        return Promise(gain, seconds, f"{way} have no record where {backend} leads")
    because = f"{way} gained over {backend} on {tries.won:.3g} of {tries.networks} other {state.subject.kind} networks"
    because += f" that say what {seconds:.0f} s find" if timed else ""
    because += "" if tries.is_known else ", which are too few to say more"
    return Promise(gain, seconds, because, tries.chance if tries.is_known else None)


def pool_chances(*chances: float | None) -> float | None:
    """A chance by several kinds of evidence that do not rest on each other: their odds multiply (the independent opinion pool:
    Clemen & Winkler, Combining probability distributions from experts, 1999). An unknown one says as much as a half, nothing; None
    where all are unknown. A chance of 0 or 1 is taken to be as sure as evidence gets."""
    known_chances = [min(max(chance, _SUREST), 1.0 - _SUREST) for chance in chances if chance is not None]
    odds = math.prod(chance / (1.0 - chance) for chance in known_chances)
    return odds / (1.0 + odds) if known_chances else None
