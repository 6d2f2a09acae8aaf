"""What `bricolage cluster whatif` changes of a cluster and of its jobs, from words KEY=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bricolage import errors
from bricolage.cluster.history.read import HistoryFiles, read_history_files
from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec, QueueQuota


@dataclass(frozen=True)
class ClusterChanges:
    """What is to be other than it is. Words are those of the command line, and hold one after another."""

    add: tuple[str, ...] = ()
    """KIND=N devices more of a kind; fewer where N is negative."""
    quota: tuple[str, ...] = ()
    """QUEUE=N devices that jobs of a queue may have at a time; QUEUE=none: any."""
    weight: tuple[str, ...] = ()
    """WHO=W, the weight of the jobs of a queue, or of a user."""
    restart_s: float | None = None
    """What a restart costs, in seconds; None: as it is."""
    round_s: float | None = None
    """Length of a round, in seconds; None: as it is."""


def change_cluster(spec: ClusterSpec, jobs: Sequence[TrainingJob], changes: ClusterChanges) -> ClusterSpec:
    """The cluster with other devices, quotas, restarts and rounds.

    Raises:
        BadOption: a word is none.
    """
    for word in changes.add:
        spec = change_device_count(spec, word)
    for word in changes.quota:
        spec = with_quota(spec, word, jobs)
    spec = replace(spec, restart_s=spec.restart_s if changes.restart_s is None else changes.restart_s)
    return replace(spec, round_s=spec.round_s if changes.round_s is None else changes.round_s)


def change_history(
    before: JobHistory, files: HistoryFiles, spec: ClusterSpec, changed: ClusterSpec, changes: ClusterChanges
) -> JobHistory:
    """The same jobs on a changed cluster, with other weights.

    Args:
        before: the jobs as they are.
        files: that they were read from. Jobs of which only run times are known run on new kinds of device, too.
        spec: the cluster as it is.
        changed: the cluster as `change_cluster` makes it.
        changes: what else is to be other.

    Raises:
        BadHistory: a line that can be used before the change cannot be used after it: a change is judged on the same jobs.
        BadOption: a word is none.
    """
    after = before if changed.kinds == spec.kinds else read_history_files(files, changed)
    if len(after.jobs) < len(before.jobs) and after.odd.count > before.odd.count and after.odd.first is not None:
        raise after.odd.first
    for word in changes.weight:
        after = replace(after, jobs=change_weight(after.jobs, word))
    return after


def change_device_count(spec: ClusterSpec, word: str) -> ClusterSpec:
    """With KIND=N devices more, or fewer.

    Raises:
        BadOption: the word is none, or there are fewer.
    """
    kind, _, count = word.rpartition("=")
    advice = "Write KIND=N, as in a100=8"
    try:
        devices = int(count)
        if not kind or not devices:
            raise ValueError(advice)
        return spec.with_devices(kind, devices)
    except ValueError as error:
        message = str(error)
        raise errors.BadOption(option="--add", value=word, advice=message if "devices" in message else advice) from None


def with_quota(spec: ClusterSpec, word: str, jobs: Sequence[TrainingJob]) -> ClusterSpec:
    """With QUEUE=N devices at a time for the jobs of a queue, or without a quota (QUEUE=none).

    Raises:
        BadOption: the word is none, or no job has the queue.
    """
    queue, _, count = word.rpartition("=")
    if not queue or queue not in {job.queue for job in jobs}:
        raise errors.BadOption(
            option="--quota", value=word, advice=_format_choices("queue", {job.queue for job in jobs})
        )
    others = tuple(quota for quota in spec.quota if quota.queue != queue)
    if count == "none":
        return replace(spec, quota=others)
    if not count.isdecimal() or not 1 <= int(count) <= 1 << 30:
        raise errors.BadOption(option="--quota", value=word, advice="Write QUEUE=N, as in research=16, or QUEUE=none")
    return replace(spec, quota=(*others, QueueQuota(queue, int(count))))


def change_weight(jobs: Sequence[TrainingJob], word: str) -> tuple[TrainingJob, ...]:
    """With WHO=W as the weight of the jobs of a queue, else of a user: their part under policies that share by weight.

    Raises:
        BadOption: the word is none, or no queue or user has the name.
    """
    who, _, weight = word.rpartition("=")
    there = {job.queue for job in jobs} | {job.user for job in jobs}
    if not who or who not in there:
        raise errors.BadOption(option="--weight", value=word, advice=_format_choices("queue or user", there))
    try:
        value = float(weight)
    except ValueError:
        value = 0.0
    if not 1e-6 <= value <= 1e6:
        raise errors.BadOption(option="--weight", value=word, advice="Write QUEUE=W or USER=W, as in research=2.5")
    by_queue = any(job.queue == who for job in jobs)
    return tuple(replace(job, weight=value) if (job.queue if by_queue else job.user) == who else job for job in jobs)


def _format_choices(what: str, there: set[str]) -> str:
    names = sorted(name for name in there if name)[:10]
    return f"Name a {what} of the history: {', '.join(names)}" if names else f"No job of the history has a {what}"
