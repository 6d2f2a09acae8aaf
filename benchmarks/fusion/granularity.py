"""How finely kernels are cut into tasks: what other grains could gain, by arithmetic.

    python -m benchmarks.fusion.granularity [--threads 2,8] [--networks inception-v3,nasnet-a-large,squeezenet,bert-base]
    python -m benchmarks.fusion.granularity --orders [--measured] [--threads 2,4,8,16]

Rammer (Ma et al., OSDI 2020) chooses the size of its tasks so that a machine's units are busy. Here a kernel's loop is cut into
pieces, of which threads take their own and then each other's. For each network: its kernels, and what threads idle at the ends
of loops, as a share of all time, at three grains: whole kernels (one task each, and nothing meanwhile), the pieces of the rules
of thumb, and single iterations, which no grain of the same loops can beat. `meetings` is what meeting takes, at 0.4 µs, as a
share of all time at the processor's nominal peak; waves could spare at most so much. Nothing is measured.

`--orders` places all pieces on the threads: a barrier behind every loop, the engine's usual order, waves, and Rammer's lists, in
which a piece waits only for the kernels that it reads; as shares of the time with barriers, and below them what no order of the
pieces falls below. Kernels take what their rooflines say; with `--measured` what they take here on one thread, as
`bricolage explain --on-threads` has it, with memory shared and without. That wants a quiet machine.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native, instruction_set
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.threads import MEETING_MS
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.loop_orders import LoopOrders
from bricolage.native.module import generate, kernel_shares
from bricolage.native.select.algorithm import KernelRequest
from bricolage.work.implementation import KernelConfig
from bricolage.work.kernel_orders import KernelOrders

NETWORKS = "inception-v3,nasnet-a-large,squeezenet,bert-base"


@dataclass(frozen=True)
class Grain:
    """Idle time at the ends of loops as shares of all work: whole kernels, pieces, iterations; and what meetings take."""

    kernels: int
    whole: float
    pieces: float
    finest: float
    meetings: float


def idle(share: ParallelRange, pieces: int, threads: int) -> float:
    """Multiply-adds that threads could do while they wait for the last piece; pieces are taken in their order by who is free."""
    busy = [0] * threads
    for piece in range(pieces):
        first = min(range(threads), key=busy.__getitem__)
        busy[first] += share.count * (piece + 1) // pieces - share.count * piece // pieces
    return float((max(busy) * threads - share.count) * share.work)


@contextmanager
def region_of(name: str) -> Iterator[RegionModel]:
    """A whole network as one region."""
    with tempfile.TemporaryDirectory() as written:
        store = Store(Path(written))
        graph = prepare(to_model(export(workloads()[name])), {})
        store.share([graph.model])
        yield RegionModel(store.region(graph.everything, "all"))


def orders(name: str, threads: Sequence[int], measured: bool) -> Sequence[KernelOrders]:
    """Of a network."""
    device = host()
    with region_of(name) as region:
        if measured:
            return Native().simulate_orders(region, KernelConfig("f32"), Resources(2, device, alone=True), threads)
        target = CpuTarget(instruction_set(device), 2, host_caches())
        plan = plan_fused_kernels(region, target, FLOAT32, {}, strands=False, slices=False)
        floors = [device.threads * device.peaks.floor_ms(one.flops, one.bytes) for one in inspect_kernels(plan, {})]
        return [LoopOrders(plan, replace(target, threads=count), FLOAT32).compare(floors) for count in threads]


def grain(name: str, threads: int) -> Grain:
    """Of a network on so many threads."""
    with region_of(name) as region:
        target = CpuTarget(instruction_set(host()), threads, host_caches())
        plan = plan_fused_kernels(region, target, FLOAT32, {})
        requests = [KernelRequest(kernel, plan, target, FLOAT32) for kernel in plan.kernels]
        shares = [share for request in requests for share in kernel_shares(request)]
        met = generate(plan, target).meetings * MEETING_MS / 1e3
    work = float(sum(one.count * one.work for one in shares))

    def lost(pieces: Callable[[ParallelRange], int]) -> float:
        alone = sum(idle(one, max(1, pieces(one)), threads) for one in shares)
        return alone / (work + alone)

    device = host()
    seconds = 2.0 * work / (device.peaks.gflops * 1e9 * threads / max(1, len(device.cores)))
    return Grain(
        len(plan.kernels),
        lost(lambda _: 1),
        lost(lambda one: one.pieces(threads)),
        lost(lambda one: one.count),
        met / (met + seconds),
    )


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="2,8", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--networks", default=NETWORKS, type=lambda text: text.split(","))
    parser.add_argument("--orders", action="store_true", help="what each order of pieces takes")
    parser.add_argument("--measured", action="store_true", help="with --orders: by kernels' times here")
    given = parser.parse_args()
    names: Sequence[str] = given.networks
    if given.orders:
        print(
            "| network | threads | kernels | tasks | memory | barriers, ms | usual | waves | lists | no order below |"
        )
        print("|---|---:|---:|---:|---|---:|---:|---:|---:|---:|")
        for name in names:
            for found in orders(name, given.threads, given.measured):
                rest = (found.usual_ms, found.waves_ms, found.lists_ms, found.lower_ms)
                cells = " | ".join(f"{100 * ms / found.barriers_ms:.1f} %" for ms in rest)
                memory = "shared" if found.shared_memory else "free"
                counts = f"{found.threads} | {found.kernels} | {found.tasks}"
                print(f"| {name} | {counts} | {memory} | {found.barriers_ms:.3g} | {cells} |", flush=True)
        return
    print("| network | threads | kernels | idle: whole kernels | pieces | iterations | meetings |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in names:
        for threads in given.threads:
            found_grain = grain(name, threads)
            told = (
                f"{100 * part:.1f} %"
                for part in (found_grain.whole, found_grain.pieces, found_grain.finest, found_grain.meetings)
            )
            print(f"| {name} | {threads} | {found_grain.kernels} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
