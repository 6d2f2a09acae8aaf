"""How many kernels the native engine makes of a graph, of which kinds, and which edges lie between two of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from benchmarks.fusion.cells import decisions
from bricolage.backends import registry
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import RegionModel
from bricolage.device.caches import host_caches
from bricolage.graph.graph import Graph, Operator, Region, describe
from bricolage.graph.inference import infer
from bricolage.graph.store import Store
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.work import bits


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
    """The whole graph as a region in a folder, which holds its weights from then on."""
    return _write(graph.everything, _share(graph, folder))


def _share(graph: Graph, folder: Path) -> Store:
    store = Store(folder)
    store.share([graph.model])
    return store


def _write(region: Region, store: Store) -> RegionModel:
    region_model = RegionModel(store.region(region, hashlib.sha256(f"{region.bits:x}".encode()).hexdigest()))
    infer(region_model.model)
    return region_model


def count_native(graph: Graph, folder: Path) -> NativeCount:
    """Kernels of a graph: as one region, or, where sizes depend on data, in the regions that the engine takes, as few as cover it,
    each other operator a kernel of its own. `folder` holds the weights from then on."""
    store = _share(graph, folder)
    if graph.static:
        return _count_region(_write(graph.everything, store))
    matcher, claims = Matcher(graph), tuple(registry.get("native").claims())
    accepted = matcher.accepted(claims) & bits.of(map(attrgetter("number"), filter(_static, graph.operators)))
    parts = [_count_region(_write(Region(graph, region), store)) for region in matcher.maximal(accepted)]
    outside = len(graph) - accepted.bit_count()
    kinds, edges = Counter({"outside": outside}), Counter[str]()
    for part in parts:
        kinds.update(part.kinds)
        edges.update(part.edges)
    return NativeCount(sum(part.kernels for part in parts) + outside, dict(kinds), dict(edges), outside)


def _static(operator: Operator) -> bool:
    return all(describe(value).static for value in (*operator.inputs, *operator.outputs))


def _count_region(region: RegionModel) -> NativeCount:
    planned = plan(*lower_region(region.model, {}), fusion_target(host_caches()))
    kinds = Counter(kernel.kind for kernel in planned.kernels)
    edges = Counter(decision.verdict for decision in decisions(region) if not decision.joined)
    return NativeCount(len(planned.kernels), dict(kinds), {str(verdict): count for verdict, count in edges.items()})
