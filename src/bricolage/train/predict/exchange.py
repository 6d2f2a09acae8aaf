"""Gradients on their way between workers: which travel together, how long that takes, and how it slows what is computed meanwhile.

Workers average gradients in buckets, by all-reduce, while the backward phase goes on (Li et al., "PyTorch Distributed", VLDB
2020). A bucket leaves when the last of its gradients is complete, after those before it; while both are busy, computing and
exchanging slow each other by factors that are measured (as the γ of Proteus, TPDS 2024).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.work.engine import Task, simulate
from bricolage.work.step import Gradient

_MIB = 1 << 20
_COMPUTING, _EXCHANGING = "computing", "exchanging"
FIRST_BUCKET_MB = 1.0
"""PyTorch's first bucket, so that the exchange begins early."""


@dataclass(frozen=True)
class Link:
    """An all-reduce among `workers`: `latency_ms` and `ms_per_byte` by least squares over sizes; and what goes on beside it."""

    workers: int
    latency_ms: float
    ms_per_byte: float
    copy_ms_per_byte: float = 0.0
    """To bring gradients into a bucket, and back."""
    slows_computing: float = 1.0
    """A factor of the time of what is computed meanwhile."""
    slowed: float = 1.0
    """A factor of its own time, then."""
    send_latency_ms: float = 0.0
    """From one worker to another."""
    send_ms_per_byte: float = 0.0

    def ms(self, size: float) -> float:
        """Milliseconds of an all-reduce of so many bytes."""
        return self.latency_ms + self.ms_per_byte * size

    def send_ms(self, size: float) -> float:
        """Milliseconds from one worker to another."""
        return self.send_latency_ms + self.send_ms_per_byte * size

    def among(self, workers: int, gbytes: float | None) -> Link:
        """The same among more workers, each of which sends 2 (p - 1) / p of the bytes in 2 (p - 1) messages (a ring), at another
        bandwidth of its link if one is given."""
        share = 2 * (workers - 1) / workers
        own = self.ms_per_byte / (2 * (self.workers - 1) / self.workers)
        per_byte = own if gbytes is None else 1.0 / (gbytes * 1e6)
        latency = self.latency_ms * (workers - 1) / max(1, self.workers - 1)
        sending = self.send_ms_per_byte if gbytes is None else per_byte
        return replace(
            self, workers=workers, latency_ms=latency, ms_per_byte=share * per_byte, send_ms_per_byte=sending
        )


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: their bytes, and the operator after which all are complete."""

    bytes: int
    ready: int


def buckets(gradients: Sequence[Gradient], megabytes: float) -> list[Bucket]:
    """PyTorch's buckets, as it makes them after the first step: in the order in which gradients are complete, each closed when it
    has `megabytes` MiB or more, the first with 1 MiB."""
    found: list[Bucket] = []
    size, ready = 0, -1
    limit = min(FIRST_BUCKET_MB, megabytes) * _MIB
    for one in gradients:
        size, ready = size + one.bytes, max(ready, one.ready)
        if size >= limit:
            found.append(Bucket(size, ready))
            size, limit = 0, megabytes * _MIB
    if size:
        found.append(Bucket(size, ready))
    return found


@dataclass(frozen=True)
class Sent:
    """When a bucket was on its way, milliseconds from the begin of the step."""

    bytes: int
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class _BothSlowed:
    """What computing and exchanging do to each other while both run."""

    link: Link

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:
        if len(running) < 2:
            return [1.0] * len(running)
        slow: Mapping[Hashable, float] = {
            _COMPUTING: 1.0 / self.link.slows_computing,
            _EXCHANGING: 1.0 / self.link.slowed,
        }
        return [slow[tasks[number].resources[0]] for number in running]


def overlapped(operators: Sequence[float], sending: Sequence[Bucket], link: Link) -> tuple[list[float], list[Sent]]:
    """Two queues, computing and exchanging: operators one after another, buckets when they are ready, one after another.

    Args:
        operators: milliseconds of each, alone.
        sending: buckets in the order in which they leave.
        link: how long that takes, and how both slow each other.

    Returns:
        When each operator ends, and when each bucket is on its way. An operator of the update must wait for the last bucket; that
        is for the caller to add.
    """
    computing = [Task(one, (_COMPUTING,)) for one in operators]
    exchanging = [Task(link.ms(one.bytes), (_EXCHANGING,), (one.ready,) if one.ready >= 0 else ()) for one in sending]
    times = simulate([*computing, *exchanging], contention=_BothSlowed(link) if sending else None)
    count = len(operators)
    moved = zip(sending, times.starts[count:], times.ends[count:], strict=True)
    return list(times.ends[:count]), [Sent(one.bytes, start, end) for one, start, end in moved]
