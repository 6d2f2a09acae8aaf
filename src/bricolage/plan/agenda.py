"""What a decision measured and what it left out, as a part of the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from bricolage.codec import Within

ItemOutcome: TypeAlias = Literal["measured", "left out", "no time", "interrupted"]
"""Left out: it could not gain enough. No time: it could, and takes longer than there was left."""
Share: TypeAlias = Annotated[float, Within(0.0, 1.0)]
Seconds: TypeAlias = Annotated[float, Within(0.0, 1e9)]


@dataclass(frozen=True)
class AgendaItem:
    """Something that could be measured."""

    name: str
    outcome: ItemOutcome
    most: Share
    """Share of the time of the fastest until then that it could save at most, at the risk that the effort accepts."""
    because: str
    """Where that is known from."""
    expected_s: Seconds
    """That it was expected to take."""
    seconds: Seconds = 0.0
    """That it took."""
    gained: Share = 0.0
    """Share of the time that it saved: the fastest before it to the fastest after it, as first measured, before the race."""
