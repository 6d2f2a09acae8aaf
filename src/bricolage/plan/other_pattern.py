"""What a plan says of the pattern of calls that did not decide."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.plan.field_types import Ratio

PAUSE_S = 0.02
"""Before each call of the pattern "sparse"."""


@dataclass(frozen=True)
class PatternLoss:
    """What ships against the best other tool in the pattern of calls that did not decide."""

    other: str
    """Name of that tool's contestant."""
    speedup: Ratio
    """Over it, in the rounds that both had."""
    interval: tuple[Ratio, Ratio]
