"""Policies that are an order: who comes first gets devices, as far as there are any.

The running set is what a walk through all jobs in this order gives, in which each job that still fits takes its devices. Walking
anew at each event would look at every job; here only those are looked at that may change sides. Waiting jobs stand in sorted lists,
one for each gang size and choice of kinds, since in one list none fits where the first does not. Running jobs of a kind stand in
one list; a waiting job may take what is free and what jobs behind it hold.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Mapping
from itertools import islice
from typing import ClassVar

from bricolage.cluster.backfill import pick_backfill_jobs
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.scheduler import Changes, JobStart

BACKFILL_DEPTH = 500
"""Jobs of the queue that are looked at for backfilling, as Slurm's `bf_max_job_test` has it by default."""
Rank = tuple[float, ...]
"""Smaller comes first. The last number is the job's, so that no two are equal."""


class OrderPolicy(ABC):
    """An order of jobs, as a pure function of each job's state. A job has one rank wherever it runs: else two jobs could take
    devices from each other without an end."""

    preemptive: ClassVar[bool] = False
    """Whether a job that comes first takes the devices of running ones."""
    falls: ClassVar[bool] = False
    """Whether the first number of a running job's rank falls by one each second (what is left of it). On a kind that is not its
    fastest it falls more slowly in truth; such a job counts as better than it is, until it stops."""
    blocking: ClassVar[bool] = False
    """Whether those behind a job that does not fit wait too."""
    backfills: ClassVar[bool] = False
    """Whether, for a blocking order, those behind may start where they delay the first one by nothing (EASY)."""

    @abstractmethod
    def rank(self, state: JobState, now: float) -> Rank:
        """Where a job stands."""

    def next_change(self, state: JobState, now: float, running: bool) -> float:
        """When its rank jumps, if it goes on running, or waiting; infinite where it does not."""
        del state, now, running
        return math.inf

    def reorder(self, state: JobState, now: float) -> None:
        """Called when that time has come, before `rank`: a policy with counters of its own resets them here."""
        del state, now


class OrderScheduler:
    """An order at work."""

    preempts = True
    """Whether a policy that preempts may: where not, it orders who waits, and who runs goes on."""

    def __init__(self, policy: OrderPolicy) -> None:
        self.policy = policy
        self._waiting: dict[tuple[int, tuple[str, ...]], list[tuple[Rank, JobState]]] = {}
        self._rank: dict[int, Rank] = {}
        self._running: dict[str, list[tuple[Rank, JobState]]] = {}
        self._free: dict[str, int] = {}
        self._jumps: list[tuple[float, int, int]] = []
        self._versions: dict[int, int] = {}
        self._states: dict[int, JobState] = {}
        self._on: dict[int, str] = {}

    def begin(self, cluster: ClusterSpec) -> None:
        """All devices are free."""
        self._free = dict(cluster.capacity)
        self._there = dict(cluster.capacity)
        self._running = {kind: [] for kind in cluster.kinds}

    @property
    def free(self) -> Mapping[str, int]:
        """Devices of each kind that no job holds; negative for a moment where a node has failed."""
        return self._free

    def arrived(self, state: JobState, now: float) -> None:
        """It waits; or runs, where it was on its devices before the first event."""
        self._states[state.number] = state
        if state.held:
            self._update_rank(state, now)
            self._run(state, state.held_kind, now)
            self._expect(state, now)
        else:
            self._wait(state, now)

    def ended(self, state: JobState, now: float) -> None:
        """Its devices are free."""
        del now
        self._stop(state)
        del self._states[state.number], self._rank[state.number], self._versions[state.number]

    def evicted(self, state: JobState, now: float) -> None:
        """It waits again."""
        self._stop(state)
        self._wait(state, now)

    def withdrawn(self, state: JobState, now: float) -> None:
        """It waits no more."""
        del now
        self._leave_queue(state)
        del self._states[state.number], self._rank[state.number], self._versions[state.number]

    def changed(self, state: JobState, now: float) -> None:
        """Its place among the running ones is another."""
        kind = self._stop(state)
        self._update_rank(state, now)
        self._run(state, kind, now)

    def resized(self, kind: str, devices: int, now: float) -> None:
        """A node is away, or back."""
        del now
        self._free[kind] += devices - self._there[kind]
        self._there[kind] = devices

    def decide(self, now: float) -> Changes:
        """Who changes sides."""
        self._jump(now)
        if self.policy.blocking:
            stops, starts = list[JobState](), self._from_the_head(now)
        else:
            stops, starts = self._exchange(now)
        while self._jumps and self._versions.get(self._jumps[0][1]) != self._jumps[0][2]:
            heapq.heappop(self._jumps)
        return Changes(stops, starts, self._jumps[0][0] if self._jumps else math.inf)

    def _from_the_head(self, now: float) -> list[JobStart]:
        starts: list[JobStart] = []
        while (state := self._head()) is not None:
            kind = self._room(state)
            if not kind:
                if self.policy.backfills:
                    behind = islice(heapq.merge(*self._waiting.values(), key=_rank_of), BACKFILL_DEPTH)
                    running = {kind: [state for _, state in entries] for kind, entries in self._running.items()}
                    for other, on in pick_backfill_jobs(
                        [candidate for _, candidate in behind], running, self._free, now
                    ):
                        starts.append(self._start(other, on, now))
                break
            starts.append(self._start(state, kind, now))
        return starts

    def _head(self) -> JobState | None:
        heads = [queue[0] for queue in self._waiting.values() if queue]
        return min(heads, key=lambda head: head[0])[1] if heads else None

    def _room(self, state: JobState) -> str:
        return next((kind for kind in state.kinds if self._free[kind] >= state.job.devices), "")

    def _exchange(self, now: float) -> tuple[list[JobState], list[JobStart]]:
        before: dict[int, str] = {}
        touched: dict[int, JobState] = {}
        while (fit := self._first_that_fits(now)) is not None:
            state, kind, out = fit
            for other in out:
                touched[other.number] = other
                before.setdefault(other.number, kind)
                self._stop(other)
                self._wait(other, now)
            touched[state.number] = state
            before.setdefault(state.number, "")
            self._start(state, kind, now)
        for number, state in touched.items():  # waiting and running, ranks jump at other times
            if number in self._on:
                self._expect(state, now)
        stops, starts = [], []
        for number, state in touched.items():
            after = self._on.get(number, "")
            if before[number] and before[number] != after:
                stops.append(state)
            if after and before[number] != after:
                starts.append(JobStart(state, after, state.job.devices))
        return stops, starts

    def _first_that_fits(self, now: float) -> tuple[JobState, str, list[JobState]] | None:
        """The first waiting job that gets devices, of which kind, and from whom."""
        best: tuple[Rank, JobState, str, list[JobState]] | None = None
        for (devices, kinds), queue in self._waiting.items():
            if not queue or (best is not None and queue[0][0] >= best[0]):
                continue
            rank, state = queue[0]
            for kind in kinds:
                out = self._behind(kind, rank, devices - self._free[kind], now)
                if out is not None:
                    best = rank, state, kind, out
                    break
        return None if best is None else best[1:]

    def _behind(self, kind: str, rank: Rank, wanted: int, now: float) -> list[JobState] | None:
        """Running jobs behind `rank`, last first, that hold at least `wanted` devices; None where they hold fewer."""
        out: list[JobState] = []
        if wanted > 0 and self.policy.preemptive and self.preempts:
            bound = (rank[0] + now, *rank[1:]) if self.policy.falls else rank
            for other, state in reversed(self._running[kind]):
                if other <= bound:
                    return None
                out.append(state)
                wanted -= state.job.devices
                if wanted <= 0:
                    break
        return out if wanted <= 0 else None

    # --- who is where -----------------------------------------------------------------------------------------------

    def _wait(self, state: JobState, now: float) -> None:
        rank = self._update_rank(state, now)
        insort(self._waiting.setdefault((state.job.devices, state.kinds), []), (rank, state), key=_rank_of)

    def _leave_queue(self, state: JobState) -> None:
        queue = self._waiting[state.job.devices, state.kinds]
        del queue[bisect_left(queue, self._rank[state.number], key=_rank_of)]

    def _start(self, state: JobState, kind: str, now: float) -> JobStart:
        self._leave_queue(state)
        self._run(state, kind, now)
        return JobStart(state, kind, state.job.devices)

    def _run(self, state: JobState, kind: str, now: float) -> None:
        rank = self._rank[state.number]
        if self.policy.falls:  # in this list the time of the last look must not matter
            rank = self._rank[state.number] = (rank[0] + now, *rank[1:])
        insort(self._running[kind], (rank, state), key=_rank_of)
        self._on[state.number] = kind
        self._free[kind] -= state.job.devices

    def _stop(self, state: JobState) -> str:
        kind = self._on.pop(state.number)
        entries = self._running[kind]
        del entries[bisect_left(entries, self._rank[state.number], key=_rank_of)]
        self._free[kind] += state.job.devices
        return kind

    def _update_rank(self, state: JobState, now: float) -> Rank:
        state.advance(now)
        rank = self._rank[state.number] = self.policy.rank(state, now)
        self._expect(state, now)
        return rank

    def _expect(self, state: JobState, now: float) -> None:
        """The next jump of its rank, as things are."""
        version = self._versions[state.number] = self._versions.get(state.number, 0) + 1
        at = self.policy.next_change(state, now, state.number in self._on)
        if at < math.inf:
            heapq.heappush(self._jumps, (at, state.number, version))

    def _jump(self, now: float) -> None:
        while self._jumps and self._jumps[0][0] <= now:
            _, number, version = heapq.heappop(self._jumps)
            if self._versions.get(number) == version:
                state = self._states[number]
                state.advance(now)
                self.policy.reorder(state, now)
                if number in self._on:
                    kind = self._stop(state)
                    self._update_rank(state, now)
                    self._run(state, kind, now)
                    self._expect(state, now)
                else:
                    self._leave_queue(state)
                    self._wait(state, now)


def _rank_of(one: tuple[Rank, JobState]) -> Rank:
    return one[0]
