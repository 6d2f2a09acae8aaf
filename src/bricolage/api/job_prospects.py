"""When the jobs of a cluster start and end, and why not sooner (`bricolage cluster outlook`); how long one will take, by what jobs
like it took (`estimate --history`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.asked_jobs import number_asked_jobs
from bricolage.cluster.estimates import Rolling
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.read import HistoryFiles, read_history_files, read_past_runs
from bricolage.cluster.machines import read_cluster
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.prospects import Doubt, Prospect, prospects, scene_of
from bricolage.cluster.run_times import RunTime, run_time
from bricolage.errors import PolicyRefuses

__all__ = ["HistoryFiles", "OutlookOptions", "Prospect", "RunTime", "estimate_run_time", "forecast_jobs"]


@dataclass(frozen=True)
class OutlookOptions:
    """Under which policy, of which jobs, and how far off what is believed may be."""

    policy: str = "easy"
    jobs: tuple[str, ...] = ()
    """Names; without any all jobs that are there."""
    error: float = 0.5
    """Standard deviation of the logarithm of lengths."""
    rate_error: float = 0.1
    """The same of rates on kinds of device that a job has not run on yet."""
    draws: int = 20
    """Futures that intervals come from."""


def forecast_jobs(
    files: HistoryFiles,
    cluster: Path,
    at_s: float,
    options: OutlookOptions = OutlookOptions(),
    *,
    note: Callable[[str], None] = lambda _: None,
) -> tuple[Prospect, ...]:
    """Replays a history under a policy up to a time, and says of each job that is there when it will start and end, what it waits
    for, and what would change that. As many jobs as were submitted before are expected to come in as long a time again.

    Args:
        files: the history, and what is known of its jobs.
        cluster: its file, as TOML or JSON.
        at_s: the time, in seconds after the first submission.
        options: the policy, the jobs, and how wrong what is believed may be.
        note: called with what was left out of the history, and what a reader has to know of it.

    Returns:
        By submission; times are in seconds after the first submission of the history.

    Raises:
        MissingFile, BadCluster, UnknownHistory, BadHistory, RatesNeeded, BadProfiles: a file cannot be used.
        UnknownPolicy, PolicyRefuses: the policy does not exist, or cannot serve these jobs.
        BadOption: there is no such format, or a job of `options.jobs` is not there at that time.
        JobFitsNowhere, ClusterStuck: a job can never run.
    """
    spec, entry = read_cluster(cluster), find_policy(options.policy)
    history = read_history_files(files, spec)
    jobs = history.jobs
    for sentence in (*(f"{count} {reason}: left out" for reason, count in history.left_out.items()), *history.notes()):
        note(sentence)
    if reason := entry.refuses(jobs, spec):
        raise PolicyRefuses(name=options.policy, reason=reason)
    scene = scene_of(EventLoop(jobs, spec, entry.make(jobs, spec), entry.estimator(0.0, 0)), entry, at_s)
    asked = number_asked_jobs(options.jobs, history, scene)
    doubt = Doubt(options.error, options.rate_error)
    past = [job for job in jobs if job.submit_s <= at_s]
    return tuple(prospects(scene, doubt, draws=options.draws, past=past, asked=asked))


def estimate_run_time(
    history: Path,
    cluster: Path,
    user: str = "",
    name: str = "",
    devices: int = 1,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> RunTime:
    """The run time of a job on its fastest kind of device, from the jobs of a history that ended.

    Args:
        history: a table, `sacct`'s output, or a published trace.
        cluster: the cluster's file, as TOML or JSON; the jobs may have been larger than it is.
        user: whose job it is.
        name: of the job.
        devices: of its gang.
        note: called with each reason for which runs are not learnt from.

    Returns:
        Seconds from its start, with the interval of eight of ten jobs like it.

    Raises:
        MissingFile, BadCluster, UnknownHistory, BadHistory, RatesNeeded: a file cannot be used.
    """
    past = read_past_runs(history, read_cluster(cluster))
    rolling = Rolling()
    rolling.learn_runs((*past.jobs, *past.unfinished))
    for reason, count in past.no_lengths().items():
        note(f"{count} {reason}: no run time is learnt from them")
    return run_time(rolling, user, name, devices, 0.0, math.inf)
