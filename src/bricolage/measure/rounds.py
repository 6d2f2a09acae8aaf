"""Interleaved rounds: every candidate takes its turn, again and again, so that what changes on the machine hits all
alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.measure.loading import Job, Stop, never
from bricolage.measure.pool import Pool
from bricolage.measure.statistics import THRESHOLD, Latency

_LONG_MS = 20.0
"""From this long a call on, the first call of a turn is no colder than the rest: no untimed one is needed."""
_TURN_WARM_S = 5e-4


@dataclass(frozen=True)
class TimingPolicy:
    """How many rounds, and when enough is known."""

    rounds: int = 7
    most_rounds: int = 28
    """Cap for near-ties."""
    warm_s: float = 0.01
    """Untimed running before the first turn."""
    probe: int = 3
    """Rounds after which the hopeless retire."""
    hopeless: float = 2.0
    """A candidate retires when all its rounds took longer than this times the best one's slowest."""
    seconds: float = 10.0
    """Upper bound on the rounds of one comparison; `probe` rounds are made in any case."""
    run_s: float = 60.0
    """Limit of one turn."""


def latency(job: Job) -> Latency:
    """Median and interval of what a job was timed at, in milliseconds."""
    return Latency.of_rounds(job.rounds)


def compare(pool: Pool, jobs: Sequence[Job], policy: TimingPolicy, should_stop: Stop = never) -> set[str]:
    """Times ready jobs against each other; their rounds grow in place. A job that dies gets its outcome.

    First `rounds` rounds for all, then rounds for the near-ties alone. Returns the ids of the jobs whose place is still
    open: within the leading group, with intervals that touch and are wider than what counts as a gain.
    """
    end = time.monotonic() + policy.seconds
    done = 0
    running = [job for job in jobs if job.ready]
    with pool.exclusive():
        while len(running) > 0 and done < policy.rounds and not should_stop():
            one_round(pool, running, done, policy)
            done += 1
            running = [job for job in running if job.ready]
            if done == policy.probe:
                running = _hopeful(running, policy.hopeless)
            if done >= policy.probe and time.monotonic() > end:
                break
        near = _near_ties(jobs)
        while near and done < policy.most_rounds and time.monotonic() < end and not should_stop():
            one_round(pool, near, done, policy)
            done += 1
            near = [job for job in _near_ties(jobs) if job.ready]
    return {job.id for job in near}


def one_round(
    pool: Pool, jobs: Sequence[Job], number: int, policy: TimingPolicy, taken: Callable[[Job], None] | None = None
) -> None:
    """One turn for each job, forwards in even rounds and backwards in odd ones. A job that dies gets its outcome; one whose
    worker somebody else has ended is `lost`."""
    for job in jobs if number % 2 == 0 else reversed(jobs):
        if not job.ready or job.worker is None:
            continue
        answer = pool.ask(job.worker, policy.run_s, "time", id=job.id, turns=1, warm_s=_warm_up(job, policy))
        if not answer.ok:
            if answer.outcome != "lost":  # then it is no longer ready, and may be loaded again
                job.fail(answer.outcome, answer.reason)
            continue
        rounds: list[list[float]] = answer.facts["rounds"]  # type: ignore[assignment]
        job.rounds += rounds
        if taken is not None:
            taken(job)


def _warm_up(job: Job, policy: TimingPolicy) -> float:
    if not job.rounds:
        long = job.first_ms is not None and job.first_ms > policy.warm_s * 1e3 and job.first_ms > 10 * _LONG_MS
        return 0.0 if long else policy.warm_s  # the run that was checked has warmed it
    return 0.0 if min(job.rounds[-1]) > _LONG_MS else _TURN_WARM_S


def _hopeful(jobs: Sequence[Job], factor: float) -> list[Job]:
    """Those that could still be the fastest."""
    if not jobs:
        return []
    best = min((latency(job) for job in jobs), key=lambda known: known.median_ms)
    return [job for job in jobs if latency(job).low_ms <= factor * best.high_ms]


def _near_ties(jobs: Sequence[Job]) -> list[Job]:
    """The leading group, as long as its order matters and is open."""
    timed = [job for job in jobs if job.rounds and job.outcome is None]
    if len(timed) < 2:
        return []
    best = min(timed, key=lambda job: latency(job).median_ms)
    group = [job for job in timed if latency(job).overlaps(latency(best))]
    wide = any(latency(job).width > THRESHOLD for job in group)
    return group if len(group) > 1 and wide else []
