"""What a plan says of running regions at the same time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from bricolage.base.codec import Length
from bricolage.plan.field_types import Core, Count, Duration, Ratio


@dataclass(frozen=True)
class PlannedSchedule:
    """Which cores each region has. Regions begin in the order of the plan, as soon as what they read is there and no earlier
    region holds one of their cores: on disjoint cores they run side by side. Times in milliseconds."""

    cores: tuple[Annotated[tuple[Core, ...], Length(1, 10_000)], ...]
    """For each region, ascending."""
    method: str
    """How it was found."""
    predicted_ms: Duration
    lower_ms: Duration
    """No schedule of these regions takes less, by the times that were measured of them."""
    upper_ms: Duration
    """One after the other they take so long."""
    speedup: Ratio | None = None
    """Over the plan without it, from paired rounds; None where they did not race."""
    speedup_ci: tuple[Ratio, Ratio] | None = None
    ms: tuple[Duration, ...] = ()
    """Of each region on its cores, as predicted; empty where a plan does not say."""

    def __post_init__(self) -> None:
        for core in self.cores:
            if list(core) != sorted(set(core)):
                raise ValueError(f"the cores {str(core)[:60]} do not ascend")
        if self.ms and len(self.ms) != len(self.cores):
            raise ValueError(f"there are times of {len(self.ms)} regions, and cores of {len(self.cores)}")


@dataclass(frozen=True)
class ScheduleAttempt:
    """What was tried to run parts of a plan side by side, and what came of it. Times in milliseconds."""

    plan: str
    """Who was divided, or whose regions were taken as they are."""
    regions: Count
    whole_ms: Duration
    """The plan as it stands."""
    least_ms: Duration
    """What its branches side by side could come down to at best; from measured times where it has a prediction, else from
    estimates for each operator."""
    verdict: str
    """What came of it."""
    predicted_ms: Duration | None = None
    """Of the best schedule; None where none was looked for."""
    measured_ms: Duration | None = None
    """Of that, end to end; None where it was not run."""
