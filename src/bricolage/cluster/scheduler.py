"""What the event loop asks of a scheduler, and what it is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bricolage.cluster.adaptive import RunSetting
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import ClusterSpec


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job begins, or goes on, on devices of a kind."""

    state: JobState
    kind: str
    devices: int
    partner: JobState | None = None
    """On the devices of this job, which runs on as many of that kind, alone."""
    nodes: tuple[tuple[int, int], ...] = ()
    """(node, devices) that it is to have; where these are not free, the fewest nodes that there are."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What a scheduler wants now: first the stops, then the starts; `wake_s` is when it wants to be asked again at the latest."""

    stops: Sequence[JobState] = ()
    starts: Sequence[JobStart] = ()
    wake_s: float = math.inf
    settings: Mapping[int, RunSetting] = field(default_factory=dict)
    """By number, how running jobs run from now on."""


class Scheduler(Protocol):
    """A policy at work. It is told of each event and asked once after all events of a time."""

    preempts: bool
    """Whether it may stop running jobs."""

    def begin(self, cluster: ClusterSpec) -> None:
        """Before the first event."""
        ...

    def arrived(self, state: JobState, now: float) -> None:
        """A job was submitted. Where a loop begins with running jobs (`Standing`), it may hold devices already."""
        ...

    def ended(self, state: JobState, now: float) -> None:
        """A job has finished; its devices are free."""
        ...

    def evicted(self, state: JobState, now: float) -> None:
        """A job lost its devices to a failure, and waits."""
        ...

    def changed(self, state: JobState, now: float) -> None:
        """A running job has another batch size, and so another rate."""
        ...

    def withdrawn(self, state: JobState, now: float) -> None:
        """A job that waits is not wanted any more, or has ended after all."""
        ...

    def resized(self, kind: str, devices: int, now: float) -> None:
        """That many devices of a kind are there now, free or not."""
        ...

    def decide(self, now: float) -> Changes:
        """Who stops and starts."""
        ...
