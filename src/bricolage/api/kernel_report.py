"""What becomes of a planned region on this machine, kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Anatomy, RegionModel, Resources
from bricolage.device.host import host
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.work import bits as bitset


def kernel_report(
    graph: Graph, planned: Mapping[int, PlannedRegion], threads: int, directory: Path
) -> dict[int, Anatomy]:
    """The kernels of those regions whose backends show them, compiled and timed on this machine, under the given numbers.

    `graph` is that of the regions' bucket, `directory` the unpacked artifact.

    Raises:
        MissingBackend: the backend of a region is not installed here.
        Refused: it cannot compile the region here.
    """
    identities, resources, store = Identities(graph), Resources(threads, host(), alone=True), Store(directory)
    anatomies: dict[int, Anatomy] = {}
    for number, planned_region in planned.items():
        region = Region(graph, bitset.of(parse_numbers(planned_region.operators)))
        path = store.region(region, identities.key(region))
        chosen = planned_region.implementation
        anatomy = registry.get(chosen.backend).kernel_report(RegionModel(path), chosen.config, resources)
        if anatomy is not None:
            anatomies[number] = anatomy
    return anatomies
