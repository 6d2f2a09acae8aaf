"""In which order a block's surface lies in memory, so that what its neighbours need is sent in few messages without packing.

Zhao, Hall, Johansen and Williams, "Improving communication by optimizing on-node data movement with data layout", PPoPP 2021. A
block of a grid of D dimensions has 3^D - 1 regions on its surface (faces, edges, corners) and as many neighbours; a neighbour
needs each region that touches it, so there are 5^D - 3^D pairs of them. Regions that lie one after another go as one message, so
an order takes as many messages as there are pairs, less the pairs of consecutive regions that one neighbour needs both of. The
best order is a Hamiltonian path of most weight. Nothing of this rests on grids: the rows of a sparse network that one set of
processes needs are a region too (`layer_exchange`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from bricolage.search.placement.linear_rows import LinearRows

_EXACT = 26
"""Regions up to which the best order is proven: those of a block in three dimensions."""


def find_runs(wanted: Iterable[bool]) -> list[tuple[int, int]]:
    """Where consecutive places are wanted: the first, and the one behind the last."""
    runs: list[tuple[int, int]] = []
    for place, is_wanted in enumerate(wanted):
        if not is_wanted:
            continue
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
    return runs


@lru_cache(maxsize=4096)
def order_regions(readers: tuple[frozenset[int], ...], exact: int = _EXACT) -> tuple[int, ...]:
    """An order of regions in which those that need the same ones find most of them consecutive.

    Args:
        readers: of each region, who needs it.
        exact: regions up to which no order takes fewer messages; of more the next one is the one with most readers in common.
    """
    if len(readers) < 3:
        return tuple(range(len(readers)))
    return _best_order(readers) if len(readers) <= exact else _greedy_order(readers)


def _greedy_order(readers: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """Begins with the region that fewest need."""
    names = {reader: place for place, reader in enumerate(sorted(frozenset().union(*readers)))}
    member = np.zeros((len(readers), len(names)), np.float32)
    for region, own_readers in enumerate(readers):
        member[region, [names[reader] for reader in own_readers]] = 1.0
    order = [int(member.sum(axis=1).argmin())]
    left = np.ones(len(readers), bool)
    left[order[0]] = False
    while left.any():
        shared = np.where(left, member @ member[order[-1]], -1.0)
        order.append(int(shared.argmax()))
        left[order[-1]] = False
    return tuple(order)


def _best_order(readers: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """The path of most weight is a round tour through a region more, which weighs nothing: an integer programme on HiGHS, with a
    row for each round trip that it finds and that does not pass all (Dantzig, Fulkerson and Johnson, 1954).
    """
    count = len(readers)
    edges = list(itertools.combinations(range(count + 1), 2))
    rows = LinearRows([-float(_shared(readers, first, other)) for first, other in edges])
    for place in range(count + 1):
        rows.add([(number, 1.0) for number, edge in enumerate(edges) if place in edge], 2.0, 2.0)
    while True:
        chosen = rows.solve(np.ones(len(edges))).x
        assert chosen is not None  # a tour through all is a solution
        near: list[list[int]] = [[] for _ in range(count + 1)]
        for number in np.flatnonzero(chosen > 0.5).tolist():
            first, other = edges[number]
            near[first].append(other)
            near[other].append(first)
        trips = _trips(near)
        if len(trips) == 1:
            place = trips[0].index(count)
            return (*trips[0][place + 1 :], *trips[0][:place])
        for trip in trips:
            inside = set(trip)
            leaving = [(number, 1.0) for number, edge in enumerate(edges) if (edge[0] in inside) != (edge[1] in inside)]
            rows.add(leaving, 2.0, math.inf)


def _shared(readers: Sequence[frozenset[int]], region: int, other: int) -> int:
    """Who needs both; none of what is behind the last region."""
    return 0 if other == len(readers) else len(readers[region] & readers[other])


def _trips(near: Sequence[Sequence[int]]) -> list[list[int]]:
    """Round trips, by who is next to whom."""
    trips: list[list[int]] = []
    left = set(range(len(near)))
    while left:
        trip = [min(left)]
        while True:
            left.discard(trip[-1])
            after = next((neighbour for neighbour in near[trip[-1]] if neighbour in left), None)
            if after is None:
                break
            trip.append(after)
        trips.append(trip)
    return trips
