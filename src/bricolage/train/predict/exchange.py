"""Gradients on their way between workers: which travel together, how long that takes, and how it slows what is computed meanwhile.

Workers average gradients in buckets, by all-reduce, while the backward phase goes on (Li et al., "PyTorch Distributed", VLDB
2020). A bucket leaves when the last of its gradients is complete, after those before it; while both are busy, computing and
exchanging slow each other by factors that are measured (as the γ of Proteus, TPDS 2024).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from bricolage.device.collective import Ring
from bricolage.work.simulator import Task, simulate
from bricolage.work.training_step import Gradient

_MIB = 1 << 20
_COMPUTING, _EXCHANGING = "computing", "exchanging"
FIRST_BUCKET_MB = 1.0
"""PyTorch's first bucket, so that the exchange begins early."""


@dataclass(frozen=True)
class GradientBucket:
    """Gradients that travel together: their bytes, and the operator after which all are complete."""

    bytes: int
    ready: int


def gradient_buckets(gradients: Sequence[Gradient], megabytes: float) -> list[GradientBucket]:
    """PyTorch's buckets, as it makes them after the first step: in the order in which gradients are complete, each closed when it
    has `megabytes` MiB or more, the first with 1 MiB."""
    buckets: list[GradientBucket] = []
    size, ready = 0, -1
    limit = min(FIRST_BUCKET_MB, megabytes) * _MIB
    for gradient in gradients:
        size, ready = size + gradient.bytes, max(ready, gradient.ready)
        if size >= limit:
            buckets.append(GradientBucket(size, ready))
            size, limit = 0, megabytes * _MIB
    if size:
        buckets.append(GradientBucket(size, ready))
    return buckets


@dataclass(frozen=True)
class GradientTransfer:
    """When a bucket was on its way, milliseconds from the begin of the step."""

    bytes: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class _BothSlowed:
    """What computing and exchanging do to each other while both run."""

    ring: Ring

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:
        if len(running) < 2:
            return [1.0] * len(running)
        slow: Mapping[Hashable, float] = {
            _COMPUTING: 1.0 / self.ring.slows_computing,
            _EXCHANGING: 1.0 / self.ring.slowed,
        }
        return [slow[tasks[number].resources[0]] for number in running]


def simulate_overlap(
    operators: Sequence[float], sending: Sequence[GradientBucket], ring: Ring | None
) -> tuple[list[float], list[GradientTransfer]]:
    """Two queues, computing and exchanging: operators one after another, buckets when they are ready, one after another.

    Args:
        operators: milliseconds of each, alone.
        sending: buckets in the order in which they leave.
        ring: how long that takes, and how both slow each other; None where nothing is sent.

    Returns:
        When each operator ends, and when each bucket is on its way. An operator of the update must wait for the last bucket; that
        is for the caller to add.
    """
    tasks = [Task(operator, (_COMPUTING,)) for operator in operators]
    if ring is not None:
        tasks += [
            Task(ring.all_reduce_ms(bucket.bytes), (_EXCHANGING,), (bucket.ready,) if bucket.ready >= 0 else ())
            for bucket in sending
        ]
    times = simulate(tasks, contention=None if ring is None else _BothSlowed(ring))
    count = len(operators)
    moved = zip(sending, times.starts[count:], times.ends[count:], strict=True)
    return list(times.ends[:count]), [GradientTransfer(bucket.bytes, start, end) for bucket, start, end in moved]
