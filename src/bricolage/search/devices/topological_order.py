"""An order of what reads from each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def depth_first(nodes: Sequence[int], edges: Iterable[tuple[int, int]]) -> list[int]:
    """Nodes behind those that they read from (edges go from what is read to its reader); a chain is finished before its sibling
    begins. Nodes on a circle, and behind one, are missing."""
    readers: dict[int, list[int]] = {node: [] for node in nodes}
    waiting = dict.fromkeys(readers, 0)
    for source, other in edges:
        readers[source].append(other)
        waiting[other] += 1
    stack = [node for node in reversed(nodes) if not waiting[node]]
    order = []
    while stack:
        current = stack.pop()
        order.append(current)
        for other in reversed(readers[current]):
            waiting[other] -= 1
            if not waiting[other]:
                stack.append(other)
    return order
