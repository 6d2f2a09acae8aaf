"""What a policy would do with a Slurm cluster as it stands: limits, order, when jobs start and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import PolicyEntry
from bricolage.cluster.queued import JobOutlook, QueuedJob, outlook
from bricolage.cluster.run_times import RunTime, advised_limit_s
from bricolage.cluster.slurm.queue import ENDED, SlurmJob, SlurmNode, SlurmQueue
from bricolage.cluster.why import Interval
from bricolage.errors import SlurmEmpty

DRAWS = 20
"""Forecasts with lengths drawn from history, for the intervals."""
_LEAST_S = 0.5
"""Of a run: the controller counts whole seconds."""


@dataclass(frozen=True)
class AdviceOptions:
    """What is advised, and how carefully."""

    risk: float = 0.05
    """Share of jobs that may reach a lowered limit."""
    limits: bool = True
    """Whether limits are lowered; backfilling trusts them."""
    draws: int = DRAWS
    seed: int = 0


@dataclass(frozen=True)
class JobAdvice:
    """Of one job. Times are seconds from now."""

    job: str
    """Its number."""
    name: str
    user: str
    devices: int
    running: bool
    place: int
    """Among those that wait, from 1, in the order in which the policy starts them; 0 of running ones."""
    start_s: float
    start_interval_s: Interval
    end_s: float
    end_interval_s: Interval
    run_s: float
    """That it is believed to take in all."""
    run_interval_s: Interval
    because: str
    """What the prediction goes by."""
    waits_for: str
    """What it waits for now, in words; empty where for nothing."""
    change: str
    """What would let it start now; empty where it does, and where too many come first."""
    limit_s: float
    """That it has now; infinite: none."""
    advised_limit_s: float
    starts_now: bool


@dataclass(frozen=True)
class SlurmAdvice:
    """Of all jobs with GPUs that run or wait."""

    policy: str
    devices: Mapping[str, int]
    known_runs: int
    """Past runs that predictions go by."""
    jobs: tuple[JobAdvice, ...]
    """Running ones, then those that wait, in the policy's order."""
    left_out: Mapping[str, int]
    past_left_out: Mapping[str, int] = field(default_factory=dict)
    """Of the history: lines and runs that say nothing of how long jobs take, by the reason."""


def learn_history(queue: SlurmQueue, history: JobHistory) -> Rolling:
    """What past jobs took: those of a history, then those that the controller remembers. Runs that did not complete, and those that
    are not over, took at least so long."""
    rolling = Rolling()
    rolling.learn_runs((*history.jobs, *history.unfinished))
    seen = {job.name for job in history.jobs} | set(history.components)
    for slurm_job in queue.jobs:
        ended = slurm_job.state in ENDED
        took = (slurm_job.end_s if ended else queue.now) - slurm_job.start_s
        if slurm_job.accounted in seen or not took >= 0 or slurm_job.state == "PENDING":
            continue
        if slurm_job.state == "COMPLETED" and not slurm_job.component:
            rolling.learn(slurm_job.user, slurm_job.name, slurm_job.devices, max(took, _LEAST_S))
        else:
            rolling.learn_cut(slurm_job.user, slurm_job.name, max(took, _LEAST_S))
    return rolling


def advise(
    queue: SlurmQueue, entry: PolicyEntry, rolling: Rolling, options: AdviceOptions = AdviceOptions()
) -> SlurmAdvice:
    """What the policy would do.

    Args:
        queue: the cluster as it stands.
        entry: the policy. It orders who waits; it stops no job.
        rolling: what past jobs took.
        options: risk, and draws of the intervals.

    Raises:
        SlurmEmpty: no node with GPUs can run jobs.
        PolicyRefuses: the policy cannot serve these jobs.
    """
    left_out = Counter(queue.left_out)
    kinds = _kinds(queue.nodes)
    if not kinds:
        reasons = ", ".join(f"{count} {reason}" for reason, count in queue.left_out.items())
        raise SlurmEmpty(reason=reasons or "it names no nodes")
    cluster = _cluster(queue.nodes, kinds)
    taken = _list_placeable_jobs(queue, kinds, cluster, left_out)
    limits = [_limit(job, queue.now, rolling, options) for job, _ in taken]
    jobs = [_build_queued_job(job, on, limit, queue.now) for (job, on), limit in zip(taken, limits, strict=True)]
    outlooks = outlook(jobs, cluster, entry, rolling, options.draws, options.seed)
    order = sorted(range(len(outlooks)), key=lambda number: outlooks[number].place)
    advised = tuple(_advice(taken[number][0], outlooks[number], limits[number]) for number in order)
    past_runs = sum(len(runs) for names in rolling.known.values() for runs in names.values())
    return SlurmAdvice(entry.name, dict(cluster.capacity), past_runs, advised, dict(left_out))


def _advice(job: SlurmJob, found: JobOutlook, limit_s: float) -> JobAdvice:
    time, expected = found.time, found.expected
    return JobAdvice(
        job=job.number,
        name=job.name,
        user=job.user,
        devices=job.devices,
        running=found.place == 0,
        place=found.place,
        start_s=expected.start_s,
        start_interval_s=expected.start_interval_s,
        end_s=expected.end_s,
        end_interval_s=expected.end_interval_s,
        run_s=time.seconds,
        run_interval_s=time.interval_s,
        because=_because(job, time),
        waits_for="" if found.starts_now else found.prospect.reason,
        change="" if found.starts_now else found.prospect.change,
        limit_s=job.limit_s,
        advised_limit_s=limit_s,
        starts_now=found.starts_now,
    )


def _because(job: SlurmJob, time: RunTime) -> str:
    runs = "1 run" if time.all_runs == 1 else f"{time.all_runs} runs"
    basis = {
        "name": f"{runs} of {job.user}'s {job.name}",
        "similar name": f"{runs} of {job.user}'s jobs of similar names",
        "user": f"{runs} of {job.user}'s other jobs",
        "nothing": f"{runs} of all users" if time.all_runs else "no history: an hour, or its limit",
    }[time.likeness]
    basis += "" if time.runs or not time.all_runs else ", all shorter than this one has run"
    cut = "1 run" if time.cut_runs == 1 else f"{time.cut_runs} runs"
    return f"{basis}; {cut} of {job.user}'s {job.name} did not complete" if time.cut_runs else basis


def _measure_elapsed(job: SlurmJob, now: float) -> float:
    """0 where it waits, or where a clock was set back."""
    return max(now - job.start_s, 0.0) if job.state == "RUNNING" else 0.0


def _limit(job: SlurmJob, now: float, rolling: Rolling, options: AdviceOptions) -> float:
    if not options.limits:
        return job.limit_s
    return advised_limit_s(
        rolling, job.user, job.name, job.devices, _measure_elapsed(job, now), job.own_limit_s, options.risk
    )


def _build_queued_job(job: SlurmJob, kinds: tuple[str, ...], limit_s: float, now: float) -> QueuedJob:
    since = min(job.start_s - now, 0.0) if job.state == "RUNNING" else None
    return QueuedJob(
        job.number,
        job.user,
        program=job.name,
        devices=job.devices,
        kinds=kinds,
        submit_s=job.submit_s - now,
        limit_s=limit_s,
        own_limit_s=job.own_limit_s,
        since_s=since,
    )


def _kinds(nodes: Sequence[SlurmNode]) -> dict[tuple[str, tuple[str, ...]], str]:
    """A name for the nodes of each type of GPU in each choice of partitions: jobs of one partition stay on its nodes."""
    places = sorted({(node.kind, node.partitions) for node in nodes})
    types = Counter(kind for kind, _ in places)
    return {
        (kind, partitions): (kind or "gpu") if types[kind] == 1 else f"{kind or 'gpu'} {'+'.join(partitions)}"[:64]
        for kind, partitions in places
    }


def _cluster(nodes: Sequence[SlurmNode], kinds: Mapping[tuple[str, tuple[str, ...]], str]) -> ClusterSpec:
    sizes = Counter((kinds[node.kind, node.partitions], node.devices) for node in nodes)
    return ClusterSpec(tuple(NodeGroup(kind, count, devices) for (kind, devices), count in sizes.items()))


def _list_placeable_jobs(
    queue: SlurmQueue,
    kinds: Mapping[tuple[str, tuple[str, ...]], str],
    cluster: ClusterSpec,
    left_out: Counter[str],
) -> list[tuple[SlurmJob, tuple[str, ...]]]:
    """Jobs that a forecast can place, each with its kinds; tasks of an array that wait one by one."""
    on_node = {node.name: kinds[node.kind, node.partitions] for node in queue.nodes}
    free = dict(cluster.capacity)
    placeable: list[tuple[SlurmJob, tuple[str, ...]]] = []
    for job in queue.jobs:
        if job.state == "RUNNING":
            kind = next((on_node[node] for node in job.nodes if node in on_node), "")
            if not kind or free[kind] < job.devices:
                left_out["jobs run on nodes that are away"] += 1
                continue
            free[kind] -= job.devices
            placeable.append((job, (kind,)))
        elif job.waits and job.component:
            left_out["jobs are components of heterogeneous ones"] += 1
        elif job.waits:
            fitting = tuple(
                name
                for (kind, partitions), name in kinds.items()
                if job.kind in ("", kind)
                and set(partitions) & set(job.partitions)
                and cluster.capacity[name] >= job.devices
            )
            if fitting:
                placeable += [(job, fitting)] * job.tasks
            else:
                left_out["jobs fit on no nodes of their partition"] += 1
        elif job.state == "PENDING":
            left_out["jobs are held, or wait for something else than GPUs"] += 1
    return placeable
