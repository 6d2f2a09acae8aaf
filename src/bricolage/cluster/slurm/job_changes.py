"""From advice to `scontrol`: which settings of which jobs change, and back.

What a job was before stands in its AdminComment (`[bricolage limit=120 nice=0]`), so that a later call restores it, from anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.cluster.slurm.advice import SlurmAdvice
from bricolage.cluster.slurm.commands import SlurmClient
from bricolage.cluster.slurm.queue import Marked, SlurmJob, SlurmQueue
from bricolage.errors import SlurmRefused

LEAST_LEFT_S = 120.0
"""Between what a running job has run and any limit that it is given."""
_GONE = ("already", "Invalid job id", "no longer", "not pending", "completing", "completed")
"""In refusals because a job has ended or started meanwhile."""


@dataclass(frozen=True)
class Levers:
    """What of an advice is carried out."""

    limits: bool = True
    """Lower time limits to what history allows, and give them back to jobs that outrun it."""
    order: bool = True
    """Nice values in the policy's order."""
    hold: bool = False
    """Instead of nice values: hold who is not to start now, release who is."""


@dataclass(frozen=True)
class SlurmChange:
    """Of one job, in the order in which it is made: release, settings, hold."""

    job: str
    settings: tuple[tuple[str, str], ...] = ()
    """For `scontrol update`."""
    hold: bool = False
    release: bool = False

    def words(self) -> str:
        """For a person."""
        parts = ["release"] if self.release else []
        parts += [f"{key}={value}" for key, value in self.settings if key != "AdminComment"]
        return " ".join(parts + (["hold"] if self.hold else []))


@dataclass(frozen=True)
class AppliedChanges:
    """What became of changes."""

    made: tuple[SlurmChange, ...]
    gone: tuple[str, ...]
    """Jobs that started or ended meanwhile."""


def changes(queue: SlurmQueue, advice: SlurmAdvice, levers: Levers) -> list[SlurmChange]:
    """What has to change for the cluster to follow the advice; nothing where it does already."""
    advised = {entry.job: entry for entry in reversed(advice.jobs)}  # of an array the first task counts
    starting = {entry.job for entry in advice.jobs if entry.starts_now}
    nices = _nices(queue, advice) if levers.order and not levers.hold else {}
    candidates = []
    for job in queue.jobs:
        if job.number not in advised:
            continue
        limit = advised[job.number].advised_limit_s if levers.limits else job.limit_s
        nice = nices.get(job.number, job.nice)
        hold = levers.hold and job.state == "PENDING" and job.number not in starting
        if not levers.hold:
            hold = job.held
        candidates.append(_change(job, limit, nice, hold, queue.now))
    return [change for change in candidates if change is not None]


def plan_restoration(queue: SlurmQueue, holds_only: bool = False) -> list[SlurmChange]:
    """What gives every job back what it had before the first change; or releases those that were held."""
    candidates = []
    for job in queue.jobs:
        if job.state in ("PENDING", "RUNNING") and job.marked != Marked():
            limit, nice = (job.limit_s, job.nice) if holds_only else (job.own_limit_s, job.own_nice)
            held = job.held and not job.marked.held
            candidates.append(_change(job, limit, nice if job.state == "PENDING" else job.nice, held, queue.now))
    return [change for change in candidates if change is not None]


def apply_changes(client: SlurmClient, wanted: Sequence[SlurmChange]) -> AppliedChanges:
    """Makes changes, job by job.

    Raises:
        SlurmRefused: Slurm refuses one for another reason than that the job has ended or started meanwhile; those before it stand.
        SlurmUnavailable: it does not answer.
    """
    applied, gone = list[SlurmChange](), list[str]()
    for change in wanted:
        try:
            if change.release:
                client.release(change.job)
            if change.settings:
                client.update(change.job, change.settings)
            if change.hold:
                client.hold(change.job)
            applied.append(change)
        except SlurmRefused as error:
            if any(word in str(error.facts["reason"]) for word in _GONE):
                gone.append(change.job)
                continue
            raise
    return AppliedChanges(tuple(applied), tuple(gone))


def _change(job: SlurmJob, limit_s: float, nice: int, held: bool, now: float) -> SlurmChange | None:
    settings: list[tuple[str, str]] = []
    least = max(now - job.start_s, 0.0) + LEAST_LEFT_S if job.state == "RUNNING" else 0.0
    if limit_s != job.limit_s and limit_s > least:
        settings.append(("TimeLimit", _minutes(limit_s)))
    else:
        limit_s = job.limit_s
    if nice != job.nice and job.state == "PENDING":
        settings.append(("Nice", str(nice)))
    else:
        nice = job.nice
    own_limit = job.own_limit_s
    marked = Marked(
        None if limit_s == own_limit else (round(own_limit / 60.0) if math.isfinite(own_limit) else 0),
        None if nice == job.own_nice or job.state != "PENDING" else job.own_nice,
        held and job.state == "PENDING" and (job.marked.held or not job.held),
    )
    if marked != job.marked:
        text = " ".join(part for part in (job.comment, marked.text()) if part)
        settings.append(("AdminComment", text))
    hold, release = marked.held and not job.held, job.held and not held
    if not settings and not hold and not release:
        return None
    return SlurmChange(job.number, tuple(settings), hold, release)


def _minutes(seconds: float) -> str:
    return str(math.ceil(seconds / 60.0)) if math.isfinite(seconds) else "UNLIMITED"


def _nices(queue: SlurmQueue, advice: SlurmAdvice) -> dict[str, int]:
    """Nice values that put priorities into the order: each job is at or above its own value, so that a job gains only by others
    coming later. What a priority would be with the job's own value is known: Slurm subtracts the value from it."""
    jobs = {job.number: job for job in queue.jobs}
    nices: dict[str, int] = {}
    above = math.inf
    for entry in advice.jobs:
        job = jobs[entry.job]
        if entry.running or job.held or entry.job in nices or math.isnan(job.priority):
            continue
        own_priority = job.priority + job.nice - job.own_nice
        wanted = min(own_priority, above - 1.0)
        # A priority that would fall to 0 would hold the job.
        wanted = max(wanted, 1.0)
        nices[entry.job] = job.own_nice + round(own_priority - wanted)
        above = wanted
    return nices
