"""Steps of a program: region files and who runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.work.implementation import Implementation, Placement


@dataclass(frozen=True)
class Step:
    """The region model at `path`, to be compiled by an implementation."""

    implementation: Implementation
    path: Path


def steps_of(
    graph: Graph, placement: Placement, store: Store, identities: Identities | None = None
) -> tuple[Step, ...]:
    """The regions of a placement, in its order, as files of the store. `identities` are the graph's, where they are known."""
    known = identities or Identities(graph)
    regions = [Region(graph, one.region) for one in placement]
    return tuple(
        Step(one.implementation, store.region(region, known.key(region)))
        for one, region in zip(placement, regions, strict=True)
    )
