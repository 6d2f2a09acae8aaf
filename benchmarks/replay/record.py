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
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import RegionModel
from bricolage.base.options import ISA_VARIABLE, Options
from bricolage.costs.models.measured_transfer import MeasuredTransferCosts
from bricolage.device.caches import Cache, Caches
from bricolage.device.device import Device, Peaks
from bricolage.driver.candidates import find_candidates
from bricolage.errors import Refused
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.isa import ISAS
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan
from bricolage.native.module import generate
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.search.placement.evolve import EvolutionOptions, evolve
from bricolage.search.placement.exact import solve
from bricolage.work.implementation import Assignment, Endpoint, Placement
from bricolage.work.placement import Candidate

BACKENDS = ("onnxruntime", "openvino", "torch", "native", "inductor", "xla", "tvm", "iree")
_THREADS = 2
_CACHES = Caches((Cache(1, 48 << 10), Cache(2, 1 << 20)))
DEVICE = Device(
    "cpu", "cpu", "described", frozenset({"avx2", "fma"}), (0, 1), 2, 16 << 30, Peaks(100.0, 10.0), _CACHES, isa="avx2"
)
"""What candidates and C are for: described, so that nothing depends on the machine."""
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
        store = Store(Path(folder))
        store.share([graph.model])
        key = Identities(graph).key(graph.everything)
        region = RegionModel(store.region(graph.everything, key))
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
        found = find_candidates(
            graph, [registry.get(n) for n in BACKENDS], Options().precision, DEVICE, slow_per_region=slow
        )
        lines += [f"{slow} whole {way.backend} {way.config}" for way in found.whole]
        lines += [f"{slow} segment {bits:x}" for bits in found.segments]
        for group in found.groups:
            regions = ",".join(f"{bits:x}" for bits in group.regions)
            ways = ",".join(f"{way.backend} {way.config}" for way in group.implementations)
            lines.append(f"{slow} {group.level} {group.key} [{regions}] {ways} {group.work.flops} {group.work.bytes}")
    return lines


def _rewrites(graph: Graph) -> list[str]:
    model = graph.model.clone()
    lines = [f"{one.rule}: {', '.join(one.removed)} -> {', '.join(one.added)}" for one in rewrite(model, rules())]
    return lines + _graph(prepare(model, {}))


def _fusion(region: RegionModel) -> list[str]:
    found = plan_fused_kernels(region, _target("avx2"), FLOAT32, {})
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
                plan = plan_fused_kernels(region, _target(name), arithmetic, {})
            except Refused as error:
                lines.append(f"{title}: {error.sentence}")
                continue
            source = generate(plan, _target(name), arithmetic)
            weights = hashlib.sha256(source.weights.tobytes()).hexdigest()[:16]
            lines.append(f"{title}: weights {weights}")
            lines += source.text.splitlines()
    return lines


# --- placement with pinned costs ----------------------------------------------------------------------------------


def pinned_ms(key: str, backend: str, config: str, flops: float, moved: float) -> float:
    """The pinned cost of a region: its work at typical speeds times 0.6 to 1.4, and 2 to 10 µs, as a hash draws."""
    draw = hashlib.sha256(f"{key} {backend} {config}".encode()).digest()
    return (flops / 1e8 + moved / 1e7) * (0.6 + 0.8 * draw[0] / 255) + 0.002 + 0.008 * draw[1] / 255


def _placement(graph: Graph) -> list[str]:
    backends = [registry.get(name) for name in BACKENDS]
    merges = {backend.name: backend.kind == "engine" for backend in backends}
    found = find_candidates(graph, backends, Options().precision, DEVICE, slow_per_region=True)
    pool = [
        Candidate(
            region,
            one,
            pinned_ms(group.key, one.backend, str(one.config), group.work.flops, group.work.bytes),
            group.key,
            merges[one.backend],
        )
        for group in found.groups
        for one in group.implementations
        for region in group.regions
    ]
    ends = [Endpoint(name) for name in BACKENDS]
    table = {(a, b): [(4096, 0.002), (1 << 20, 0.05)] for a in ends for b in ends if a != b}
    transfers, seen = MeasuredTransferCosts(table), to_work(graph)
    best = solve(seen, pool, transfers)
    lines = [f"exact {best.total_ms:.9f} bound {best.lower_bound_ms:.9f} {best.statistics.method}"]
    lines += [f"exact {c.region:x} {c.implementation}" for c in best.choices]
    identities = Identities(graph)

    def measure(placements: list[Placement]) -> list[float | None]:
        return [sum(_merged(graph, identities, one) for one in placement) for placement in placements]

    engines = dict.fromkeys(c.implementation for c in pool if c.merges)
    result = evolve(
        seen,
        best.choices,
        allowed=lambda region: [e for e in engines if found.claimed.get(e.backend, 0) & region == region],
        measure=measure,
        predict=lambda placement: measure([placement])[0] or 0.0,
        options=EvolutionOptions(population=6, offspring=6, generations=4, seed=0),
    )
    lines.append(f"evolved {result.best.measured_ms:.9f} {result.stopped}")
    return lines + [f"evolved {one.region:x} {one.implementation}" for one in result.best.placement]


def _merged(graph: Graph, identities: Identities, one: Assignment) -> float:
    region, backend = Region(graph, one.region), one.implementation.backend
    amount, count = workload(region), one.region.bit_count()
    key, config = identities.key(region), str(one.implementation.config)
    return pinned_ms(key, backend, config, amount.flops, amount.bytes) + 1e-4 * count
