"""What happens next on a cluster that runs already: the replay's loop and policies, begun in the middle. Slurm's and Kueue's
adapters stand on it.

Time 0 is now. Jobs that wait were submitted before it, and jobs that run hold devices at it. How long jobs take is not known: a
forecast is made for the mean of what is believed, and for draws of it, whose starts and ends give an interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bricolage.cluster.catalogue import PolicyEntry
from bricolage.cluster.estimates import ExactLengths, Rolling
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.loop import JobStart, Replayed, ReplayLoop
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.run_times import RunTime, run_time
from bricolage.cluster.standing import Standing
from bricolage.cluster.why import Expected, lacks_now
from bricolage.errors import PolicyRefuses

_NOW_S = 0.5
"""In seconds: a start within them is now."""


@dataclass(frozen=True)
class RunningJob:
    """A job that runs at the beginning."""

    kind: str
    """Of the devices that it holds."""
    since_s: float
    """Negative, or 0."""


@dataclass
class ForecastLoop(ReplayLoop):
    """The loop, with the order of first starts."""

    started: list[int] = field(default_factory=list, init=False)
    """Those that waited, in the order in which they first start."""

    def _start(self, start: JobStart) -> None:
        if math.isnan(start.state.first_start_s):
            self.started.append(start.state.number)
        super()._start(start)


def _standing(job: TrainingJob, one: RunningJob) -> Standing:
    """It has run since then at its rate, and has a moment left at least."""
    past, phase = -one.since_s, job.phases[0]
    done = min(phase.rates[one.kind] * past, (1.0 - 1e-6) * phase.steps)
    return Standing(
        done, one.kind, devices=job.devices, since_s=one.since_s, first_start_s=one.since_s, resumes_s=one.since_s,
        attained_s=past * job.devices, run_s=past, known=(one.kind,),
    )  # fmt: skip


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
    found = [
        Expected.of(place.get(n, 0), float(starts[0, n]), starts[:, n], float(ends[0, n]), ends[:, n])
        for n in range(len(jobs))
    ]
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
    standing = {number: _standing(jobs[number], one) for number, one in running.items()}
    loop = ForecastLoop(jobs, cluster, scheduler, ExactLengths(), begin_s=0.0, standing=standing)
    return loop.run(), loop.started


def _lasting(job: TrainingJob, seconds: float) -> TrainingJob:
    """The same job with another length."""
    factor = seconds / job.run_s(job.kinds[0])
    if not math.isfinite(factor) or factor <= 0.0:
        return job
    return job.stretched(factor)


@dataclass(frozen=True)
class QueuedJob:
    """A job as a real scheduler has it."""

    name: str
    user: str
    program: str
    """What jobs of one length share: a job's name in Slurm, its owner's in Kueue."""
    devices: int
    kinds: tuple[str, ...]
    """Of devices that it may use; of one that runs the one that it holds."""
    submit_s: float
    """From now; at most 0."""
    limit_s: float
    """Time limit that a policy trusts; infinite: none."""
    own_limit_s: float
    """Time limit at which it is ended; infinite: none."""
    since_s: float | None = None
    """Since when it runs, from now; None: it waits."""


@dataclass(frozen=True)
class JobOutlook:
    """Of one job."""

    time: RunTime
    expected: Expected
    waits_for: str
    """What it lacks now; empty where nothing."""
    place: int
    """In the order of starts, from 1; 0 of one that runs."""

    @property
    def starts_now(self) -> bool:
        """Whether it waits, and the policy starts it at once."""
        return self.place > 0 and self.expected.start_s <= _NOW_S


def outlook(
    jobs: Sequence[QueuedJob], cluster: ClusterSpec, entry: PolicyEntry, rolling: Rolling, draws: int, seed: int
) -> list[JobOutlook]:
    """When each job starts and ends, and why not sooner. Jobs that share no kinds of devices do not wait for each other.

    Args:
        jobs: in order of submission; each fits on one of its kinds, and those that run fit together.
        cluster: with the devices.
        entry: the policy. It orders who waits, and stops no job.
        rolling: what past jobs took.
        draws: forecasts with lengths drawn from it, for the intervals.
        seed: of the draws.

    Raises:
        PolicyRefuses: the policy cannot serve these jobs.
    """
    times = [
        run_time(rolling, one.user, one.program, one.devices, -(one.since_s or 0.0), one.own_limit_s) for one in jobs
    ]
    work = [_work(one, time) for one, time in zip(jobs, times, strict=True)]
    found: dict[int, tuple[Expected, str]] = {}
    for kinds, numbers in _apart([one.kinds for one in jobs]):
        part = replace(cluster, group=tuple(group for group in cluster.group if group.kind in kinds))
        some = [work[number] for number in numbers]
        if reason := entry.refuses(some, part):
            raise PolicyRefuses(name=entry.name, reason=reason)
        running = {
            at: RunningJob(jobs[number].kinds[0], since)
            for at, number in enumerate(numbers)
            if (since := jobs[number].since_s) is not None
        }
        drawn = [[times[n].drawn(f"{seed}/{draw}/{n}") for n in numbers] for draw in range(draws)]
        expected, replayed = forecast(some, running, part, entry, drawn)
        for at, (number, one) in enumerate(zip(numbers, expected, strict=True)):
            found[number] = one, "" if at in running else lacks_now(replayed.states[at], replayed, part)
    waiting = [number for number in found if jobs[number].since_s is None]
    waiting.sort(key=lambda number: (found[number][0].start_s, found[number][0].place, number))
    place = {number: at for at, number in enumerate(waiting, 1)}
    return [JobOutlook(times[n], *found[n], place.get(n, 0)) for n in range(len(jobs))]


def _work(job: QueuedJob, time: RunTime) -> TrainingJob:
    phases = (WorkPhase(max(time.seconds, 1e-3), dict.fromkeys(job.kinds, 1.0)),)
    return TrainingJob(
        job.name, min(job.submit_s, 0.0), phases, job.devices, user=job.user, kind=job.program, limit_s=job.limit_s
    )


def _apart(wanted: Sequence[Sequence[str]]) -> list[tuple[set[str], list[int]]]:
    """Jobs that share no kinds of devices with others, apart: those of another partition neither block them nor help them."""
    parts: list[set[str]] = []
    for kinds in wanted:
        joined = set(kinds).union(*(part for part in parts if part & set(kinds)))
        parts = [part for part in parts if not part & joined] + [joined]
    return [(part, [n for n, kinds in enumerate(wanted) if part & set(kinds)]) for part in parts]
