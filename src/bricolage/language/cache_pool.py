"""Memory of the keys and values of all sequences of a model: pools of rows, of which each sequence has a span.

A span grows by doubling, and moves where nothing is free behind it. Pools grow by doubling too. Programs know rows by number and
pools by address, so nothing is compiled again. Row 0 is no sequence's: rows of a program that are not used write there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.device.buffers import lasting
from bricolage.device.memory import available_bytes
from bricolage.errors import NotEnoughMemory

FIRST_SPAN = 128
"""Rows of a new sequence's span."""
_FIRST_POOL = 512
"""Rows of a new pool."""


@dataclass
class RowSpan:
    """Rows of the pools that a sequence has."""

    start: int
    rows: int


class CachePool:
    """Pools [rows, width], of keys and of values for each layer, with the same spans in all."""

    def __init__(self, pools: Sequence[tuple[int, np.dtype[np.generic]]], most: int) -> None:
        """Width and type of each; `most` rows is what programs can number."""
        self._most = most
        self._free: list[RowSpan] = []
        self.rows = 0
        self.arrays: list[np.ndarray] = [np.empty((0, width), dtype) for width, dtype in pools]
        """The pools."""
        self.generation = 0
        """Changes whenever the pools lie elsewhere."""
        self._grow(1)
        self.take(1)  # row 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all pools: of a token."""
        return sum(array.shape[1] * array.itemsize for array in self.arrays)

    def take(self, rows: int) -> RowSpan:
        """A free span.

        Raises:
            NotEnoughMemory: there is no memory for larger pools.
        """
        index = next((i for i, span in enumerate(self._free) if span.rows >= rows), None)
        if index is None:
            self._grow(rows)
            return self.take(rows)
        free = self._free[index]
        taken = RowSpan(free.start, rows)
        free.start += rows
        free.rows -= rows
        if not free.rows:
            del self._free[index]
        return taken

    def give_back(self, span: RowSpan) -> None:
        """A span that is free again."""
        spans = sorted([*self._free, RowSpan(span.start, span.rows)], key=lambda each: each.start)
        merged: list[RowSpan] = []
        for each in spans:
            if merged and merged[-1].start + merged[-1].rows == each.start:
                merged[-1].rows += each.rows
            else:
                merged.append(each)
        self._free = merged

    def enlarge(self, span: RowSpan, rows: int, used: int) -> RowSpan:
        """A span of more rows in the place of one whose first `used` rows are kept.

        Raises:
            NotEnoughMemory: there is no memory for larger pools.
        """
        behind = next((free for free in self._free if free.start == span.start + span.rows), None)
        more = rows - span.rows
        if behind is not None and behind.rows >= more:
            behind.start += more
            behind.rows -= more
            if not behind.rows:
                self._free.remove(behind)
            return RowSpan(span.start, rows)
        larger = self.take(rows)
        self.copy(span.start, larger.start, used)
        self.give_back(span)
        return larger

    def copy(self, source: int, target: int, rows: int) -> None:
        """Rows from one place to another."""
        for array in self.arrays:
            array[target : target + rows] = array[source : source + rows]

    def _grow(self, rows: int) -> None:
        """At least twice as large, with `rows` free rows in one piece."""
        wanted = max(_FIRST_POOL, 2 * self.rows, self.rows + rows)
        if wanted > self._most:
            wanted = self.rows + rows
        needed, present = wanted * self.row_bytes, available_bytes()
        if wanted > self._most or needed > present:
            raise NotEnoughMemory(wanted=f"{needed / 1e9:.3g} GB", present=f"{present / 1e9:.3g} GB")
        before, self.rows = self.rows, wanted
        self.arrays = [self._enlarged(array) for array in self.arrays]
        self.generation += 1
        self.give_back(RowSpan(before, wanted - before))

    def _enlarged(self, array: np.ndarray) -> np.ndarray:
        """A copy with as many rows as there are now. The new ones are zeros: other backends multiply what is not written by 0."""
        larger = lasting((self.rows, array.shape[1]), array.dtype)
        larger[: len(array)] = array
        larger[len(array) :] = 0
        return larger


def span_rows(tokens: int, most: int) -> int:
    """Rows of a span for a number of tokens: `FIRST_SPAN`, doubled as often as they need, and `most` at most."""
    rows = FIRST_SPAN
    while rows < tokens:
        rows *= 2
    return min(rows, most)
