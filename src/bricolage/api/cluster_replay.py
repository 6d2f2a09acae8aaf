"""What scheduling policies would have made of a cluster's jobs: `bricolage cluster replay`, and `whatif` on a changed cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.asked_jobs import rename_waits, resolve_asked_jobs
from bricolage.cluster.history.read import HistoryFiles, read_history_files
from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.machines import read_cluster
from bricolage.cluster.policy_catalogue import POLICIES
from bricolage.cluster.policy_comparison import ClusterComparison, ReplayOptions, compare_policies
from bricolage.cluster.what_if import ClusterChanges, change_cluster, change_history
from bricolage.errors import BadOption

__all__ = [
    "ChangedComparison",
    "ClusterChanges",
    "ClusterComparison",
    "HistoryFiles",
    "KnownPolicy",
    "ReplayOptions",
    "list_policies",
    "replay_changed_history",
    "replay_history",
]


@dataclass(frozen=True)
class ChangedComparison:
    """What policies make of the same jobs on a cluster as it is, and as it would be."""

    before: ClusterComparison
    after: ClusterComparison


@dataclass(frozen=True)
class KnownPolicy:
    """A policy of the catalogue."""

    name: str
    title: str
    knows: str
    """What it knows of a job's length: "lengths", "history" (of jobs that ended) or "nothing"."""
    source: str
    """What its rule was written from: "definition", "code", "description" or "abstract"."""


def list_policies() -> tuple[KnownPolicy, ...]:
    """All policies, in the order of the catalogue."""
    return tuple(KnownPolicy(entry.name, entry.title, entry.knows, entry.source) for entry in POLICIES)


def replay_history(
    files: HistoryFiles,
    cluster: Path,
    options: ReplayOptions | None = None,
    *,
    why: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> ClusterComparison:
    """Replays a history under each policy.

    Args:
        files: the history, and what is known of its jobs.
        cluster: its file, as TOML or JSON.
        options: which policies, and how wrong what they believe is; by default all, and exact but for predicted rates.
        why: names of jobs whose waits are explained, each with the prediction at its submission; without any the longest
            waits are, without predictions.
        note: called with what a person should know before the replay.

    Returns:
        Figures, curves and waits under each policy. Times are in seconds from the first submission.

    Raises:
        MissingFile, BadCluster, UnknownHistory, BadHistory, RatesNeeded, BadProfiles: a file cannot be used.
        BadOption: there is no such format, or no job of a name in `why`.
        UnknownPolicy, PolicyRefuses: a policy does not exist, or cannot serve these jobs.
        JobFitsNowhere, ClusterStuck: a job can never run.
    """
    options = options or ReplayOptions()
    spec = read_cluster(cluster)
    history = read_history_files(files, spec)
    asked = resolve_asked_jobs(why, history, note)
    _note_predictions(files, history, options, note)
    names = list(dict.fromkeys(asked.values()))
    return rename_waits(compare_policies(history.jobs, spec, options, why=names, history=history), asked)


def replay_changed_history(
    files: HistoryFiles,
    cluster: Path,
    changes: ClusterChanges,
    options: ReplayOptions | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> ChangedComparison:
    """Replays a history on its cluster and on a changed one, under the same policies.

    Args:
        files: the history, and what is known of its jobs.
        cluster: its file, as TOML or JSON.
        changes: of devices, quotas, weights, restarts and rounds.
        options: which policies, and how wrong what they believe is; by default all, and exact but for predicted rates.
        note: called with what a person should know before the replay.

    Raises:
        BadOption: nothing is changed, a change cannot be made, or there is no such format.
        MissingFile, BadCluster, UnknownHistory, RatesNeeded, BadProfiles: a file cannot be used.
        BadHistory: so; or a line can be used before the change, and not after it.
        UnknownPolicy, PolicyRefuses: a policy does not exist, or cannot serve these jobs.
        JobFitsNowhere, ClusterStuck: a job can never run.
    """
    if changes == ClusterChanges():
        advice = "Say what changes: --add KIND=N, --restart, --round, --quota QUEUE=N, --weight WHO=W"
        raise BadOption(option="--add", value="", advice=advice)
    options = options or ReplayOptions()
    spec = read_cluster(cluster)
    history = read_history_files(files, spec)
    changed = change_cluster(spec, history.jobs, changes)
    history_after = change_history(history, files, spec, changed, changes)
    _note_predictions(files, history, options, note)
    return ChangedComparison(
        before=compare_policies(history.jobs, spec, options, history=history),
        after=compare_policies(history_after.jobs, changed, options, history=history_after),
    )


def _note_predictions(
    files: HistoryFiles, history: JobHistory, options: ReplayOptions, note: Callable[[str], None]
) -> None:
    """Says where the intervals of the rates' file decide how wrong policies are."""
    if files.rates is not None and options.rate_error is None and history.rate_error:
        note(
            f"the rates of {files.rates.name} are predictions: policies believe them off by exp({history.rate_error:.2g}) on "
            "kinds not run on"
        )
