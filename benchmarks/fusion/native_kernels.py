"""How many kernels the native engine makes of a graph, of which kinds, and which edges lie between two of them."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fusion.cells import decisions
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.driver.heuristic_placement import place_by_preference
from bricolage.graph.graph import Graph, Region
from bricolage.graph.inference import infer
from bricolage.graph.store import Store
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region


@dataclass(frozen=True)
class NativeCount:
    """Kernels of a graph."""

    kernels: int
    kinds: dict[str, int]
    edges: dict[str, int]
    """Edges that no kernel holds, by the paper's verdict of their cell."""
    outside: int = 0
    """Of the kernels: operators that the engine does not take."""


def write_region(graph: Graph, folder: Path) -> RegionModel:
    """The whole graph as a region in a folder."""
    return _write(graph, graph.everything, folder)


def _write(graph: Graph, region: Region, folder: Path) -> RegionModel:
    store = Store(folder)
    store.share([graph.model])
    region_model = RegionModel(store.region(region, f"region-{region.bits:x}"[:40]))
    infer(region_model.model)
    return region_model


def count_native(graph: Graph) -> NativeCount | None:
    """Of a graph as one region; None where sizes depend on data."""
    return _count_region(graph, graph.everything) if graph.static else None


def count_native_in_parts(graph: Graph) -> NativeCount:
    """Of a graph in the regions that the engine takes, as few as cover it; each other operator is a kernel of its own."""
    backends = [registry.get("native"), registry.get("reference")]
    kinds, edges = Counter[str](), Counter[str]()
    kernels = outside = 0
    for assignment in place_by_preference(graph, backends, host(), {}):
        if assignment.implementation.backend == "native":
            part = _count_region(graph, Region(graph, assignment.region))
            kernels += part.kernels
            kinds.update(part.kinds)
            edges.update(part.edges)
        else:
            outside += assignment.region.bit_count()
    kinds["outside"] = outside
    return NativeCount(kernels + outside, dict(kinds), dict(edges), outside)


def _count_region(graph: Graph, region: Region) -> NativeCount:
    with tempfile.TemporaryDirectory() as folder:
        model = _write(graph, region, Path(folder))
        planned = plan(*lower_region(model.model, {}), fusion_target(host_caches()))
        kinds = Counter(kernel.kind for kernel in planned.kernels)
        edges = Counter(decision.verdict for decision in decisions(model) if not decision.joined)
    return NativeCount(len(planned.kernels), dict(kinds), {str(verdict): count for verdict, count in edges.items()})
