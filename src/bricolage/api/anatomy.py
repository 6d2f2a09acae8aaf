"""What becomes of a planned region on this machine, kernel by kernel."""

from __future__ import annotations

from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Anatomy, RegionModel, Resources
from bricolage.graph import bits as bitset
from bricolage.graph.extract import region_file
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.region import Region
from bricolage.plan.plan import PlannedRegion, numbers


def anatomy(graph: Graph, planned: PlannedRegion, threads: int, directory: Path) -> Anatomy | None:
    """The kernels of a planned region, compiled and timed on this machine; None where its backend does not show them.

    `graph` is that of the region's bucket, `directory` the unpacked artifact.

    Raises:
        MissingBackend: the region's backend is not installed here.
        Refused: it cannot compile the region here.
    """
    region = Region(graph, bitset.of(numbers(planned.operators)))
    path = region_file(region, Identities(graph).key(region), directory)
    resources = Resources(threads=threads, alone=True)
    return registry.get(planned.backend).anatomy(RegionModel(path), planned.variant, resources)
