"""Which nodes a gang gets: the fewest, and among those the fullest, so that whole nodes stay free for large gangs."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence


class NodePool:
    """The nodes of one kind. Nodes with equally many free devices stand in one list, lowest number first, so that placing a
    gang takes no look at all nodes."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = tuple(sizes)
        self.most = max(sizes)
        self.left = list(sizes)
        self.down: set[int] = set()
        self.free = sum(sizes)
        self._with: list[list[int]] = [[] for _ in range(self.most + 1)]
        for node, size in enumerate(sizes):
            self._with[size].append(node)

    def place(self, devices: int) -> tuple[tuple[int, int], ...]:
        """Takes devices: (node, devices) for each node.

        Raises:
            ValueError: fewer are free.
        """
        if devices > self.free:
            raise ValueError(f"{devices} devices are wanted and {self.free} are free")
        assignments: list[tuple[int, int]] = []
        while devices:
            node = self._fitting(devices)
            count = min(devices, self.left[node])
            self._set(node, self.left[node] - count)
            assignments.append((node, count))
            devices -= count
        return tuple(assignments)

    def has(self, nodes: Sequence[tuple[int, int]]) -> bool:
        """Whether just these devices are free: (node, devices) of at least one node."""
        return bool(nodes) and all(0 <= node < len(self.left) and self.left[node] >= count for node, count in nodes)

    def take(self, nodes: Sequence[tuple[int, int]]) -> None:
        """Takes just these devices: (node, devices).

        Raises:
            ValueError: so many are not free there.
        """
        for node, count in nodes:
            if not 0 <= node < len(self.left) or self.left[node] < count:
                raise ValueError(f"{count} devices of node {node} are held by another job")
            self._set(node, self.left[node] - count)

    def release(self, nodes: Sequence[tuple[int, int]]) -> None:
        """Gives devices back; those of a node that is away stay away."""
        for node, count in nodes:
            if node not in self.down:
                self._set(node, self.left[node] + count)

    def fewest(self, devices: int) -> int:
        """How many nodes a gang needs at least."""
        return -(-devices // self.most)

    def fail(self, node: int) -> None:
        """Takes a node away; what it held must have been released."""
        if node not in self.down:
            self._set(node, 0)
            self.down.add(node)

    def repair(self, node: int) -> None:
        """Brings a node back."""
        if node in self.down:
            self.down.discard(node)
            self._set(node, self.sizes[node])

    def _fitting(self, devices: int) -> int:
        """The fullest node that holds all; else the emptiest."""
        for count in range(devices, self.most + 1):
            if self._with[count]:
                return self._with[count][0]
        return next(self._with[count][0] for count in range(self.most, 0, -1) if self._with[count])

    def _set(self, node: int, left: int) -> None:
        now = self._with[self.left[node]]
        del now[bisect_left(now, node)]
        insort(self._with[left], node)
        self.free += left - self.left[node]
        self.left[node] = left
