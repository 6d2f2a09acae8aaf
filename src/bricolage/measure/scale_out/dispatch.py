"""Who does what next, and what becomes of the work of those who fail or dawdle. Knows neither networks nor clocks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
_ATTEMPTS = 3
"""Failures after which an item is not given to anybody any more."""
_COPIES = 2
_SLOW = 2.0
"""An item is also given to an idle node when it has taken this multiple of the median of those that are done, ..."""
_LEAST_S = 2.0
"""... and this long in any case; ..."""
_FIRST_S = 30.0
"""... and this long where none is done yet."""


class Dispatch(Generic[T]):
    """Items, and the nodes that are at them. Each item is done once: the first result counts."""

    def __init__(self, items: Sequence[T], may: Callable[[T, str], bool]) -> None:
        """`may`: whether a node can do an item."""
        self._items = list(items)
        self._may = may
        self._waiting = list(range(len(items)))
        self._running: dict[int, dict[str, float]] = {number: {} for number in self._waiting}
        """By item, the nodes that are at it and since when."""
        self._failures = dict.fromkeys(self._waiting, 0)
        self._seconds: list[float] = []
        self.given_up: list[T] = []
        """Items that failed again and again."""
        self.duplicates = 0
        """Items that were given to a second node."""
        self.dropped = 0
        """Results that came when there was one already."""

    @property
    def open(self) -> bool:
        """Whether there is an item without a result that is not given up."""
        return bool(self._running)

    def next(self, node: str, now: float) -> tuple[int, T] | None:
        """An item for an idle node: one that waits, or else the one that has taken longest elsewhere, where that is too long."""
        for number in self._waiting:
            if self._may(self._items[number], node):
                self._waiting.remove(number)
                self._running[number][node] = now
                return number, self._items[number]
        patience = max(_SLOW * statistics.median(self._seconds), _LEAST_S) if self._seconds else _FIRST_S
        late = [
            (min(nodes.values()), number)
            for number, nodes in self._running.items()
            if 0 < len(nodes) < _COPIES
            and node not in nodes
            and now - min(nodes.values()) > patience
            and self._may(self._items[number], node)
        ]
        if not late:
            return None
        number = min(late)[1]
        self._running[number][node] = now
        self.duplicates += 1
        return number, self._items[number]

    def done(self, number: int, node: str, now: float) -> bool:
        """A node has a result. Whether it is the first of that item: others are to be dropped."""
        nodes = self._running.pop(number, None)
        if nodes is None:
            self.dropped += 1
            return False
        self._forget(number)
        if node in nodes:
            self._seconds.append(now - nodes[node])
        return True

    def failed(self, number: int, node: str) -> None:
        """A node is gone or could not do it: the item waits again, unless another node is at it. After a few failures it is given
        up."""
        nodes = self._running.get(number)
        if nodes is None:
            return
        nodes.pop(node, None)
        self._failures[number] += 1
        if nodes:
            return
        if self._failures[number] >= _ATTEMPTS:
            del self._running[number]
            self._forget(number)
            self.given_up.append(self._items[number])
        elif number not in self._waiting:
            self._waiting.insert(0, number)

    def restore(self, number: int, item: T) -> None:
        """An item whose result asks for it in another form: it waits again."""
        self._items[number] = item
        self._running[number] = {}
        self._waiting.insert(0, number)

    def hopeless(self, nodes: Sequence[str]) -> bool:
        """Whether no node is at an item, and none of these nodes can do one that waits."""
        if any(self._running[number] for number in self._running):
            return False
        return not any(self._may(self._items[number], node) for number in self._waiting for node in nodes)

    def _forget(self, number: int) -> None:
        if number in self._waiting:
            self._waiting.remove(number)
