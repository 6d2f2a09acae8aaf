"""What joining a pooling with the convolution before it could save at most: `python -m benchmarks.fusion.pooling_bound [NAME …]`.

The native engine stores what a convolution makes and pools it in a kernel of its own. A kernel of both would save the start of
one kernel, and writing and reading what lies between. For each network: its kernels, those left if every reduction that alone
reads a convolution's result, or that a pointwise convolution alone reads, were joined with it, and what that saves by the
planner's model of memory (`native.fuse.memory_cost`), as a share of what the model says of all kernels and of the arithmetic of
the products at a core's nominal peak, one thread. Nothing is timed; that moving never overlaps with arithmetic, and that the
joined kernel multiplies as fast, are assumed in favour of joining.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.inference import infer
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.joined_roots import is_pointwise
from bricolage.native.fuse.kernel_plan import FusionPlan, kernel_reads
from bricolage.native.fuse.memory_cost import KernelCosts
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.tensors import Conv, MatMul, Reduce

NETWORKS = ("vgg16", "c3d", "s3d", "efficientnet-b0")
_START_NS = 3200.0
"""As the model of memory has it."""
_WORD = 4


@dataclass(frozen=True)
class Row:
    """One network. Milliseconds of one thread by the model."""

    network: str
    kernels: int
    joined: int
    """Kernels that are left where each such reduction is joined."""
    between_mb: float
    """Written and read again in between."""
    saved_ms: float
    moving_ms: float
    arithmetic_ms: float
    saved: float
    """The share of moving and arithmetic together."""


def bound(name: str) -> Row:
    """The most that joining could save on a network."""
    graph = prepare(to_model(export(workloads()[name])), {})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        infer(region.model)
        found = plan(*lower_region(region.model, {}), fusion_target(host_caches()))
    costs = KernelCosts(host_caches().l2_bytes)
    saved_ns, between, count = _joined(found, costs)
    moving = costs.plan(found).nanoseconds / 1e6
    gflops = host().peaks.gflops / max(1, len(host().cores))
    arithmetic = sum(_multiplications(kernel.root) for kernel in found.kernels) * 2e-6 / gflops
    return Row(
        name,
        len(found.kernels),
        len(found.kernels) - count,
        between / 1e6,
        saved_ns / 1e6,
        moving,
        arithmetic,
        saved_ns / 1e6 / (moving + arithmetic),
    )


def _joined(found: FusionPlan, costs: KernelCosts) -> tuple[float, int, int]:
    """Nanoseconds and bytes that joining saves, and how many kernels."""
    made = {buffer: kernel for kernel in found.kernels for buffer in kernel.targets}
    readers: dict[object, int] = {}
    for kernel in found.kernels:
        for buffer in kernel_reads(kernel, found):
            readers[buffer] = readers.get(buffer, 0) + 1
    saved, moved, count = 0.0, 0, 0
    for kernel in found.kernels:
        if not isinstance(kernel.root, Reduce):
            continue
        sources = [buffer for buffer in kernel_reads(kernel, found) if buffer in made]
        before = len(sources) == 1 and readers[sources[0]] == 1 and isinstance(made[sources[0]].root, Conv)
        behind = [other.root for other in found.kernels if kernel.target in kernel_reads(other, found)]
        if before:
            node = made[sources[0]].result
        elif len(behind) == 1 and isinstance(behind[0], Conv) and is_pointwise(behind[0]):
            node = kernel.result
        else:
            continue
        saved += _START_NS + 2 * costs.move(node, node.elements, _WORD)
        moved, count = moved + 2 * _WORD * node.elements, count + 1
    return saved, moved, count


def _multiplications(root: object) -> int:
    if isinstance(root, Conv):
        return root.elements * math.prod(root.weight.shape[1:])
    return root.elements * root.left.shape[-1] if isinstance(root, MatMul) else 0


def main() -> None:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NETWORKS, metavar="NAME", help="workloads")
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    if not given.json:
        print("| network | kernels | joined | MB between | saved ms | moving ms | arithmetic ms | saved |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in given.names:
        row = bound(name)
        if given.json:
            print(json.dumps(asdict(row)))
        else:
            numbers = [f"{x:.2f}" for x in (row.between_mb, row.saved_ms, row.moving_ms, row.arithmetic_ms)]
            print(f"| {' | '.join([name, str(row.kernels), str(row.joined), *numbers, f'{row.saved:.1%}'])} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
