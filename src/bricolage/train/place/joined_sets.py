"""Numbers in sets that are joined two by two (union-find)."""

from __future__ import annotations


class JoinedSets:
    """Numbers from 0 on, at first each in a set of its own."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def representative(self, number: int) -> int:
        """The same number for all of a set: its lowest."""
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def join(self, first: int, second: int) -> None:
        """Makes one set of those of two numbers."""
        low, high = sorted((self.representative(first), self.representative(second)))
        self._parent[high] = low
