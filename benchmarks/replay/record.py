"""What is recorded of one model: every decision that follows from the model alone, as lines of text.

Nothing is compiled, run or timed: costs are pinned, a pure function of a region's identity and of who runs it. So the record is the
same on every machine, and a change that should decide nothing (a refactoring) leaves every line as it was.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel
from bricolage.backends.matching import Matcher
from bricolage.backends.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.backends.native.cpu.build import planned
from bricolage.backends.native.cpu.isa import ISAS
from bricolage.backends.native.cpu.module import generate
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.fuse.plan import Buffer, FusionPlan
from bricolage.device.caches import Cache, Caches
from bricolage.device.isa import ISA_VARIABLE
from bricolage.errors import Refused
from bricolage.graph.extract import region_file, share_weights
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare
from bricolage.graph.region import Region
from bricolage.graph.work import work
from bricolage.measure.transfers import BoundaryCosts
from bricolage.optimize.candidates import find, work_graph
from bricolage.options import Options
from bricolage.rewrite.apply import rewrite
from bricolage.rewrite.catalogue import rules
from bricolage.search.evolve import EvolutionOptions, MergedPlacement, evolve
from bricolage.search.exact import solve
from bricolage.work import bits as bitset
from bricolage.work.graph import Candidate

BACKENDS = ("onnxruntime", "openvino", "torch", "native", "inductor", "xla", "tvm", "iree")
_THREADS = 2
_CACHES = Caches((Cache(1, 48 << 10), Cache(2, 1 << 20)))
"""Of the processor that C is generated for, whatever the machine is."""
_LIBRARIES: Mapping[str, Sequence[Arithmetic]] = {
    "avx2": (FLOAT32, Arithmetic(tile=2)),
    "avx512": (FLOAT32, Arithmetic(tile=4)),
    "generic": (FLOAT32,),
    "amx": (Arithmetic(parts=1, stores="operands"), Arithmetic(parts=3)),
}
"""Of which the C is generated, by instruction set; none need run here."""


def record(model: ir.Model) -> dict[str, list[str]]:
    """Lines by section: graph, claims, candidates, rewrites, fusion, C, placement."""
    graph = prepare(model, {})
    with tempfile.TemporaryDirectory(prefix="replay-") as folder:
        share_weights([graph.model], Path(folder))
        key = Identities(graph).key(graph.everything)
        region = RegionModel(region_file(graph.everything, key, Path(folder)))
        return {
            "graph": _graph(graph),
            "claims": _claims(graph),
            "candidates": _candidates(graph),
            "rewrites": _rewrites(graph),
            "fusion": _fusion(region),
            "c": _libraries(region),
            "placement": _placement(graph),
        }


def pin_environment() -> None:
    """Keeps all that asks about the processor to one instruction set, so that the record does not depend on the machine."""
    os.environ[ISA_VARIABLE] = "avx2"


def _graph(graph: Graph) -> list[str]:
    return Identities(graph).text(graph.everything).splitlines()


def _claims(graph: Graph) -> list[str]:
    matcher, lines = Matcher(graph), []
    for name in BACKENDS:
        claims = tuple(registry.get(name).claims())
        lines.append(f"{name} accepts {matcher.accepted(claims):x}")
        lines += [f"{name} {bits:x}" for bits in sorted(matcher.regions(claims))]
    return lines


def _candidates(graph: Graph) -> list[str]:
    lines = []
    for slow in (False, True):
        found = find(graph, [registry.get(n) for n in BACKENDS], Options().precision, slow_per_region=slow)
        lines += [f"{slow} whole {way.backend} {way.variant}" for way in found.whole]
        lines += [f"{slow} segment {bits:x}" for bits in found.segments]
        for group in found.groups:
            regions = ",".join(f"{bits:x}" for bits in group.regions)
            ways = ",".join(f"{way.backend} {way.variant}" for way in group.ways)
            lines.append(f"{slow} {group.level} {group.key} [{regions}] {ways} {group.work.flops} {group.work.bytes}")
    return lines


def _rewrites(graph: Graph) -> list[str]:
    model = graph.model.clone()
    lines = [f"{one.rule}: {', '.join(one.removed)} -> {', '.join(one.added)}" for one in rewrite(model, rules())]
    return lines + _graph(prepare(model, {}))


def _fusion(region: RegionModel) -> list[str]:
    found = planned(region, _target("avx2"), FLOAT32, None)
    return [_kernel(found, number) for number in range(len(found.kernels))] + [f"arena {found.arena_bytes}"]


def _kernel(plan: FusionPlan, number: int) -> str:
    kernel = plan.kernels[number]
    stores = "; ".join(f"{type(node).__name__}{list(node.shape)} {_buffer(buffer)}" for node, buffer in kernel.stores)
    return f"{kernel.kind} {len(kernel.path)} views -> {stores}"


def _buffer(buffer: Buffer) -> str:
    return f"{buffer.storage[0]}{buffer.storage[1]}+{buffer.offset} {buffer.dtype} {list(buffer.strides)}"


def _target(isa: str) -> CpuTarget:
    return CpuTarget(next(one for one in ISAS if one.name == isa), _THREADS, _CACHES)


def _libraries(region: RegionModel) -> list[str]:
    lines: list[str] = []
    for name, arithmetics in _LIBRARIES.items():
        for arithmetic in arithmetics:
            title = f"==== {name} tile {arithmetic.tile} parts {arithmetic.parts}"
            try:
                plan = planned(region, _target(name), arithmetic, None)
            except Refused as error:
                lines.append(f"{title}: {error.sentence}")
                continue
            source = generate(plan, _target(name), arithmetic)
            weights = hashlib.sha256(source.weights.tobytes()).hexdigest()[:16]
            lines.append(f"{title}: weights {weights}")
            lines += source.text.splitlines()
    return lines


# --- placement with pinned costs ----------------------------------------------------------------------------------


def pinned_ms(key: str, backend: str, variant: str, flops: float, moved: float) -> float:
    """The pinned cost of a region: its work at typical speeds times 0.6 to 1.4, and 2 to 10 µs, as a hash draws."""
    draw = hashlib.sha256(f"{key} {backend} {variant}".encode()).digest()
    return (flops / 1e8 + moved / 1e7) * (0.6 + 0.8 * draw[0] / 255) + 0.002 + 0.008 * draw[1] / 255


def _placement(graph: Graph) -> list[str]:
    backends = [registry.get(name) for name in BACKENDS]
    kinds = {backend.name: backend.kind for backend in backends}
    found = find(graph, backends, Options().precision, slow_per_region=True)
    pool = [
        Candidate(
            region,
            way.backend,
            way.variant,
            pinned_ms(group.key, way.backend, way.variant, group.work.flops, group.work.bytes),
            group.key,
            kinds[way.backend],
        )
        for group in found.groups
        for way in group.ways
        for region in group.regions
    ]
    table = {(a, b): [(4096, 0.002), (1 << 20, 0.05)] for a in BACKENDS for b in BACKENDS if a != b}
    boundary, seen = BoundaryCosts(table), work_graph(graph)
    best = solve(seen, pool, boundary)
    lines = [f"exact {best.total_ms:.9f} bound {best.lower_bound_ms:.9f} {best.statistics.method}"]
    lines += [f"exact {c.region:x} {c.backend} {c.variant}" for c in best.choices]
    identities = Identities(graph)

    def measure(placements: list[MergedPlacement]) -> list[float | None]:
        return [sum(_merged(graph, identities, *region) for region in one) for one in placements]

    engines = dict.fromkeys((c.backend, c.variant) for c in pool)
    result = evolve(
        seen,
        best.choices,
        allowed=lambda region: [e for e in engines if found.claimed.get(e[0], 0) & region == region],
        measure=measure,
        predict=lambda placement: measure([placement])[0] or 0.0,
        mergeable=lambda candidate: kinds[candidate.backend] == "engine",
        options=EvolutionOptions(population=6, offspring=6, generations=4, seed=0),
    )
    lines.append(f"evolved {result.best.measured_ms:.9f} {result.stopped}")
    return lines + [f"evolved {region:x} {backend} {variant}" for region, backend, variant in result.best.placement]


def _merged(graph: Graph, identities: Identities, bits: int, backend: str, variant: str) -> float:
    region = Region(graph, bits)
    amount = work(region)
    singles = len(list(bitset.members(bits)))
    return pinned_ms(identities.key(region), backend, variant, amount.flops, amount.bytes) + 1e-4 * singles
