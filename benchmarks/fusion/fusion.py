"""How many kernels each tool makes of a network, and how many bytes ours move.

    python -m benchmarks.fusion.fusion --workload six,collage

Operators are those of the prepared graph (constants folded, batch norms as they stand). Counted are, for the native engine, its
fused kernels; for DNNFusion, the blocks of its plan, without and with what it decides by measuring (`benchmarks.fusion.dnnfusion`);
for ONNX Runtime, the nodes of its optimised graph at level all; for OpenVINO, the nodes of its execution graph
without parameters, results, and what depends on constants only; for Inductor, the calls in the code that it generates. Bytes
moved are what is read and written, weights included: by the operators one by one, and by the fused kernels. Intermediate
results are what lies in memory between two operators, or between two fused kernels, each tensor counted once.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx_ir as ir

from benchmarks.fusion.dnnfusion import blocks
from benchmarks.fusion.peer_kernels import PEERS
from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.backends.interface import RegionModel
from bricolage.device.caches import host_caches
from bricolage.frontends import to_model
from bricolage.graph.graph import Graph, describe
from bricolage.graph.inference import infer
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.native.cpu.target import fusion_target
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.ir.tensors import STORED_BYTES, Node


@dataclass(frozen=True)
class Row:
    """Counts of one network; None where the tool is not installed."""

    workload: str
    operators: int
    native: int
    dnnfusion: tuple[int, int]
    """Without and with what it decides by measuring."""
    onnxruntime: int | None
    openvino: int | None
    inductor: int | None
    mb_before: float
    mb_after: float
    between_before: float
    """Megabytes of intermediate results."""
    between_after: float


def count(name: str, inductor: bool = True) -> Row:
    """Compiles a workload with every tool and counts; `inductor` takes a minute or more on large networks."""
    graph = prepare(to_model(export(workloads()[name])), {})
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.share([graph.model])
        region = RegionModel(store.region(graph.everything, "all"))
        infer(region.model)
        origins: dict[Node, str] = {}
        planned = plan(*lower_region(region.model, origins), fusion_target(host_caches()))
        kernels = inspect_kernels(planned, origins, [0.0] * len(planned.kernels))
        moved = sum(
            describe(value).bytes
            for operator in graph.operators
            for value in (*operator.node.inputs, *operator.node.outputs)
            if value is not None
        )
        return Row(
            name,
            len(graph),
            len(kernels),
            (blocks(graph, yellow=False), blocks(graph, yellow=True)),
            PEERS["onnxruntime"](region, Path(folder)),
            PEERS["openvino"](region, Path(folder)),
            PEERS["inductor"](region, Path(folder)) if inductor else None,
            moved / 1e6,
            sum(kernel.bytes for kernel in kernels) / 1e6,
            sum(describe(value).bytes for value in _intermediate(graph)) / 1e6,
            sum(
                math.prod(target.shape) * STORED_BYTES[target.dtype]
                for kernel in planned.kernels
                for target in kernel.targets
                if target.storage[0] == "arena"
            )
            / 1e6,
        )


def _intermediate(graph: Graph) -> list[ir.Value]:
    """What operators hand to each other."""
    ends = set(graph.model.graph.outputs)
    return [value for operator in graph.operators for value in operator.outputs if value not in ends]


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| workload | operators | native | DNNFusion's plan | ONNX Runtime | OpenVINO | Inductor | MB moved one by one | fused "
        "| MB of intermediate results | fused |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        counts = " | ".join(
            "" if n is None else str(n)
            for n in (row.native, "{} to {}".format(*row.dnnfusion), row.onnxruntime, row.openvino, row.inductor)
        )
        moved = " | ".join(f"{mb:.1f}" for mb in (row.mb_before, row.mb_after, row.between_before, row.between_after))
        lines.append(f"| {row.workload} | {row.operators} | {counts} | {moved} |")
    return "\n".join(lines)


def main() -> int:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fusion.fusion", description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", default="all", help="names or families, separated by commas (all = the eleven)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = parser.parse_args()
    rows: list[Row] = []
    for name in select(given.workload.split(",")):
        rows.append(count(name))
        print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(json.dumps([asdict(row) for row in rows], indent=1) if given.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
