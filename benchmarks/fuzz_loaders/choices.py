"""Bytes as decisions, so that a fuzzer that changes bytes changes what is done to a well-formed input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Decisions read off bytes, one after another. When the bytes end, every further decision is the first possibility."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def number(self, below: int) -> int:
        """From 0 to `below` - 1."""
        size = max(1, ((below - 1).bit_length() + 7) // 8)
        taken = self._data[self._place : self._place + size]
        self._place += size
        return int.from_bytes(taken, "little") % below

    def of(self, possibilities: Sequence[T]) -> T:
        """One of them."""
        return possibilities[self.number(len(possibilities))]

    def once_in(self, times: int) -> bool:
        """True once in so many times; False when the bytes have ended."""
        return self.number(times) == times - 1

    def rest(self, most: int) -> bytes:
        """The next bytes as they are."""
        taken = self._data[self._place : self._place + self.number(most + 1)]
        self._place += len(taken)
        return taken

    @property
    def ended(self) -> bool:
        """Whether nothing is left to decide by."""
        return self._place >= len(self._data)
