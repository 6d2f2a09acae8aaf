"""The plans of an artifact of any machine, to be read: their graphs, and what becomes of their regions here, kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.backends import registry
from bricolage.backends.interface import Anatomy, RegionModel, Resources
from bricolage.device.host import host
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.plan import artifact
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.pack import PackEntry
from bricolage.plan.plan import Plan
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.work import bits as bitset
from bricolage.work.fused_kernel import RegionTraffic
from bricolage.work.implementation import Implementation
from bricolage.work.kernel_orders import KernelOrders


@dataclass(frozen=True)
class UnpackedPlan:
    """A plan, and the folder that its artifact was unpacked to."""

    plan: Plan
    directory: Path
    entry: PackEntry | None
    """Its place in a pack; None of an artifact with one plan."""

    def graphs(self) -> list[Graph]:
        """Of the plan's buckets, in their order."""
        return [graph_of(self.directory / bucket.program.graph) for bucket in self.plan.buckets]

    def kernels(self, graph: Graph, planned: Mapping[int, PlannedRegion]) -> dict[int, Anatomy]:
        """The kernels of those regions of a bucket's graph whose backends show them, compiled and timed on this machine, under the
        given numbers.

        Raises:
            MissingBackend: the backend of a region is not installed here.
            Refused: it cannot compile the region here.
        """
        anatomies: dict[int, Anatomy] = {}
        for number, region, chosen in self._regions(graph, planned):
            anatomy = registry.get(chosen.backend).kernel_report(region, chosen.config, self._resources)
            if anatomy is not None:
                anatomies[number] = anatomy
        return anatomies

    def traffic(self, graph: Graph, planned: Mapping[int, PlannedRegion]) -> dict[int, RegionTraffic]:
        """What the kernels of those regions of a bucket's graph move whose backends show them, for the caches of this machine, by
        the given numbers. Nothing is compiled.

        Raises:
            MissingBackend: the backend of a region is not installed here.
            Refused: it cannot compile the region here.
        """
        moved: dict[int, RegionTraffic] = {}
        for number, region, chosen in self._regions(graph, planned):
            region_traffic = registry.get(chosen.backend).traffic_report(region, chosen.config, self._resources)
            if region_traffic is not None:
                moved[number] = region_traffic
        return moved

    def kernel_orders(
        self, graph: Graph, planned: Mapping[int, PlannedRegion], threads: Sequence[int]
    ) -> dict[int, tuple[KernelOrders, ...]]:
        """What those regions of a bucket's graph whose backends show their kernels would take on numbers of threads, by the order
        of kernels, under the given numbers. Kernels are compiled and timed on one thread of this machine.

        Raises:
            MissingBackend, Refused: as `kernels`.
        """
        compared: dict[int, tuple[KernelOrders, ...]] = {}
        for number, region, chosen in self._regions(graph, planned):
            orders = registry.get(chosen.backend).simulate_orders(region, chosen.config, self._resources, threads)
            if orders is not None:
                compared[number] = orders
        return compared

    @property
    def _resources(self) -> Resources:
        return Resources(self.plan.provenance.options.threads, host(), alone=True)

    def _regions(
        self, graph: Graph, planned: Mapping[int, PlannedRegion]
    ) -> Iterator[tuple[int, RegionModel, Implementation]]:
        """By number the model of a region, and what runs it."""
        identities, store = Identities(graph), Store(self.directory)
        for number, planned_region in planned.items():
            region = Region(graph, bitset.of(parse_numbers(planned_region.operators)))
            path = store.region(region, identities.key(region))
            yield number, RegionModel(path), planned_region.implementation


def unpack_plans(path: Path, target: str = "") -> dict[str, UnpackedPlan]:
    """The plans of a pack by their targets' names, that of `target` alone where it is named; of an artifact with one plan that one,
    under the empty name.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact: the file is not usable.
        NoTarget, NotPack: there is no such target.
    """
    plans, directory = artifact.plans(path, target)
    pack = artifact.read_pack(directory)
    entries = {} if pack is None else {entry.target.name: entry for entry in pack.entries}
    return {name: UnpackedPlan(plan, directory, entries.get(name)) for name, plan in plans.items()}
