"""What it takes that workers exchange something: collectives in a ring, and a message from one to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bricolage.device.device import Link


@dataclass(frozen=True)
class CallTimes:
    """Of one kind of collective, as a library's calls take it: with what happens before and after the messages."""

    start_ms: float
    """Of a call, whatever its bytes."""
    ms_per_byte: float
    """Of the whole tensor."""

    def ms(self, size: float) -> float:
        """Milliseconds of a call with a tensor of `size` bytes, whole."""
        return self.start_ms + self.ms_per_byte * size


@dataclass(frozen=True)
class Ring:
    """Workers in a ring of equal links, as it was measured among some of them; and the slowdown of what runs during an all-reduce.

    In an all-reduce each of p workers sends 2 (p - 1) / p of the bytes, in 2 (p - 1) messages (Patarasuk and Yuan, "Bandwidth
    Optimal All-reduce Algorithms", JPDC 2009).
    """

    workers: int
    link: Link
    """From one worker to the next, for messages alone."""
    latency_ms: float
    """Of an all-reduce of any size."""
    ms_per_byte: float
    """Of an all-reduce, for each of its bytes; with the latency by least squares over sizes."""
    copy_ms_per_byte: float = 0.0
    """To bring gradients into a bucket, and back."""
    slows_computing: float = 1.0
    """A factor of the time of what is computed during an all-reduce."""
    slowed: float = 1.0
    """A factor of the all-reduce's own time, then."""
    gather: CallTimes | None = None
    """An all-gather, where it was measured; None: half of an all-reduce's messages."""
    scatter: CallTimes | None = None
    """A reduce-scatter, where it was measured; None: the other half."""
    exchange: CallTimes | None = None
    """An all-to-all, where it was measured; None: messages one after another."""

    @staticmethod
    def of(link: Link) -> Ring:
        """Of two workers with a described link: computing and exchanging do not slow each other, and nothing is copied."""
        return Ring(2, link, 2 * link.latency_us / 1e3, 1.0 / (link.gbytes * 1e6))

    def all_reduce_ms(self, size: float) -> float:
        """Milliseconds of an all-reduce of `size` bytes."""
        return self.latency_ms + self.ms_per_byte * size

    def send_ms(self, size: float) -> float:
        """Milliseconds of a message of a number of bytes from one worker to the next."""
        return self.link.ms(size)

    def all_gather_ms(self, size: float) -> float:
        """Milliseconds until each worker has all `size` bytes, of which each has its share: as measured, or half of an
        all-reduce's messages."""
        return self.all_reduce_ms(size) / 2 if self.gather is None else self.gather.ms(size)

    def reduce_scatter_ms(self, size: float) -> float:
        """Milliseconds until each worker has the sum of its share of `size` bytes: as measured, or the other half."""
        return self.all_reduce_ms(size) / 2 if self.scatter is None else self.scatter.ms(size)

    def all_to_all_ms(self, size: float) -> float:
        """Milliseconds until what was divided along one axis is divided along another: as measured, or each worker sends each other
        a message of a p²th of `size` bytes, one after another."""
        if self.exchange is not None:
            return self.exchange.ms(size)
        return (self.workers - 1) * self.send_ms(size / self.workers**2)

    def copy_ms(self, size: float) -> float:
        """Milliseconds to bring bytes into the order in which they are sent, or back: half of a bucket's way in and out."""
        return self.copy_ms_per_byte * size / 2

    @classmethod
    def described(cls, workers: int, link: Link, copy_gbytes: float = math.inf) -> Ring:
        """A ring of links of which nothing was measured: 2 (p - 1) messages of a pth of the bytes.

        Args:
            workers: in it, at least 1.
            link: from one to the next.
            copy_gbytes: 10⁹ bytes a second that a worker copies within its memory.
        """
        latency = 2 * (workers - 1) * link.latency_us / 1e3
        return cls(workers, link, latency, _share(workers) / link.gbytes / 1e6, 2.0 / copy_gbytes / 1e6)

    def among(self, workers: int, gbytes: float | None) -> Ring:
        """The same among a number of workers, at another bandwidth of their links if one is given. Of other collectives than the
        all-reduce what was measured is left out: it is of these workers and links."""
        link_ms = self.ms_per_byte / _share(self.workers)
        per_byte = link_ms if gbytes is None else 1.0 / (gbytes * 1e6)
        return replace(
            self,
            workers=workers,
            link=self.link if gbytes is None else replace(self.link, gbytes=gbytes),
            latency_ms=self.latency_ms * (workers - 1) / max(1, self.workers - 1),
            ms_per_byte=_share(workers) * per_byte,
            gather=None,
            scatter=None,
            exchange=None,
        )


def _share(workers: int) -> float:
    """Of the bytes of an all-reduce, what each worker sends."""
    return 2 * (workers - 1) / workers
