"""Layers with a known structure: RadiX-Net's, and the surface of a block in a grid, a stencil's layer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TypeAlias

from bricolage.search.sharding.ghost_zones import find_runs, order_regions
from bricolage.search.sharding.row_partition import SparseLayer

Region: TypeAlias = tuple[int, ...]
"""By dimension: -1 at the low end, 1 at the high end, 0 between them. Not all 0. Neighbours are named alike."""


def radix_layer(neurons: int, degree: int, stride: int) -> SparseLayer:
    """A layer of RadiX-Net (Kepner and Robinett, 2019): row i reads i, i + stride, ... round in a circle, `degree` inputs."""
    rows = [tuple(sorted((row + stride * step) % neurons for step in range(degree))) for row in range(neurons)]
    return SparseLayer(neurons, tuple(rows))


def surface_regions(dimensions: int) -> list[Region]:
    """Of a block's surface; and its neighbours."""
    return [region for region in itertools.product((-1, 0, 1), repeat=dimensions) if any(region)]


def needs(neighbour: Region, region: Region) -> bool:
    """Whether a neighbour needs a region: it touches wherever the neighbour is not straight on."""
    return all(side == 0 or side == mine for side, mine in zip(neighbour, region, strict=True))


def messages(order: Sequence[Region]) -> dict[Region, list[tuple[int, int]]]:
    """By neighbour the runs of consecutive regions that are sent: the first, and the one behind the last."""
    return {
        neighbour: find_runs(needs(neighbour, region) for region in order)
        for neighbour in surface_regions(len(order[0]))
    }


def order_surface(dimensions: int) -> list[Region]:
    """The order with the fewest messages: 9 in two dimensions, 42 in three."""
    every = surface_regions(dimensions)
    readers = [frozenset(place for place, other in enumerate(every) if needs(other, region)) for region in every]
    return [every[place] for place in order_regions(tuple(readers))]
