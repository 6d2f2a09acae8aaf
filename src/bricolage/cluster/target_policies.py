"""Policies that say for all jobs at once who shall run where. The scheduler moves the cluster there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bricolage.cluster.adaptive import RunSetting
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.scheduler import Changes, JobStart

Target = Mapping[int, tuple[str, int]]
"""By number, who runs: the kind and how many devices."""
Places: TypeAlias = Mapping[int, tuple[tuple[int, int], ...]]
"""By number, (node, devices) that a job is to have."""


@dataclass(frozen=True)
class ClusterView:
    """What a policy sees: jobs that are submitted and not over, in order of submission, and the devices that are there."""

    now: float
    states: Sequence[JobState]
    capacity: Mapping[str, int]
    cluster: ClusterSpec

    @property
    def devices(self) -> int:
        """Of all kinds."""
        return sum(self.capacity.values())


class TargetPolicy(Protocol):
    """A policy that decides for all jobs at once."""

    every_s: float
    """Seconds between decisions; 0: at each event."""

    def target(self, view: ClusterView) -> Target:
        """Who runs where from now on. It must fit into the devices, and keep gangs whole."""
        ...

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Of those in the last target, who share devices: both are there on as many of one kind, which count once."""
        ...

    def places(self) -> Places:
        """Of those in the last target, the nodes of those that are to have certain ones: who runs elsewhere is moved. Who is not
        there stays where it runs, or gets the fewest nodes."""
        ...

    def settings(self) -> Mapping[int, RunSetting]:
        """Of those in the last target, how they run from now on; who is not there goes on as it does."""
        ...

    def ended(self, state: JobState, now: float) -> None:
        """A job is over: what is remembered of it can go."""
        ...


class Anywhere:
    """A target policy that leaves it to the loop on which nodes jobs run, and how."""

    def ended(self, state: JobState, now: float) -> None:
        """Nothing is remembered, unless a policy says so."""

    def places(self) -> Places:
        """None is asked for."""
        return {}

    def settings(self) -> Mapping[int, RunSetting]:
        """None is changed."""
        return {}


class Apart(Anywhere):
    """A target policy under which no two jobs share devices."""

    def pairs(self) -> Sequence[tuple[int, int]]:
        """None."""
        return ()


class Stateless(Apart):
    """A target policy that remembers nothing and decides at each event."""

    every_s: float = 0.0


class TargetScheduler:
    """Such a policy at work. In rounds, devices that a job leaves before a round is over stay idle until then: a lease."""

    preempts = True
    """Whether it may stop jobs: where not, who runs goes on, and the others share what is left."""

    def __init__(self, policy: TargetPolicy) -> None:
        self.policy = policy
        self._active: dict[int, JobState] = {}
        self._capacity: dict[str, int] = {}
        self._next = 0.0
        self._news = False

    def begin(self, cluster: ClusterSpec) -> None:
        """All devices are there."""
        self._cluster = cluster
        self._capacity = dict(cluster.capacity)

    def arrived(self, state: JobState, now: float) -> None:
        """One more to decide on."""
        del now
        self._active[state.number] = state
        self._news = True

    def ended(self, state: JobState, now: float) -> None:
        """One less."""
        del self._active[state.number]
        self.policy.ended(state, now)
        self._news = True

    def evicted(self, state: JobState, now: float) -> None:
        """Its devices are away; the others go on until the next decision."""
        del state, now
        self._news = True

    def withdrawn(self, state: JobState, now: float) -> None:
        """One less."""
        self.ended(state, now)

    def changed(self, state: JobState, now: float) -> None:
        """It has another rate."""
        del state, now
        self._news = True

    def resized(self, kind: str, devices: int, now: float) -> None:
        """A node is away, or back."""
        del now
        self._capacity[kind] = devices
        self._news = True

    def decide(self, now: float) -> Changes:
        """The difference between what is and what shall be."""
        if not self._active or not any(self._capacity.values()):
            return Changes()
        every = self.policy.every_s
        if every and now < self._next:
            return Changes(wake_s=self._next)
        if not every and not self._news:
            return Changes()
        self._news = False
        states = list(self._active.values())
        for state in states:
            state.advance(now)
        view = ClusterView(now, states, dict(self._capacity), self._cluster)
        wanted = self.policy.target(view)
        pairs, places, settings = dict[int, int](), self.policy.places(), self.policy.settings()
        if self.preempts:
            pairs = {number: other for a, b in self.policy.pairs() for number, other in ((a, b), (b, a))}
        else:
            wanted = _with_running(states, wanted, self._capacity)
            places = {number: nodes for number, nodes in places.items() if not self._active[number].held}
        stops = _leaving(states, wanted, pairs, places)
        starts = _starting(states, wanted, pairs, {state.number for state in stops}, places)
        self._next = now + every if every else math.inf
        wanted_settings = {number: setting for number, setting in settings.items() if number in wanted}
        return Changes(stops, starts, self._next, wanted_settings)


def _with_running(states: Sequence[JobState], wanted: Target, capacity: Mapping[str, int]) -> Target:
    """The part of a target that stops no job: running jobs as they are, then who is wanted and fits, in the target's order."""
    kept = {state.number: (state.held_kind, state.held) for state in states if state.held}
    free = dict(capacity)
    for kind, devices in kept.values():
        free[kind] = free.get(kind, 0) - devices
    for number, (kind, devices) in wanted.items():
        if number not in kept and devices <= free.get(kind, 0):
            kept[number] = kind, devices
            free[kind] -= devices
    return kept


def _leaving(states: Sequence[JobState], wanted: Target, pairs: Mapping[int, int], places: Places) -> list[JobState]:
    """Who stops: those that are wanted elsewhere or not at all, and of two that go on, but not together as now, or together as they
    are not, the later one."""
    gone = {
        s.number: s
        for s in states
        if s.held
        and (wanted.get(s.number) != (s.held_kind, s.held) or sorted(places.get(s.number, s.nodes)) != sorted(s.nodes))
    }
    by_number = {state.number: state for state in states} if pairs or any(s.mate for s in states) else {}
    for number, state in by_number.items():
        other = by_number.get(pairs.get(number, -1))
        for partner, apart in (
            (state.mate, state.mate is not other),
            (other, other is not None and state.mate is not other),
        ):
            if (
                partner is not None
                and apart
                and state.held
                and partner.held
                and not gone.keys() & {number, partner.number}
            ):
                later = max(state, partner, key=lambda s: s.number)
                gone[later.number] = later
    return list(gone.values())


def _starting(
    states: Sequence[JobState], wanted: Target, pairs: Mapping[int, int], gone: set[int], places: Places
) -> list[JobStart]:
    """Who starts, those with devices of their own first: of these those that were given nodes, then large gangs, so that they stay
    on few nodes."""
    by_number = {state.number: state for state in states} if pairs else {}
    new = [s for s in states if s.number in wanted and (not s.held or s.number in gone)]
    alone, sharing = list[JobStart](), list[JobStart]()
    for state in new:
        other = by_number.get(pairs.get(state.number, -1))
        runs = other is not None and other.held > 0 and other.number not in gone
        if other is not None and (runs or state.number > other.number):
            sharing.append(JobStart(state, *wanted[state.number], other))
        else:
            alone.append(JobStart(state, *wanted[state.number], nodes=places.get(state.number, ())))
    alone.sort(key=lambda start: (not start.nodes, -start.devices, start.state.number))
    return alone + sharing
