"""`Executor`: other machines that compile and measure for this one, as a pool and a measurer see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bricolage.backends.kernel_trials import Build
from bricolage.costs.entries import Cost
from bricolage.measure.scale_out.messages import TriedBuilds
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, Stop, TimingPolicy
from bricolage.plan.program_step import Step

Take = Callable[[CandidateSpec, Cost, str], None]
"""Hears of a candidate, its cost, and the machine that measured it."""


class Executor(Protocol):
    """See `scale_out.ray_nodes.Cluster`, the one that there is."""

    @property
    def nodes(self) -> int:
        """How many nodes work for this machine now."""
        ...

    @property
    def measuring(self) -> int:
        """How many of them measure."""
        ...

    def compile(self, specs: Sequence[CandidateSpec], limit_s: float, should_stop: Stop) -> int:
        """Has the steps of programs compiled elsewhere, and puts their code into the cache here. Returns how many folders were
        new."""
        ...

    def measure(
        self,
        tasks: Sequence[tuple[RegionTask, Sequence[CandidateSpec]]],
        policy: TimingPolicy,
        limits: Limits,
        take: Take,
        should_stop: Stop,
        *,
        retrying: bool = False,
    ) -> None:
        """Measures candidates of regions elsewhere; `take` hears of each cost. What was not found out is left to the caller."""
        ...

    def trials(
        self, step: Step, builds: Sequence[Build], rounds: int, threads: int, limit_s: float, should_stop: Stop
    ) -> Sequence[TriedBuilds | None]:
        """What came of each build; None for those that could not be timed."""
        ...

    def close(self) -> None:
        """Lets go of all nodes."""
        ...
