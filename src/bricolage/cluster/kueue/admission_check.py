"""Which workloads an admission check lets in now, and what it tells the others.

Kueue asks a check of a workload once it has reserved quota for it. One whose turn it is becomes Ready. One whose turn it is not
stays Pending, with the reason and the time at which it is expected to start. Where another one whose turn it is has no quota, it is
told to Retry instead, which gives its quota back. Who runs stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.kueue.objects import KueueState, KueueWorkload
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import PolicyEntry
from bricolage.cluster.queued import JobOutlook, QueuedJob, outlook

_LONGEST = 1024
"""Letters of a message."""


@dataclass(frozen=True)
class CheckVerdict:
    """What a workload's check becomes."""

    workload: KueueWorkload
    check: str
    """Its name."""
    state: str
    message: str

    @property
    def news(self) -> bool:
        """Whether this is not what it says already. A prediction alone is no news where it changes by seconds."""
        before = self.workload.check
        return before is None or (before.state, before.message) != (self.state, self.message)


def learn_durations(state: KueueState) -> Rolling:
    """What workloads that have ended took."""
    rolling = Rolling()
    for finished in sorted(state.workloads, key=lambda workload: workload.finished_s):
        took = finished.finished_s - finished.admitted_s
        if not finished.failed and took > 0:
            rolling.learn(finished.namespace, finished.program, finished.devices, took)
    return rolling


def verdicts(
    state: KueueState, entry: PolicyEntry, rolling: Rolling, draws: int = 10, seed: int = 0
) -> list[CheckVerdict]:
    """Of each workload that waits for a check of ours, ClusterQueue by ClusterQueue.

    Raises:
        PolicyRefuses: the policy cannot serve these workloads.
    """
    checks: list[CheckVerdict] = []
    for queue, quota in state.quotas.items():
        checks += _of_queue(state, queue, dict(quota), entry, rolling, draws, seed)
    return checks


def _of_queue(
    state: KueueState, queue: str, quota: dict[str, int], entry: PolicyEntry, rolling: Rolling, draws: int, seed: int
) -> Iterator[CheckVerdict]:
    taken, jobs = list[KueueWorkload](), list[QueuedJob]()
    free = Counter(quota)
    asked = [
        workload
        for workload in state.workloads
        if workload.queue == queue and workload.active and math.isnan(workload.finished_s)
    ]
    for candidate in asked:
        if candidate.running or _let_in(candidate):
            kinds: tuple[str, ...] = (candidate.flavor,)
            since: float | None = min((candidate.admitted_s if candidate.running else state.now) - state.now, 0.0)
            if free[candidate.flavor] < candidate.devices:  # it borrows from another queue, or the quota shrank
                continue
            free[candidate.flavor] -= candidate.devices
        else:
            kinds, since = tuple(name for name, count in quota.items() if count >= candidate.devices), None
            if candidate.flavor:  # its quota is reserved on one flavor, and stays there
                kinds = (candidate.flavor,) if candidate.flavor in kinds else ()
            if not kinds:
                if candidate.check is not None:
                    yield _verdict(
                        candidate,
                        "Pending",
                        f"it needs {candidate.devices} devices, more than any flavor of {queue} has",
                    )
                continue
        taken.append(candidate)
        jobs.append(_build_queued_job(candidate, kinds, state.now, since))
    if not jobs:
        return
    cluster = ClusterSpec(tuple(NodeGroup(flavor, 1, count) for flavor, count in quota.items()))
    outlooks = outlook(jobs, cluster, entry, rolling, draws, seed)
    wanting = _without_quota(taken, outlooks)
    for candidate, job, seen in zip(taken, jobs, outlooks, strict=True):
        if candidate.check is None or job.since_s is not None or not candidate.reserved:
            continue
        if seen.starts_now:
            yield _verdict(candidate, "Ready", f"its turn under {entry.name}")
        elif wanting:
            yield _verdict(candidate, "Retry", f"{wanting[0].key} comes first under {entry.name}; {_expects(seen)}")
        else:
            yield _verdict(
                candidate, "Pending", f"it waits for {seen.prospect.reason}; {_expects(seen)}{_sooner(seen)}"
            )


def _build_queued_job(one: KueueWorkload, kinds: tuple[str, ...], now: float, since_s: float | None) -> QueuedJob:
    created = one.created_s - now
    return QueuedJob(
        one.key,
        one.namespace,
        program=one.program,
        devices=one.devices,
        kinds=kinds,
        submit_s=created,
        limit_s=one.limit_s,
        own_limit_s=one.limit_s,
        since_s=since_s,
    )


def _let_in(one: KueueWorkload) -> bool:
    """Whether our check has passed, so that it counts as running: other checks may still be pending."""
    return one.reserved and one.check is not None and one.check.state == "Ready"


def _without_quota(taken: list[KueueWorkload], found: list[JobOutlook]) -> list[KueueWorkload]:
    """Whose turn it is, and who has reserved nothing."""
    pairs = sorted(zip(found, taken, strict=True), key=lambda pair: pair[0].place)
    return [workload for seen, workload in pairs if seen.starts_now and not workload.reserved]


def _expects(seen: JobOutlook) -> str:
    low, high = seen.expected.start_interval_s
    return f"it is expected to start in {_span(seen.expected.start_s)} ({_span(low)} to {_span(high)})"


def _sooner(seen: JobOutlook) -> str:
    return f"; it would start now with {seen.prospect.change}" if seen.prospect.change else ""


def _span(seconds: float) -> str:
    """In steps that grow with it, so that a message changes seldom."""
    minutes = max(math.ceil(seconds / 60.0), 1)
    if minutes < 10:
        return f"{minutes} min"
    if minutes < 120:
        return f"{5 * math.ceil(minutes / 5)} min"
    return f"{math.ceil(minutes / 60)} h"


def _verdict(one: KueueWorkload, state: str, message: str) -> CheckVerdict:
    assert one.check is not None
    return CheckVerdict(one, one.check.name, state, message[:_LONGEST])
