"""What a way to a faster plan promises by how often it gained before."""

from __future__ import annotations

from bricolage.driver.agenda import Promise
from bricolage.driver.state import DecisionState

_UNKNOWN_GAIN = 0.1
"""Of a way that has never gained, and has not been tried often enough to be left out for that."""


def by_tries(way: str, state: DecisionState, seconds: float, *, timed: bool = False) -> Promise:
    """What a way to a faster plan promises by how often it gained before: nothing where that was more seldom than the risk. What is
    `timed` finds the more the longer it takes."""
    incumbent, risk = state.incumbent, state.session.options.profile.risk
    backend = incumbent.backend if incumbent is not None else ""
    found = state.session.record.tries(way, state.kind, backend, seconds if timed else None)
    told = f"{way} gained over {incumbent} in {len(found.gains)} of {found.decisions} decisions like this"
    told += f" that say what {seconds:.0f} s find" if timed else ""
    told = told if found.decisions else f"{way} have no record here"
    if found.chance <= risk:
        return Promise(0.0, seconds, told)
    return Promise(max(found.gains, default=_UNKNOWN_GAIN), seconds, told, found.chance)
