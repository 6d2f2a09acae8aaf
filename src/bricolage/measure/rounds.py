"""Interleaved rounds: every candidate takes its turn, again and again, so that what changes on the machine hits all
alike."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from bricolage.costs.latency import Latency, enough
from bricolage.measure.candidate_job import Job
from bricolage.measure.disturbance import DISTURBED, Tally, machine
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Stop, TimingPolicy, never
from bricolage.measure.turns import take_turns
from bricolage.work.gain import LEAST_GAIN

_LONG_MS = 20.0
"""From this long a call on, the first call of a turn is no colder than the rest: no untimed one is needed."""
_TURN_WARM_S = 5e-4


def job_latency(job: Job) -> Latency:
    """Median and interval of what a job was timed at, in milliseconds."""
    return Latency.of_rounds(job.rounds, job.disturbed)


def is_disturbed(job: Job) -> bool:
    """Whether others disturbed too many of its rounds, so that its latency is an estimate from disturbed ones."""
    return any(job.disturbed) and not enough(job.disturbed.count(False), len(job.disturbed))


def compare_jobs(
    pool: Pool, jobs: Sequence[Job], log: MeasurementLog, policy: TimingPolicy, should_stop: Stop = never
) -> set[str]:
    """Times ready jobs against each other; their rounds grow in place. A job that dies gets its outcome.

    First `rounds` rounds for all, then rounds for the near-ties, and twice as many for those that could win and were disturbed.
    Returns the ids of the jobs whose place is still open: within the leading group, with intervals that touch and are wider
    than what counts as a gain.
    """
    end = time.monotonic() + policy.seconds
    hopeful = list(jobs)
    cores = jobs[0].spec.device.cores if jobs else ()

    def all_of_them(done: int, running: list[Job]) -> Sequence[Job]:
        nonlocal hopeful
        hopeful = [job for job in running if job.ready]
        if done == policy.probe:
            hopeful = _hopeful(hopeful, policy.hopeless)
        over = done >= policy.rounds or (done >= policy.probe and time.monotonic() > end) or should_stop()
        return () if over else hopeful

    def near_ties(done: int, _: list[Job]) -> Sequence[Job]:
        if done >= policy.most_rounds or time.monotonic() >= end or should_stop():
            return ()
        again = hopeful if done == begun or done < 2 * policy.rounds else ()
        return [job for job in _open(jobs, again) if job.ready]

    def turn(job: Job) -> None:
        take_turn(pool, job, log, policy)

    with pool.exclusive():
        begun = take_turns(jobs, turn, all_of_them, around=lambda: track_machine(log.tally, cores))
        take_turns(jobs, turn, near_ties, first=begun, around=lambda: track_machine(log.tally, cores))
    return {job.id for job in _near_ties(jobs)}


@contextmanager
def track_machine(tally: Tally, cores: Collection[int]) -> Iterator[None]:
    """Adds to a tally what the machine does within."""
    before, own_s, reported_s = machine(cores), time.process_time(), tally.own_s
    yield
    own_s = time.process_time() - own_s + tally.own_s - reported_s
    tally.add_interval(before, machine(cores), own_s, len(cores))


@dataclass(frozen=True)
class TurnTimes:
    """What was timed in one turn: samples in ms, those alone that others did not disturb where there are such."""

    samples: list[float]
    disturbed: bool
    """Whether others disturbed all of them."""
    served: list[float] | None
    """Latencies of single calls, ms, where several requests are answered at a time."""


def take_turn(pool: Pool, job: Job, log: MeasurementLog, policy: TimingPolicy) -> bool:
    """Times a job once; whether it could. A job that dies gets its outcome; one whose worker was ended from outside is `lost`."""
    if not job.ready:
        return False
    times = ask_for_times(pool, job, log, policy.run_s, "time", turns=1, warm_s=_warm_up(job, policy))
    if times is not None:
        job.timed(times.samples, times.disturbed, times.served)
    return times is not None


def ask_for_times(
    pool: Pool, job: Job, log: MeasurementLog, limit_s: float, command: str, **facts: object
) -> TurnTimes | None:
    """One turn of a ready job, by a command of its worker; None where there is nothing: a job that dies gets its outcome, one whose
    worker was ended from outside is `lost`."""
    assert job.worker is not None
    answer = log.heard(pool.ask(job.worker, limit_s, command, id=job.id, **facts))
    if not answer.ok:
        if answer.outcome != "lost":  # then it is no longer ready, and may be loaded again
            job.fail(answer.outcome, answer.reason)
        return None
    (samples,) = cast(list[list[float]], answer.facts["rounds"])
    (shares,) = cast(list[list[float]], answer.facts["waited"])
    if log.tally.calm:
        shares = [0.0] * len(shares)
    clean = [i for i, share in enumerate(shares) if share <= DISTURBED]
    kept = clean or range(len(samples))
    served = cast(list[list[list[float]]], answer.facts.get("latencies", []))
    repeated, processor_s = int(str(answer.facts["repeated"])), float(str(answer.facts["processor_s"]))
    log.tally.add_turn(shares, repeated, processor_s)
    calls = [ms for i in kept for ms in served[0][i]] if served else None
    return TurnTimes([samples[i] for i in kept], not clean, calls)


def _warm_up(job: Job, policy: TimingPolicy) -> float:
    if not job.rounds:
        long = job.first_ms is not None and job.first_ms > policy.warm_s * 1e3 and job.first_ms > 10 * _LONG_MS
        return 0.0 if long else policy.warm_s  # the run that was checked has warmed it
    return 0.0 if min(job.rounds[-1]) > _LONG_MS else _TURN_WARM_S


def _hopeful(jobs: Sequence[Job], factor: float) -> list[Job]:
    """Those that could still be the fastest."""
    if not jobs:
        return []
    best = min((job_latency(job) for job in jobs), key=lambda latency: latency.median_ms)
    return [job for job in jobs if job_latency(job).low_ms <= factor * best.high_ms]


def _open(jobs: Sequence[Job], hopeful: Sequence[Job]) -> list[Job]:
    """Those that need more rounds: near-ties, and of the hopeful, where others disturbed them, those that may be fastest."""
    wanted = {job.id for job in _near_ties(jobs)}
    timed = [job for job in hopeful if job.ready and job.rounds]
    if timed:
        best = min(map(job_latency, timed), key=lambda latency: latency.median_ms)
        wanted |= {job.id for job in timed if is_disturbed(job) and job_latency(job).low_ms <= best.high_ms}
    return [job for job in jobs if job.id in wanted]


def _near_ties(jobs: Sequence[Job]) -> list[Job]:
    """The leading group, as long as its order matters and is open."""
    timed = [job for job in jobs if job.rounds and job.state != "failed"]
    if len(timed) < 2:
        return []
    best = min(timed, key=lambda job: job_latency(job).median_ms)
    group = [job for job in timed if job_latency(job).overlaps(job_latency(best))]
    wide = any(job_latency(job).width > LEAST_GAIN for job in group)
    return group if len(group) > 1 and wide else []
