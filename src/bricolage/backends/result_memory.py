"""Where results lie in memory, and whether they are the caller's own there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Extent = tuple[int, int]
"""The first address of a tensor's memory, and the one behind its last byte."""


def find_shared(results: Sequence[Extent], taken: Iterable[Extent]) -> tuple[int, ...]:
    """Positions of results that lie in memory that is taken, by one before them too. An empty one lies nowhere, and may do so with
    other values."""
    held, places = list(taken), []
    for place, (first, end) in enumerate(results):
        if first == end or any(max(start, first) < min(last, end) for start, last in held):
            places.append(place)
        held.append((first, end))
    return tuple(places)
