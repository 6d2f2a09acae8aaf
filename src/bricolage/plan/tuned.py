"""What a tuner found for the kernels of an implementation: in the plan, so that it can say from what to what, and how sure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from bricolage.base.codec import Length, Matching, Within
from bricolage.work.config_space import Choice
from bricolage.work.implementation import Implementation

Milliseconds: TypeAlias = Annotated[float, Within(0.0, 1e18)]
Factor: TypeAlias = Annotated[float, Within(0.0, 1e18)]
Number: TypeAlias = Annotated[int, Within(0, 10**9)]
Text: TypeAlias = Annotated[str, Matching(r"[^\x00-\x1f\x7f]{0,300}", "short line of text")]


@dataclass(frozen=True)
class TunedTask:
    """One task: kernels that do the same work. Milliseconds are those of all its kernels in one call of the region."""

    name: Text
    kind: Text
    kernels: Number
    sizes: Mapping[Text, Annotated[int, Within(0, 2**62)]]
    """Extents of the work of one kernel, by name."""
    usual_ms: Milliseconds
    """By the backend's rules of thumb."""
    ms: Milliseconds
    choice: Annotated[Choice, Length(0, 100)]
    """What is chosen instead of the rules of thumb."""
    gain: Factor | None
    """The usual time over that of the choice, from interleaved rounds; None where the rules of thumb stay."""
    gain_ci: tuple[Factor, Factor] | None
    trials: Number
    failed: Number

    @property
    def saved_ms(self) -> float:
        """In one call of the region."""
        return self.usual_ms - self.ms


@dataclass(frozen=True)
class TunedKernels:
    """The tasks of an implementation, those that take longest first."""

    implementation: Implementation
    """With what was chosen."""
    tasks: tuple[TunedTask, ...] = ()
