"""Interleaved rounds: every candidate takes its turn, again and again, so that what changes on the machine hits all
alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bricolage.costs.latency import Latency, enough
from bricolage.measure.disturbance import DISTURBED, machine
from bricolage.measure.loading import Job
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Stop, TimingPolicy, never
from bricolage.measure.statistics import THRESHOLD

_LONG_MS = 20.0
"""From this long a call on, the first call of a turn is no colder than the rest: no untimed one is needed."""
_TURN_WARM_S = 5e-4


def latency(job: Job) -> Latency:
    """Median and interval of what a job was timed at, in milliseconds."""
    return Latency.of_rounds(job.rounds, job.disturbed)


def disturbed(job: Job) -> bool:
    """Whether others disturbed so many of its rounds that its latency is an estimate from disturbed ones."""
    return any(job.disturbed) and not enough(job.disturbed.count(False), len(job.disturbed))


def compare(pool: Pool, jobs: Sequence[Job], policy: TimingPolicy, should_stop: Stop = never) -> set[str]:
    """Times ready jobs against each other; their rounds grow in place. A job that dies gets its outcome.

    First `rounds` rounds for all, then rounds for the near-ties, and as many again for whoever could win and was disturbed.
    Returns the ids of the jobs whose place is still open: within the leading group, with intervals that touch and are wider
    than what counts as a gain.
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
        near = _open(jobs, running)
        while near and done < policy.most_rounds and time.monotonic() < end and not should_stop():
            one_round(pool, near, done, policy)
            done += 1
            again = running if done < 2 * policy.rounds else ()
            near = [job for job in _open(jobs, again) if job.ready]
    return {job.id for job in _near_ties(jobs)}


def one_round(
    pool: Pool, jobs: Sequence[Job], number: int, policy: TimingPolicy, taken: Callable[[Job], None] | None = None
) -> None:
    """One turn for each job, forwards in even rounds and backwards in odd ones. A job that dies gets its outcome; one whose
    worker somebody else has ended is `lost`. What the machine did meanwhile is added to the pool's tally."""
    cores = jobs[0].spec.device.cores if jobs else ()
    before, own_s, reported_s, calm = machine(cores), time.process_time(), pool.tally.own_s, pool.tally.calm
    for job in jobs if number % 2 == 0 else reversed(jobs):
        if not job.ready or job.worker is None:
            continue
        answer = pool.ask(job.worker, policy.run_s, "time", id=job.id, turns=1, warm_s=_warm_up(job, policy))
        if not answer.ok:
            if answer.outcome != "lost":  # then it is no longer ready, and may be loaded again
                job.fail(answer.outcome, answer.reason)
            continue
        turns: list[list[float]] = answer.facts["rounds"]  # type: ignore[assignment]
        waited: list[list[float]] = answer.facts["waited"]  # type: ignore[assignment]
        if calm:
            waited = [[0.0] * len(shares) for shares in waited]
        served: list[list[list[float]]] = answer.facts.get("latencies", [])  # type: ignore[assignment]
        for number, (samples, shares) in enumerate(zip(turns, waited, strict=True)):
            clean = [i for i, share in enumerate(shares) if share <= DISTURBED]
            kept = clean or range(len(samples))
            job.rounds.append([samples[i] for i in kept])
            job.disturbed.append(not clean)
            if served:
                job.latencies.append(tuple(ms for i in kept for ms in served[number][i]))
        repeated, processor_s = int(str(answer.facts["repeated"])), float(str(answer.facts["processor_s"]))
        pool.tally.add_turn([share for shares in waited for share in shares], repeated, processor_s)
        if taken is not None:
            taken(job)
    own_s = time.process_time() - own_s + pool.tally.own_s - reported_s
    pool.tally.add_interval(before, machine(cores), own_s, len(cores))


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


def _open(jobs: Sequence[Job], hopeful: Sequence[Job]) -> list[Job]:
    """Those that need more rounds: near-ties, and of the hopeful, where others disturbed them, those that may be fastest."""
    wanted = {job.id for job in _near_ties(jobs)}
    timed = [job for job in hopeful if job.ready and job.rounds]
    if timed:
        best = min(map(latency, timed), key=lambda known: known.median_ms)
        wanted |= {job.id for job in timed if disturbed(job) and latency(job).low_ms <= best.high_ms}
    return [job for job in jobs if job.id in wanted]


def _near_ties(jobs: Sequence[Job]) -> list[Job]:
    """The leading group, as long as its order matters and is open."""
    timed = [job for job in jobs if job.rounds and job.outcome is None]
    if len(timed) < 2:
        return []
    best = min(timed, key=lambda job: latency(job).median_ms)
    group = [job for job in timed if latency(job).overlaps(latency(best))]
    wide = any(latency(job).width > THRESHOLD for job in group)
    return group if len(group) > 1 and wide else []
