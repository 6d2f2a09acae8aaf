"""What the log of decisions says of ways to a faster plan in general: on how many networks like this one each gained."""

from __future__ import annotations

from statistics import fmean

from bricolage.driver.agenda import Promise
from bricolage.driver.state import DecisionState

UNKNOWN_GAIN = 0.1
"""Of what has never gained, and has not been tried often enough to say that it does not."""


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
