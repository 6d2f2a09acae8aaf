"""One network under several fusion plans, in the native engine: kernels, bytes, repeated work, and time.

    python -m benchmarks.fusion.fusion_plans --workload six,collage --time

Plans are: every operator alone; the seed-grown plan of DNNFusion (`benchmarks.fusion.dnnfusion`, with all that the paper decides by
measuring fused); the engine's rules of thumb; and its search, which is what it uses. All four are run by the same code: a border
between two operators means that what crosses it is stored, views too. Bytes and repeated elements are those of
`native.fuse.memory_cost`; "model" is its price of what fusion changes (no arithmetic of products), for one thread. With `--time`
the libraries of a network take turns, and the median of their calls is printed, with its ratio to the rules' of the same
rounds. With `--layouts` the searched plan is made twice more: with channels last only where a block's dominant operator is a
convolution (DNNFusion, section 4.4.2), and with rows in ONNX's order everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.fusion.dnnfusion import partition
from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import instruction_set
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.base.options import available_cores
from bricolage.device.buffers import allocate_aligned
from bricolage.device.caches import host_caches
from bricolage.device.host import host
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.graph.inference import infer
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.build import write_library
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.target import CpuTarget, fusion_target
from bricolage.native.fuse.channels_last import Layout
from bricolage.native.fuse.fusion import Blocks, Strategy, plan
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.fuse.memory_cost import KernelCosts
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.tensors import Node
from bricolage.native.module import generate

USUAL = "rules"


@dataclass(frozen=True)
class Row:
    """One network under one plan."""

    workload: str
    plan: str
    kernels: int
    mb: float
    """Read and written, in 10⁶ bytes."""
    again: int
    """Elements that are computed although they have been computed before."""
    model_ms: float
    planning_ms: float
    ms: float | None = None
    """Median of a call."""
    ratio: float | None = None
    """Median over the rounds of this plan's time by that of the rules."""


def strategies(graph: Graph, origins: Mapping[Node, str]) -> dict[str, Strategy]:
    """Plans by name; `origins` gives the number of each node's operator, as text."""
    grown = partition(graph, yellow=True)
    numbers = {node: int(name) for node, name in origins.items()}
    return {
        "one by one": Blocks(numbers),
        "seed-grown": Blocks({node: grown[number] for node, number in numbers.items()}),
        USUAL: "rules",
        "searched": "searched",
    }


LAYOUTS: tuple[Layout, ...] = ("dominant", "rows")


def compare(name: str, rounds: int, threads: int, layouts: bool = False) -> list[Row]:
    """All plans of a workload, with `layouts` the searched one in other layouts too; timed in so many rounds, if any."""
    graph = prepare(to_model(export(workloads()[name])), {})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        infer(region.model)
        for number, (node, operator) in enumerate(zip(region.model.graph, graph.operators, strict=True)):
            assert node.op_type == operator.op_type
            node.name = str(number)
        origins: dict[Node, str] = {}
        ends = lower_region(region.model, origins)
        rows: dict[str, Row] = {}
        plans: dict[str, FusionPlan] = {}
        ways: dict[str, tuple[Strategy, Layout]] = {
            kind: (strategy, "channels last") for kind, strategy in strategies(graph, origins).items()
        }
        ways |= {f"layout: {layout}": ("searched", layout) for layout in LAYOUTS if layouts}
        for kind, (strategy, layout) in ways.items():
            start = time.perf_counter()
            plans[kind] = plan(*ends, fusion_target(host_caches()), strategy=strategy, layout=layout)
            planning = (time.perf_counter() - start) * 1e3
            spent = KernelCosts(host_caches().l2_bytes).plan(plans[kind])
            rows[kind] = Row(
                name, kind, spent.kernels, spent.bytes / 1e6, spent.recomputed, spent.nanoseconds / 1e6, planning
            )
        if rounds:
            times = time_plans(region, plans, Path(folder), rounds, threads)
            for kind, row in rows.items():
                ratio = float(np.median(times[kind] / times[USUAL]))
                rows[kind] = Row(**{**asdict(row), "ms": float(np.median(times[kind])), "ratio": ratio})
        return list(rows.values())


def time_plans(
    region: RegionModel, plans: Mapping[str, FusionPlan], folder: Path, rounds: int, threads: int
) -> dict[str, np.ndarray]:
    """Milliseconds of a call under each plan, in rounds in which they take turns. Equal libraries are built once."""
    machine, resources = CpuTarget(instruction_set(host()), threads), Resources(threads=threads)
    built: dict[str, Callable[[], object]] = {}
    calls: dict[str, Callable[[], object]] = {}
    draw = np.random.default_rng(0)
    for number, (kind, made) in enumerate(plans.items()):
        source = generate(made, machine, FLOAT32)
        if source.text not in built:
            target = folder / str(number)
            target.mkdir()
            write_library(source, machine.isa, FLOAT32, target)
            kernel = NativeKernel(region, target, resources)
            inputs, outputs = (
                [allocate_aligned(i.sizes, i.numpy) for i in infos] for infos in (kernel.inputs, kernel.outputs)
            )
            for array in inputs:
                array[...] = draw.standard_normal(array.shape) if array.dtype.kind == "f" else 0
            built[source.text] = kernel.bind(inputs, outputs)
            built[source.text]()
        calls[kind] = built[source.text]
    found: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(rounds):
        for kind, call in calls.items():
            start = time.perf_counter()
            call()
            found[kind].append((time.perf_counter() - start) * 1e3)
    return {kind: np.array(times) for kind, times in found.items()}


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| workload | plan | kernels | MB moved | elements computed again | model ms | planning ms | measured ms | to rules |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        measured = ["" if value is None else f"{value:.3f}" for value in (row.ms, row.ratio)]
        lines.append(
            f"| {row.workload} | {row.plan} | {row.kernels} | {row.mb:.1f} | {row.again} | {row.model_ms:.3f} "
            f"| {row.planning_ms:.0f} | {measured[0]} | {measured[1]} |"
        )
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fusion.fusion_plans", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--workload", default="all", help="names or families, separated by commas (all = the eleven)")
    parser.add_argument("--time", action="store_true", help="measure calls, too")
    parser.add_argument("--layouts", action="store_true", help="other layouts of images than channels last, too")
    parser.add_argument("--rounds", type=int, default=30, help="calls of each plan (default 30)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="default: all cores")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in select(given.workload.split(",")):
        rows += compare(name, given.rounds if given.time else 0, given.threads, given.layouts)
        print("\n".join(table(rows[-(6 if given.layouts else 4) :]).splitlines()[2:]), file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
