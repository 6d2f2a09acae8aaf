"""How near each layer of a network in integers comes to the least time that its processor allows.

    python -m benchmarks.engine.integer_layers [--threads 1] [--network resnet-50] [--config f32] [--json]

Each row is a product of bytes of the file that ONNX Runtime's static quantiser makes of a network (QDQ), timed inside the network.
Its floor is the longer of two times: that of its multiplications, with rows in tiles of 16, k in steps of 64 and columns in
vectors of 16 as a matrix unit takes them, at the roof of the engine's own micro-kernel; and that of its bytes, weights at the
bandwidth from where all weights of the network lie, activations at that from the second-level cache. The bandwidths are those of
the threads reading as many bytes again and again. Groups sum up layers of one form.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.engine.integer_roof import quantised
from benchmarks.integers.networks import QUANTISABLES
from bricolage.backends.interface import FusedKernel, RegionModel, Resources
from bricolage.backends.native.engine import Native, instruction_set
from bricolage.device.device import Peaks
from bricolage.device.host import host
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.byte_products import byte_operand
from bricolage.native.cpu.peaks import measure
from bricolage.work.implementation import KernelConfig

_REPORTS = 7
"""Libraries that are timed, of which the fastest counts for each layer: each is a mean of some runs."""


@dataclass(frozen=True)
class Layer:
    """A product of bytes, with times in µs."""

    kernel: str
    group: str
    m: int
    n: int
    k: int
    macs: int
    padded_macs: int
    """Multiplications that a matrix unit does, those of padding included."""
    weight_bytes: int
    activation_bytes: int
    """Read and written, a residual stream included."""
    multiplying: float
    """At the roof."""
    moving: float
    """Bytes at their bandwidths."""
    measured: float

    @property
    def floor(self) -> float:
        """The longer of both."""
        return max(self.multiplying, self.moving)


def padded(m: int, n: int, k: int) -> int:
    """Multiplications of a product in whole tiles."""
    return math.prod(-(-size // whole) * whole for size, whole in ((m, 16), (n, 16), (k, 64)))


def layers(
    region: RegionModel, config: KernelConfig, resources: Resources, network: int, *, reports: int = _REPORTS
) -> tuple[list[Layer], dict[str, Peaks]]:
    """The products of bytes of a region whose weights take `network` bytes, and the peaks by where bytes come from."""
    isa, threads = instruction_set(host()), resources.threads
    found: dict[str, Peaks] = {}
    # Half of the second-level cache of each thread, and as many bytes as there are weights.
    for place, stream in (("L2", host().caches.l2_bytes // 2 * threads), ("weights", network)):
        peaks = measure(isa, Arithmetic(), threads, byte_operand(isa), stream)
        assert peaks is not None
        found[place] = peaks
    space = Native().space(region, config, resources)
    sizes = {int(own.rstrip(".")): task.sizes for task in space.tasks for own in task.kernels if own}
    made = [Native().kernel_report(region, config, resources).kernels for _ in range(reports)]
    best = [min(each, key=lambda one: one.ms or math.inf) for each in zip(*made, strict=True)]
    products = [(one, sizes[i]) for i, one in enumerate(best) if one.kind.endswith("of bytes") and i in sizes]
    return [_layer(one, size, found) for one, size in products], found


def _layer(kernel: FusedKernel, sizes: Mapping[str, int], peaks: dict[str, Peaks]) -> Layer:
    m, n, k, taps = (sizes[name] for name in ("m", "n", "k", "taps"))
    assert kernel.ms is not None
    weights = n * k
    activations = max(0, kernel.bytes - weights)
    multiplying = 2 * padded(m, n, k) / peaks["weights"].gflops / 1e3
    moving = weights / peaks["weights"].gbytes / 1e3 + activations / peaks["L2"].gbytes / 1e3
    side = math.isqrt(taps)
    form = f"{side}×{side}" if side * side == taps else f"{taps} taps"
    turn = "" if taps > 1 else " widening" if n > k else " narrowing"
    group = f"{form}{turn}, {'×'.join(map(str, kernel.shape[2:]))}" if kernel.shape[2:] else f"matrix, {m} rows"
    return Layer(
        kernel.name,
        group,
        m,
        n,
        k,
        m * n * k,
        padded(m, n, k),
        weights,
        activations,
        multiplying,
        moving,
        kernel.ms * 1e3,
    )


def table(rows: Sequence[Layer]) -> str:
    """Groups of layers and their sum."""
    lines = [
        "| layers | number | 10⁶ products | padded | weights, KiB | activations, KiB | multiplying, µs | moving, µs | floor, µs "
        "| measured, µs | floor over measured |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for group in (*dict.fromkeys(row.group for row in rows), "all"):
        own = [row for row in rows if group in (row.group, "all")]
        sums = np.array(
            [
                (
                    row.macs / 1e6,
                    row.padded_macs / 1e6,
                    row.weight_bytes / 1024,
                    row.activation_bytes / 1024,
                    row.multiplying,
                    row.moving,
                    row.floor,
                    row.measured,
                )
                for row in own
            ]
        ).sum(axis=0)
        lines.append(
            f"| {group} | {len(own)} | {' | '.join(f'{value:.0f}' for value in sums)} | {sums[-2] / sums[-1]:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Prints a table, or all layers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--network", default="resnet-50", choices=sorted(QUANTISABLES))
    parser.add_argument("--config", default="f32", help="of the native engine; all compute a quantised file alike")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = quantised(QUANTISABLES[given.network])
    weights = sum(one.const_value.nbytes for one in model.graph.initializers.values() if one.const_value is not None)
    with tempfile.TemporaryDirectory() as folder:
        store, graph = Store(Path(folder)), prepare(model, {})
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        rows, peaks = layers(region, KernelConfig(given.config), Resources(threads=given.threads, alone=True), weights)
    if given.json:
        own = {place: asdict(one) for place, one in peaks.items()}
        facts = {"device": host().model, "threads": given.threads, "weights": weights, "peaks": own}
        print(json.dumps({**facts, "rows": [{**asdict(row), "floor": row.floor} for row in rows]}, indent=2))
        return
    rates = f"{peaks['weights'].gbytes:.0f} GB/s over {weights >> 20} MiB of weights, {peaks['L2'].gbytes:.0f} from L2"
    print(f"{host().model}, {given.threads} threads, {peaks['weights'].gflops / 1e3:.1f} T operations/s, {rates}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
