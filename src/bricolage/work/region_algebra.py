"""The algebra of regions: bit-sets over the numbers of operators, in a graph whose edges lead from lower to higher ones."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.work.bits import members, of

Neighbours = Sequence[Sequence[int]]
"""Per operator the numbers of others."""


def is_convex(predecessors: Neighbours, region: int) -> bool:
    """Whether no path leaves the region and comes back. Linear in the span of the region's numbers."""
    inside = set(members(region))
    if len(inside) < 2:
        return True
    after: set[int] = set()  # outside the region, yet reading (directly or not) from it
    for number in range(min(inside), max(inside) + 1):
        sources = predecessors[number]
        if number in inside:
            if any(source in after for source in sources):
                return False
        elif any(source in inside or source in after for source in sources):
            after.add(number)
    return True


def connected_parts(predecessors: Neighbours, successors: Neighbours, region: int) -> tuple[int, ...]:
    """The region split into its connected parts, directions ignored, by their lowest operators."""
    ordered = members(region)
    left = set(ordered)
    parts = []
    for first in ordered:
        if first not in left:
            continue
        left.discard(first)
        part, stack = [first], [first]
        while stack:
            number = stack.pop()
            for other in (*predecessors[number], *successors[number]):
                if other in left:
                    left.discard(other)
                    part.append(other)
                    stack.append(other)
        parts.append(of(part))
    return tuple(parts)
