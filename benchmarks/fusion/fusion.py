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
import importlib.util
import json
import math
import re
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx
import onnx_ir as ir

from benchmarks.fusion.dnnfusion import blocks
from benchmarks.latency import select
from benchmarks.workloads import export, workloads
from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
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
from bricolage.work.implementation import KernelConfig

_INDUCTOR_CALL = re.compile(
    r"^\s+(?:AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_(?:cpu|mkldnn)_\w+|cpp_fused_\w+)\(", re.MULTILINE
)


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
            _onnxruntime(region, Path(folder)),
            _openvino(region),
            _inductor(region, Path(folder)) if inductor else None,
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


def _onnxruntime(region: RegionModel, folder: Path) -> int | None:
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimised.bin")
    options.log_severity_level = 3
    ort.InferenceSession(str(region.path), options, providers=["CPUExecutionProvider"])
    return len(onnx.load(folder / "optimised.onnx", load_external_data=False).graph.node)


def _openvino(region: RegionModel) -> int | None:
    if importlib.util.find_spec("openvino") is None:
        return None
    from bricolage.backends.openvino_kernel import load_openvino

    compiled = load_openvino().Core().compile_model(str(region.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    constant: set[str] = set()
    executed = 0
    for node in compiled.get_runtime_model().get_ordered_ops():
        kind, name = node.get_rt_info()["layerType"].astype(str), node.get_friendly_name()
        sources = [source.get_source_output().get_node().get_friendly_name() for source in node.inputs()]
        if kind in ("Const", "Constant") or (sources and constant.issuperset(sources)):
            constant.add(name)
        elif kind not in ("Input", "Parameter", "Output", "Result"):
            executed += 1
    return executed


def _inductor(region: RegionModel, folder: Path) -> int | None:
    if importlib.util.find_spec("torch") is None:
        return None
    registry.get("inductor").compile(region, KernelConfig("f32"), Resources(threads=2, cache=folder))
    (package,) = folder.glob("inductor-*/*.pt2")
    with zipfile.ZipFile(package) as archive:
        wrappers = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return sum(len(_INDUCTOR_CALL.findall(archive.read(name).decode())) for name in wrappers)


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
