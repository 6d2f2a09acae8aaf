"""How finely kernels are cut into tasks: what other grains could gain, by arithmetic.

    python -m benchmarks.fusion.granularity [--threads 2,8] [--networks inception-v3,nasnet-a-large,squeezenet,bert-base]
    python -m benchmarks.fusion.granularity --orders [--measured] [--threads 2,4,8,16]
    python -m benchmarks.fusion.granularity --capacities 1,1,0.5,0.5 --isa neon

Rammer (Ma et al., OSDI 2020) chooses the size of its tasks so that a machine's units are busy. Here a kernel's loop is cut into
pieces, of which threads take their own and then each other's. For each network: its kernels, and what threads idle at the ends
of loops, as a share of all time, at three grains: whole kernels (one task each, and nothing meanwhile), the pieces of the rules
of thumb, and single iterations, which no grain of the same loops can beat. `meetings` is what meeting takes, at 0.4 µs, as a
share of all time at the processor's nominal peak; waves could spare at most so much. Nothing is measured.

`--orders` places all pieces on the threads: a barrier behind every loop, the engine's usual order, waves, and Rammer's lists, in
which a piece waits only for the kernels that it reads; as shares of the time with barriers, and below them what no order of the
pieces falls below. Kernels take what their rooflines say; with `--measured` what they take here on one thread, as
`bricolage explain --on-threads` has it, with memory shared and without. That wants a quiet machine.

`--capacities` is for unequal cores, a thread on each: what they idle with the pieces of the rules of thumb, with the best number of
equal pieces that a tuner may choose, and with shares by capacity. Then the same where the slower half of the cores gives only half
of what its capacity says, being hot or busy, or where each thread is on the core of another, since none is bound to one.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import pairwise
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
from bricolage.native.cpu.isa import ISAS, Isa
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.threads import MEETING_MS
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.loop_orders import LoopOrders
from bricolage.native.module import generate, kernel_shares
from bricolage.native.select.algorithm import KernelRequest
from bricolage.work.implementation import KernelConfig
from bricolage.work.kernel_orders import KernelOrders

_TUNED = (1, 2, 4, 8, 16)
"""Pieces of a share that a tuner may choose (`native/select/algorithm_table.py`)."""
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


def equal_shares(share: ParallelRange, pieces: int, threads: int) -> list[list[int]]:
    """Iterations of the pieces of each thread's share, as the engine cuts them."""
    bounds = [share.count * piece // pieces for piece in range(pieces + 1)]
    sizes = [end - begin for begin, end in pairwise(bounds)]
    return [sizes[pieces * thread // threads : pieces * (thread + 1) // threads] for thread in range(threads)]


def capacity_shares(share: ParallelRange, pieces: int, capacities: Sequence[float]) -> list[list[int]]:
    """The same with as many pieces, where a thread's share is as large as its core's part of all capacities."""
    whole = sum(capacities)
    bounds = [round(share.count * sum(capacities[:thread]) / whole) for thread in range(len(capacities) + 1)]
    each = max(1, pieces // len(capacities))
    return [
        [(end - begin) * (piece + 1) // each - (end - begin) * piece // each for piece in range(each)]
        for begin, end in pairwise(bounds)
    ]


def idle_unequal(share: ParallelRange, sizes: Sequence[Sequence[int]], capacities: Sequence[float]) -> float:
    """Multiply-adds that cores could do while they wait for the last piece. As in `native/c/threads.h`, a thread takes the first
    piece of its share, and the last one of the next thread that has any left."""
    threads = len(capacities)
    left = [deque(pieces) for pieces in sizes]
    free = [(0.0, thread) for thread in range(threads)]
    end = 0.0
    while free:
        now, thread = heappop(free)
        owner = next((other % threads for other in range(thread, thread + threads) if left[other % threads]), None)
        if owner is None:
            continue
        piece = left[owner].popleft() if owner == thread else left[owner].pop()
        behind = now + piece / capacities[thread]
        end = max(end, behind)
        heappush(free, (behind, thread))
    return (end * sum(capacities) - share.count) * share.work


def unequal(name: str, isa: Isa, capacities: Sequence[float]) -> list[float]:
    """Idle parts of a network on unequal cores, for the columns of the table."""
    threads = len(capacities)
    shares = list_shares(name, isa, threads)
    work = float(sum(each.count * each.work for each in shares))
    slower = sorted(range(threads), key=capacities.__getitem__)[: threads // 2]
    slow = [capacity / 2 if thread in slower else capacity for thread, capacity in enumerate(capacities)]

    def usual(each: ParallelRange, cores: Sequence[float]) -> float:
        return idle_unequal(each, equal_shares(each, max(1, each.pieces(threads)), threads), cores)

    def tuned(each: ParallelRange, cores: Sequence[float]) -> float:
        return min(usual(replace(each, most=most), cores) for most in (None, *_TUNED))

    def by_capacity(each: ParallelRange, cores: Sequence[float]) -> float:
        return idle_unequal(each, capacity_shares(each, max(1, each.pieces(threads)), capacities), cores)

    def lost(idle_of: Callable[[ParallelRange, Sequence[float]], float], cores: Sequence[float]) -> float:
        alone = sum(idle_of(each, cores) for each in shares)
        return alone / (work + alone)

    cuts = (usual, tuned, by_capacity)
    elsewhere = capacities[::-1]
    return [lost(cut, cores) for cores in (capacities, slow, elsewhere) for cut in cuts]


def list_shares(name: str, isa: Isa, threads: int) -> list[ParallelRange]:
    """The loops of a network's kernels."""
    with region_of(name) as region:
        target = CpuTarget(isa, threads, host_caches())
        plan = plan_fused_kernels(region, target, FLOAT32, {})
        requests = [KernelRequest(kernel, plan, target, FLOAT32) for kernel in plan.kernels]
        return [share for request in requests for share in kernel_shares(request)]


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
    parser.add_argument("--capacities", type=lambda text: [float(part) for part in text.split(",")], help="of cores")
    parser.add_argument("--isa", choices=[isa.name for isa in ISAS], help="with --capacities; default: that of here")
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
    if given.capacities:
        _print_unequal(names, given.capacities, given.isa)
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


def _print_unequal(names: Sequence[str], capacities: Sequence[float], isa_name: str | None) -> None:
    isa = next((isa for isa in ISAS if isa.name == isa_name), None) or instruction_set(host())
    groups = ("as stated", "slower", "elsewhere")
    columns = [f"{group}: {cut}" for group in groups for cut in ("usual", "tuned", "by capacity")]
    print(f"| network | {' | '.join(columns)} |")
    print("|---" + "|---:" * len(columns) + "|")
    for name in names:
        parts = " | ".join(f"{100 * part:.1f} %" for part in unequal(name, isa, capacities))
        print(f"| {name} | {parts} |", flush=True)


if __name__ == "__main__":
    main()
