"""How the loop of a phase is cut into pieces, of which each thread has a share.

A share should have several pieces, so that others can take what is left of it when its thread is late. But each piece costs an
atomic operation, and some loops work on blocks that must not be cut: both are kept below what shows in quiet.
"""

from __future__ import annotations

from dataclasses import dataclass

_SMALL, _LARGE = 200_000, 2_000_000
"""Multiply-adds of a piece: some 10 µs with AVX2, below which it is not worth its cost; and some 100 µs, the longest that one
thread should wait for another's last piece."""
_USUAL, MOST = 4, 16
"""Chunks of a thread's share: this number while they are small, and the most."""


@dataclass(frozen=True)
class ParallelRange:
    """A loop that threads share."""

    count: int
    """Iterations."""
    work: int = 0
    """What one takes, in multiply-adds that are done in vectors. Rough: it decides how small pieces may be."""
    block: int = 1
    """Iterations that are done together where there are at least that many."""
    most: int | None = None
    """Pieces of a thread's share, at most; None: by what they take."""

    def pieces(self, threads: int) -> int:
        """Into how many pieces it is cut, 1 to `MOST` for each thread, or fewer than threads where it has no more iterations."""
        if self.count <= threads:
            return self.count
        share = self.count // threads
        work = share * self.work
        wanted = self.most or max(min(work // _SMALL, _USUAL), min(work // _LARGE, MOST))
        most = min(max(1, wanted), max(1, share // self.block))
        if self.block == 1:
            return threads * most
        # As few blocks as there must be; of those, as many pieces as possible.
        return threads * min(
            range(1, most + 1), key=lambda pieces: (pieces * -(-share // pieces // self.block), -pieces)
        )
