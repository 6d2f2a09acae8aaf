"""What happens next on a cluster that runs already: the replay's loop and policies, begun in the middle.

Time 0 is now. Jobs that wait were submitted before it, and jobs that run hold devices at it. Nobody knows how long jobs take: a
forecast is made for the mean of what is believed, and for draws of it, whose starts and ends give an interval.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bricolage.cluster.catalogue import PolicyEntry
from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.loop import _ARRIVE, JobStart, Replayed, ReplayLoop
from bricolage.cluster.machines import ClusterSpec

Interval = tuple[float, float]
TENTHS = (0.1, 0.9)
"""Quantiles of an interval."""


@dataclass(frozen=True)
class RunningJob:
    """A job that runs at the beginning."""

    kind: str
    """Of the devices that it holds."""
    since_s: float
    """Negative, or 0."""


@dataclass
class ForecastLoop(ReplayLoop):
    """The loop, begun with running jobs. Submissions before 0 arrive at 0, in order."""

    running: Mapping[int, RunningJob] = field(default_factory=dict)
    """By number."""
    started: list[int] = field(default_factory=list, init=False)
    """Those that waited, in the order in which they first start."""

    def _fill(self) -> None:
        super()._fill()
        self._heap = [(max(at, 0.0), what, number, version) for at, what, number, version in self._heap]
        heapq.heapify(self._heap)

    def _handle(self, what: int, number: int, version: int) -> None:
        if what == _ARRIVE and number in self.running:
            one, state = self.running[number], self.states[number]
            pool = self.pools[one.kind]
            state.nodes = pool.place(state.job.devices)
            state.held_kind, state.held, state.at_s = one.kind, state.job.devices, self.now
            state.since_s = state.first_start_s = state.resumes_s = one.since_s
            past = self.now - one.since_s
            state.run_s, state.attained_s = past, past * state.held
            state.done = min(state.rate_on(one.kind) * past, (1.0 - 1e-6) * state.job.phases[0].steps)
            self._set_rate(state)
        super()._handle(what, number, version)

    def _start(self, start: JobStart) -> None:
        if math.isnan(start.state.first_start_s):
            self.started.append(start.state.number)
        super()._start(start)


@dataclass(frozen=True)
class Expected:
    """Start and end of a job, in seconds from now, each with the range of eight draws of ten."""

    place: int
    """In the order of first starts, from 1; 0 where it runs."""
    start_s: float
    """Negative where it runs."""
    start_interval_s: Interval
    end_s: float
    end_interval_s: Interval


def forecast(
    jobs: Sequence[TrainingJob],
    running: Mapping[int, RunningJob],
    cluster: ClusterSpec,
    entry: PolicyEntry,
    draws: Sequence[Sequence[float]],
    *,
    preempts: bool = False,
) -> tuple[list[Expected], Replayed]:
    """When each job starts and ends under a policy.

    Args:
        jobs: in order of submission, with the lengths that are believed; seconds from now.
        running: those that hold devices, by number.
        cluster: with the devices.
        entry: the policy.
        draws: for each draw the seconds that each job takes in all.
        preempts: whether the policy may stop running jobs.

    Returns:
        For each job, and the replay of the believed lengths.

    Raises:
        JobFitsNowhere, ClusterStuck: as the loop has it.
    """
    believed, order = _run(jobs, running, cluster, entry, preempts)
    drawn = [
        _run([_lasting(*one) for one in zip(jobs, lengths, strict=True)], running, cluster, entry, preempts)[0]
        for lengths in draws
    ]
    place = {number: at for at, number in enumerate(order, 1)}
    starts = np.array([[state.first_start_s for state in one.states] for one in (believed, *drawn)])
    ends = np.array([[state.finish_s for state in one.states] for one in (believed, *drawn)])
    found = []
    for number in range(len(jobs)):
        start, end = (np.quantile(times[:, number], TENTHS) for times in (starts, ends))
        found.append(
            Expected(
                place.get(number, 0),
                float(starts[0, number]), (float(start[0]), float(start[1])),
                float(ends[0, number]), (float(end[0]), float(end[1])),
            )
        )  # fmt: skip
    return found, believed


def _run(
    jobs: Sequence[TrainingJob],
    running: Mapping[int, RunningJob],
    cluster: ClusterSpec,
    entry: PolicyEntry,
    preempts: bool,
) -> tuple[Replayed, list[int]]:
    scheduler = entry.make(jobs, cluster)
    scheduler.preempts = preempts
    loop = ForecastLoop(jobs, cluster, scheduler, ExactLengths(), running=running)
    return loop.run(), loop.started


def _lasting(job: TrainingJob, seconds: float) -> TrainingJob:
    """The same job with another length."""
    factor = seconds / job.run_s(job.kinds[0])
    if not math.isfinite(factor) or factor <= 0.0:
        return job
    return replace(job, phases=tuple(replace(phase, steps=phase.steps * factor) for phase in job.phases))
