"""Policies side by side on one history."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bricolage.cluster.event_loop import EventLoop, Replayed
from bricolage.cluster.history.records import NO_HISTORY, JobHistory
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import MOST_IN_ROUNDS, POLICIES, PolicyEntry, find_policy
from bricolage.cluster.prospects import Doubt, predicted_at_submission
from bricolage.cluster.replay_figures import PolicyOutcome, fairness, outcome
from bricolage.cluster.sleeping import Slept, slept
from bricolage.cluster.why import Expected, Waited, explain_waits, longest_waits
from bricolage.errors import PolicyRefuses

_LOG = logging.getLogger(__name__)
POINTS = 300
"""Of a curve over time."""
_QUANTILES = np.linspace(0.0, 1.0, 101)
EXPLAINED = 30
"""Jobs for which a comparison says why they waited."""


@dataclass(frozen=True)
class ReplayOptions:
    """Which policies replay a history, and how wrong what they believe of its jobs is."""

    policies: Sequence[str] = ("all",)
    """Their names; "all" for every one that can serve."""
    error: float = 0.0
    """Standard deviation of the logarithm of predicted lengths; 0: policies that want lengths know them."""
    rate_error: float | None = None
    """The same of the rates of a job on kinds of device that it has not run on yet; None: what the history's rates say."""
    fitted: bool = False
    """Whether policies know of a job's batch sizes only what was fitted from its own running (`fitted.py`)."""
    seeds: int = 1
    """Draws of these errors."""


@dataclass(frozen=True)
class PolicyResult:
    """One policy: figures, curves, and why the longest waits were."""

    title: str
    outcome: PolicyOutcome
    mean_jct_interval_s: tuple[float, float] | None
    """Least and largest mean completion time over seeds, where estimates are wrong on purpose."""
    used: Mapping[str, tuple[float, ...]]
    """Devices of each kind that are held, at equal distances of time."""
    waiting: tuple[float, ...]
    """Jobs that wait, likewise."""
    jct_s: tuple[float, ...]
    """Completion times at 0, 1, ... 100 % of the jobs."""
    rho: tuple[float, ...]
    """Finish-time fairness, likewise."""
    slept: Slept
    """What idle nodes could sleep."""
    waits: tuple[Waited, ...]
    """The longest, or those that were asked for."""


@dataclass(frozen=True)
class ClusterComparison:
    """What each policy makes of a history on a cluster."""

    jobs: int
    devices: Mapping[str, int]
    restart_s: float
    round_s: float
    error: float
    rate_error: float
    seeds: int
    left_out: Mapping[str, int]
    """Lines of the history without a job, by the reason."""
    not_completed: Mapping[str, int]
    """Jobs of the history that did not complete, by their state."""
    notes: tuple[str, ...]
    """What a reader has to know of the history."""
    refused: Mapping[str, str]
    """Policies that cannot serve it, and why."""
    span_s: float
    """The axis of all curves over time: up to the last end under any policy."""
    results: tuple[PolicyResult, ...]


def choose_policies(
    names: Sequence[str], jobs: Sequence[TrainingJob], cluster: ClusterSpec
) -> tuple[list[PolicyEntry], dict[str, str]]:
    """The policies that are asked for, and those of `all` that cannot serve, with the reason.

    Raises:
        UnknownPolicy: there is none of a name.
        PolicyRefuses: one that is asked for by name cannot serve.
    """
    if "all" in names:
        refused = {entry.name: _reason(entry, jobs, cluster) for entry in POLICIES}
        return [entry for entry in POLICIES if not refused[entry.name]], {n: why for n, why in refused.items() if why}
    entries = [find_policy(name) for name in dict.fromkeys(names)]
    for entry in entries:
        if reason := entry.refuses(jobs, cluster):
            raise PolicyRefuses(name=entry.name, reason=reason)
    return entries, {}


def _reason(entry: PolicyEntry, jobs: Sequence[TrainingJob], cluster: ClusterSpec) -> str:
    if entry.slow and len(jobs) > MOST_IN_ROUNDS:
        return f"it looks at every job in every round, and there are {len(jobs)}; name it to run it all the same"
    return entry.refuses(jobs, cluster)


def compare_policies(
    jobs: Sequence[TrainingJob],
    cluster: ClusterSpec,
    options: ReplayOptions = ReplayOptions(),
    *,
    why: Sequence[str] = (),
    history: JobHistory = NO_HISTORY,
) -> ClusterComparison:
    """Replays a history under each policy.

    Args:
        jobs: in order of submission.
        cluster: with the devices.
        options: which policies, and how wrong they are.
        why: names of jobs whose waits are explained; by default the longest.
        history: whose jobs they are; it says what was left out, and how far their rates are off.

    Raises:
        UnknownPolicy, PolicyRefuses: as `choose_policies` has it.
        JobFitsNowhere, ClusterStuck: as the loop has it.
    """
    entries, refused = choose_policies(options.policies, jobs, cluster)
    doubt = Doubt(options.error, history.rate_error if options.rate_error is None else options.rate_error)
    runs = []
    for entry in entries:
        _LOG.info("replaying under %s", entry.name)
        runs.append(_Run.of(entry, jobs, cluster, doubt, options.fitted, options.seeds, why))
    span = max((state.finish_s for run in runs for state in run.found.states), default=0.0)
    results = tuple(_result(run, cluster, span, why) for run in runs)
    return ClusterComparison(
        len(jobs),
        dict(cluster.capacity),
        restart_s=cluster.restart_s,
        round_s=cluster.round_s,
        error=doubt.lengths,
        rate_error=doubt.rates,
        seeds=options.seeds,
        left_out=history.left_out,
        not_completed=history.not_completed,
        notes=tuple(history.notes()),
        refused=refused,
        span_s=span,
        results=results,
    )


@dataclass(frozen=True)
class _Run:
    """A policy's replay, and what else was asked of it."""

    entry: PolicyEntry
    found: Replayed
    first: PolicyOutcome
    interval: tuple[float, float] | None
    predicted: Mapping[int, Expected]

    @staticmethod
    def of(
        entry: PolicyEntry,
        jobs: Sequence[TrainingJob],
        cluster: ClusterSpec,
        doubt: Doubt,
        fitted: bool,
        seeds: int,
        why: Sequence[str],
    ) -> _Run:
        """Replays; again for each further seed, where errors make a difference, and for each job whose wait is asked about."""

        def loop(seed: int = 0, keep: bool = True) -> EventLoop:
            beliefs = entry.estimator(doubt.lengths, seed, doubt.rates)
            return EventLoop(jobs, cluster, entry.make(jobs, cluster), beliefs, keep, fitted=fitted)

        replay = loop().run()
        first = outcome(entry.name, replay, cluster)
        interval = None
        if seeds > 1 and (doubt.rates or (doubt.lengths and entry.knows == "lengths")):
            again = [outcome(entry.name, loop(seed, False).run(), cluster).mean_jct_s for seed in range(1, seeds)]
            interval = min(first.mean_jct_s, *again), max(first.mean_jct_s, *again)
        asked = [state.number for state in replay.states if state.job.name in set(why)]
        predicted = {number: predicted_at_submission(loop(), entry, number, doubt) for number in asked}
        return _Run(entry, replay, first, interval, predicted)


def _result(run: _Run, cluster: ClusterSpec, span: float, why: Sequence[str]) -> PolicyResult:
    replay = run.found
    jct = np.quantile([state.finish_s - state.job.submit_s for state in replay.states], _QUANTILES)
    rho = np.quantile(fairness(replay.states, cluster), _QUANTILES)
    if why:
        numbers = [state.number for state in replay.states if state.job.name in set(why)]
    else:
        numbers = longest_waits(replay, EXPLAINED)
    waits = explain_waits(replay, cluster, numbers)
    waits = [replace(wait, expected=run.predicted.get(number)) for wait, number in zip(waits, numbers, strict=True)]
    used = {
        kind: _course([(s.start_s, s.end_s, s.devices * s.part) for s in replay.stays if s.kind == kind], span)
        for kind in cluster.kinds
    }
    there = [(state.job.submit_s, state.finish_s, 1) for state in replay.states]
    holding = _course([(stay.start_s, stay.end_s, 1) for stay in replay.stays], span)
    waiting = tuple(max(all_ - held, 0.0) for all_, held in zip(_course(there, span), holding, strict=True))
    return PolicyResult(
        run.entry.title,
        run.first,
        mean_jct_interval_s=run.interval,
        used=used,
        waiting=waiting,
        jct_s=tuple(jct.tolist()),
        rho=tuple(rho.tolist()),
        slept=slept(replay, cluster),
        waits=tuple(waits),
    )


def _course(intervals: Sequence[tuple[float, float, float]], span: float) -> tuple[float, ...]:
    """The mean of a sum of intervals over each of `POINTS` equal parts of the axis."""
    if not intervals or not span:
        return (0.0,) * POINTS
    at = np.linspace(0.0, span, POINTS + 1)
    starts, ends, counts = (np.array(column, dtype=float) for column in zip(*intervals, strict=True))
    total = _integral(starts, counts, at) - _integral(ends, counts, at)
    return tuple((np.diff(total) / (span / POINTS)).tolist())


def _integral(
    times: np.ndarray[tuple[int], np.dtype[np.float64]],
    counts: np.ndarray[tuple[int], np.dtype[np.float64]],
    at: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of a step function that rises by `counts` at `times`, up to each of `at`."""
    order = np.argsort(times, kind="stable")
    sorted_times = times[order]
    count = np.concatenate([[0.0], np.cumsum(counts[order])])
    moment = np.concatenate([[0.0], np.cumsum(counts[order] * sorted_times)])
    index = np.searchsorted(sorted_times, at, side="right")
    integrals: np.ndarray[tuple[int], np.dtype[np.float64]] = count[index] * at - moment[index]
    return integrals
