"""What a real scheduler has in its queue, for `prospects`: Slurm's and Kueue's adapters stand on it.

Time 0 is now. Jobs that wait were submitted before it, and jobs that run hold devices at it. How long jobs take is not known: the
policy believes the mean of what jobs like it took, and futures draw one of these.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import PolicyEntry
from bricolage.cluster.prospects import Future, Prospect, Scene, prospects
from bricolage.cluster.run_times import RunTime, run_time
from bricolage.cluster.standing import Standing
from bricolage.cluster.why import Expected
from bricolage.errors import PolicyRefuses

_NOW_S = 0.5
"""In seconds: a start within them is now."""


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
    prospect: Prospect
    place: int
    """In the order of starts, from 1; 0 of one that runs."""

    @property
    def expected(self) -> Expected:
        """Start and end, seconds from now."""
        return self.prospect.expected

    @property
    def starts_now(self) -> bool:
        """Whether it waits, and the policy starts it at once."""
        return self.place > 0 and self.expected.start_s <= _NOW_S


@dataclass(frozen=True)
class PastRuns:
    """Futures in which each job takes as long as one of the jobs like it did, at random."""

    times: Sequence[RunTime]
    """By number."""

    def future(self, scene: Scene, draw: random.Random) -> Future:
        """Run times are longer than what a job has run; rates are known."""
        truth = [
            job.stretched(max(time.drawn(draw), 1e-3) / job.run_s(job.kinds[0]))
            for job, time in zip(scene.jobs, self.times, strict=True)
        ]
        return truth, [{} for _ in truth]


def outlook(
    jobs: Sequence[QueuedJob], cluster: ClusterSpec, entry: PolicyEntry, rolling: Rolling, draws: int, seed: int
) -> list[JobOutlook]:
    """When each job starts and ends, and why not sooner. Jobs that share no kinds of devices do not wait for each other.

    Args:
        jobs: in order of submission; each fits on one of its kinds, and those that run fit together.
        cluster: with the devices.
        entry: the policy. It orders who waits, and stops no job.
        rolling: what past jobs took.
        draws: futures with lengths drawn from it, for the intervals.
        seed: of the draws.

    Raises:
        PolicyRefuses: the policy cannot serve these jobs.
    """
    times = [
        run_time(rolling, job.user, job.program, job.devices, -(job.since_s or 0.0), job.own_limit_s) for job in jobs
    ]
    work = [_work(queued_job, time) for queued_job, time in zip(jobs, times, strict=True)]
    forecasts: dict[int, Prospect] = {}
    for kinds, numbers in _apart([job.kinds for job in jobs]):
        part = replace(cluster, group=tuple(group for group in cluster.group if group.kind in kinds))
        part_jobs = [work[number] for number in numbers]
        if reason := entry.refuses(part_jobs, part):
            raise PolicyRefuses(name=entry.name, reason=reason)
        standing = _standing([jobs[number] for number in numbers], part_jobs)
        scene = Scene(part_jobs, standing, part, entry, 0.0, preempts=False)
        drawn = prospects(scene, PastRuns([times[number] for number in numbers]), draws=draws, seed=seed)
        forecasts |= dict(zip(numbers, drawn, strict=True))
    waiting = [number for number in forecasts if jobs[number].since_s is None]
    waiting.sort(key=lambda number: (forecasts[number].expected.start_s, forecasts[number].expected.place, number))
    place = {number: at for at, number in enumerate(waiting, 1)}
    return [JobOutlook(times[n], forecasts[n], place.get(n, 0)) for n in range(len(jobs))]


def _standing(jobs: Sequence[QueuedJob], work: Sequence[TrainingJob]) -> Mapping[int, Standing]:
    """Who runs has run since then at its rate, and has a moment left at least."""
    standings = {}
    for number, (queued_job, job) in enumerate(zip(jobs, work, strict=True)):
        if (since := queued_job.since_s) is None:
            continue
        phase, kind = job.phases[0], queued_job.kinds[0]
        standings[number] = Standing(
            min(phase.rates[kind] * -since, (1.0 - 1e-6) * phase.steps), kind, devices=job.devices, since_s=since,
            first_start_s=since, resumes_s=since, attained_s=-since * job.devices, run_s=-since, known=(kind,),
        )  # fmt: skip
    return standings


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
