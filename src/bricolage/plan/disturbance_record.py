"""What other processes did while a decision was measured."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.plan.field_types import Count, Duration, Share

QUIET = 0.05
"""Share of the cores, or of the samples, up to which other processes are not mentioned: any machine has some."""


@dataclass(frozen=True)
class Disturbance:
    """What other processes did while the decision was measured."""

    others: Share = 0.0
    """Of the processor time that there was, what other processes took."""
    stolen: Share = 0.0
    """... and what a hypervisor gave to others."""
    pressure: Share = 0.0
    """Of the time, that in which a process waited for a processor; 0 where the kernel does not count it."""
    samples: Count = 0
    """That were timed ..."""
    disturbed: Count = 0
    """... those whose threads waited for a processor that others had ..."""
    repeated: Count = 0
    """... and those that replaced disturbed ones."""
    given_back_s: Duration = 0.0
    """Seconds that others took of the decision, and that were added to its budget."""

    def __post_init__(self) -> None:
        if self.disturbed > self.samples or self.repeated > self.samples:
            raise ValueError("more samples were disturbed or repeated than there are")

    @property
    def busy(self) -> bool:
        """Whether the machine was: others took more of the cores, or of the samples, than on any machine."""
        return max(self.others, self.stolen) > QUIET or self.disturbed > QUIET * self.samples
