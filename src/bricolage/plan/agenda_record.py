"""What a decision measured and what it left out, as a part of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bricolage.base.codec import Within

ItemOutcome: TypeAlias = Literal["measured", "bounded", "unlikely", "no time", "interrupted"]
"""Bounded: it cannot gain enough. Unlikely: the chance that it gains, a half where that is unknown, is not above the risk that the
effort accepts for as many seconds. No time: it could gain, and takes longer than there was left."""
Share: TypeAlias = Annotated[float, Within(0.0, 1.0)]
Gain: TypeAlias = Annotated[float, Within(-1e6, 1.0)]
"""Share of a time that is saved; negative where the other takes longer."""
Seconds: TypeAlias = Annotated[float, Within(0.0, 1e9)]

WHOLE = "whole model on "
"""How the names of items begin that are the whole model on an implementation."""
UNKNOWN_CHANCE = 0.5
"""What an unknown chance counts as: Jeffreys' prior without a single trial."""


def expected_share(gain: float, chance: float | None, bound: float | None) -> float:
    """What is expected to be saved, as a share of the time: the chance times the gain, within the bound."""
    return (UNKNOWN_CHANCE if chance is None else chance) * (gain if bound is None else min(gain, bound))


@dataclass(frozen=True)
class AgendaItem:
    """Something that could be measured. Shares are of the time of the fastest plan until then, its *incumbent*."""

    name: str
    outcome: ItemOutcome
    because: str
    """Where its bound, its chance and its gain are known from."""
    expected_s: Seconds
    """That it was expected to take."""
    bound: Share | None = None
    """Share that it cannot save more than; None where nothing bounds it."""
    chance: Share | None = None
    """That it gains; None where it is unknown."""
    gain: Share = 0.0
    """Share that it saves where it gains, as far as that is known."""
    seconds: Seconds = 0.0
    """That it took."""
    gained: Gain = 0.0
    """Share that its best candidate saved over the incumbent: by the race where both raced, else as first measured. 0 where it
    found no candidate."""
    interval: tuple[Gain, Gain] | None = None
    """Of what was gained, 95 %; None where nothing compares the two beyond one measurement."""
    incumbent: str = ""
    """The fastest plan before it; empty where there was none."""
    candidate: str = ""
    """The fastest plan that it found; empty where it found none."""
    way: str = ""
    """As what the log of decisions counts it; empty where it does not."""

    @property
    def left_out(self) -> bool:
        """Whether it was not begun."""
        return self.outcome in ("bounded", "unlikely", "no time")

    @property
    def expected_loss(self) -> float:
        """Share of the time that is expected to be lost without it."""
        return expected_share(self.gain, self.chance, self.bound)
