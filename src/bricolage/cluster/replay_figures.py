"""Figures of a replay: completion times, queueing, fairness, use of devices, deadlines, cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.cluster.event_loop import Replayed
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import ClusterSpec

UNFAIR = 1.05
"""Above this finish-time fairness a job counts as treated unfairly (Shockwave)."""


@dataclass(frozen=True)
class PolicyOutcome:
    """What a policy made of a history. Times are in seconds."""

    policy: str
    jobs: int
    makespan_s: float
    """Last end less first submission."""
    mean_jct_s: float
    """Job completion time: end less submission."""
    median_jct_s: float
    p99_jct_s: float
    mean_queue_s: float
    """Completion time less time on devices."""
    utilisation: float
    """Device-seconds held, by those there are from the first submission to the last end. A restart holds devices."""
    worst_fairness: float
    """The largest rho: completion time by that on an exclusive 1/n of the cluster, n the mean number of jobs in the system
    meanwhile; the exclusive part is of the job's fastest kind and at most its gang."""
    unfair: float
    """Share of jobs with rho above 1.05."""
    restarts: int
    late: int
    """Jobs that end after their deadline."""
    tardiness_s: float
    """Sum, over those."""
    deadlines: int
    cost: float
    """Device-hours times price."""


def outcome(policy: str, replayed: Replayed, cluster: ClusterSpec) -> PolicyOutcome:
    """The figures. Jobs that had not ended when the replay was cut off are left out."""
    states = [state for state in replayed.states if not math.isnan(state.finish_s)]
    submit = np.array([state.job.submit_s for state in states])
    jct = np.array([state.finish_s for state in states]) - submit
    span = float(max(state.finish_s for state in states) - submit.min())
    rho = fairness(states, cluster)
    due = [state for state in states if state.job.deadline_s < math.inf]
    late = [state.finish_s - state.job.deadline_s for state in due if state.finish_s > state.job.deadline_s + 1e-6]
    hours = (
        sum(
            stay.devices * stay.part * (stay.end_s - stay.start_s) * cluster.price(stay.kind) for stay in replayed.stays
        )
        / 3600
    )
    return PolicyOutcome(
        policy=policy,
        jobs=len(states),
        makespan_s=span,
        mean_jct_s=float(jct.mean()),
        median_jct_s=float(np.median(jct)),
        p99_jct_s=float(np.quantile(jct, 0.99)),
        mean_queue_s=float((jct - np.array([state.run_s for state in states])).mean()),
        utilisation=sum(state.attained_s for state in states) / (span * sum(cluster.capacity.values()))
        if span
        else 0.0,
        worst_fairness=float(rho.max()),
        unfair=float((rho > UNFAIR).mean()),
        restarts=sum(state.restarts for state in states),
        late=len(late),
        tardiness_s=sum(late),
        deadlines=len(due),
        cost=hours,
    )


def fairness(states: Sequence[JobState], cluster: ClusterSpec) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Rho of each job that has ended."""
    submit = np.array([state.job.submit_s for state in states])
    finish = np.array([state.finish_s for state in states])
    # Mean number of jobs in the system during each job's stay: the integral of a step function, at its ends.
    times = np.concatenate([submit, finish])
    steps = np.concatenate([np.ones(len(states)), -np.ones(len(states))])
    order = np.argsort(times, kind="stable")
    at, count = times[order], np.cumsum(steps[order])
    whole = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(at))])
    jct = np.maximum(finish - submit, 1e-9)
    contending = np.maximum((np.interp(finish, at, whole) - np.interp(submit, at, whole)) / jct, 1.0)
    devices = sum(cluster.capacity.values())
    gangs = np.array([state.job.devices for state in states])
    alone = np.array([state.job.run_s(_fastest(state)) for state in states])
    share = np.minimum(1.0, devices / (contending * gangs))
    rho: np.ndarray[tuple[int], np.dtype[np.float64]] = jct / (alone / share)
    return rho


def _fastest(state: JobState) -> str:
    """The kind that is, among those with room for its gang; what the policy believed of them does not count."""
    return next(kind for kind in state.job.kinds if kind in state.kinds) if len(state.kinds) > 1 else state.kinds[0]
