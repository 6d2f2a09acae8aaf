"""Messages between blocks of a grid: counted by the runs that really carry what neighbours need."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.training.example_layers import Region, messages, needs, order_surface, surface_regions

SIDE = 4


def sent(order: list[Region]) -> int:
    """Messages in which a block's surface, laid out in an order, reaches all neighbours; checked against the block itself."""
    dimensions = len(order[0])
    block = np.arange(SIDE**dimensions).reshape((SIDE,) * dimensions)
    ends = {-1: slice(0, 1), 0: slice(1, SIDE - 1), 1: slice(SIDE - 1, SIDE)}
    pieces = [block[tuple(ends[side] for side in region)].ravel() for region in order]
    memory, begins = np.concatenate(pieces), np.cumsum([0, *map(len, pieces)])
    total = 0
    for neighbour, runs in messages(order).items():
        arrived = np.concatenate([memory[begins[first] : begins[last]] for first, last in runs])
        wanted = block[tuple(slice(None) if side == 0 else ends[side] for side in neighbour)]
        assert sorted(arrived) == sorted(wanted.ravel())
        total += len(runs)
    return total


@pytest.mark.parametrize(("dimensions", "naive", "least"), [(1, 2, 2), (2, 16, 9), (3, 98, 42)])
def test_published_counts(dimensions: int, naive: int, least: int) -> None:
    every = surface_regions(dimensions)
    assert len(every) == 3**dimensions - 1
    assert sum(needs(*pair) for pair in itertools.product(every, repeat=2)) == naive == 5**dimensions - 3**dimensions
    assert sent(order_surface(dimensions)) == least


def test_no_order_of_a_plane_takes_fewer() -> None:
    every = surface_regions(2)
    both = [[sum(needs(n, a) and needs(n, b) for n in every) for b in every] for a in every]
    paths = itertools.permutations(range(8))
    assert 16 - max(sum(both[a][b] for a, b in itertools.pairwise(path)) for path in paths) == 9
