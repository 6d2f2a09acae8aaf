"""How many kernels each peer makes of a region. Counted are, for ONNX Runtime, the nodes of its optimised graph at level all; for
OpenVINO, the nodes of its execution graph without parameters, results, and what depends on constants only; for Inductor, the calls
in the code that it generates; for TVM, the calls of tensor programs after its fusion; for IREE, the dispatches of its program.
Views that cost nothing count for ONNX Runtime and OpenVINO, which have nodes for them, and for no one else.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.device.host import host
from bricolage.work.implementation import KernelConfig

_INDUCTOR_CALL = re.compile(
    r"^\s+(?:AOTI_TORCH_ERROR_CODE_CHECK\(aoti_torch_(?:cpu|mkldnn)_\w+|cpp_fused_\w+)\(", re.MULTILINE
)
_TVM_CALL = re.compile(r"R\.(?:call_tir(?:_inplace)?|call_dps_packed|call_pure_packed)\(")
_IREE_DISPATCH = re.compile(r"flow\.dispatch @")
_IREE_INITIALIZER = re.compile(r"^  util\.initializer.*?^  }$", re.MULTILINE | re.DOTALL)


def _count_onnxruntime(region: RegionModel, folder: Path) -> int | None:
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


def _count_openvino(region: RegionModel, folder: Path) -> int | None:
    if importlib.util.find_spec("openvino") is None:
        return None
    del folder
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


def _count_inductor(region: RegionModel, folder: Path) -> int | None:
    if importlib.util.find_spec("torch") is None:
        return None
    registry.get("inductor").compile(region, KernelConfig("f32"), Resources(threads=2, cache=folder))
    (package,) = folder.glob("inductor-*/*.pt2")
    with zipfile.ZipFile(package) as archive:
        wrappers = [name for name in archive.namelist() if name.endswith(".wrapper.cpp")]
        return sum(len(_INDUCTOR_CALL.findall(archive.read(name).decode())) for name in wrappers)


def _count_tvm(region: RegionModel, folder: Path) -> int | None:
    del folder
    if importlib.util.find_spec("tvm") is None:
        return None
    from tvm import relax

    from bricolage.backends.tvm import lower_module, tvm_target

    module = lower_module(region, tvm_target(2, host()))
    module = relax.transform.RewriteDataflowReshape()(module)
    return len(_TVM_CALL.findall(module["main"].script()))


def _count_iree(region: RegionModel, folder: Path) -> int | None:
    if importlib.util.find_spec("iree.compiler") is None:
        return None
    from iree.compiler.tools.binaries import find_tool

    from bricolage.backends.iree_compile import CONVOLUTIONS, OPTIONS, import_region, processor

    source, target = folder / "region.mlirbc", folder / "region.mlir"
    import_region(region, source)
    elided = ("--mlir-elide-elementsattrs-if-larger=8", "--mlir-elide-resource-strings-if-larger=8")
    options = (*OPTIONS, *CONVOLUTIONS["f32"], *processor(host()), *elided, "--compile-to=flow")
    subprocess.run(
        [find_tool("iree-compile"), str(source), "-o", str(target), *options], check=True, capture_output=True
    )
    return len(_IREE_DISPATCH.findall(_IREE_INITIALIZER.sub("", target.read_text())))


PEERS: Mapping[str, Callable[[RegionModel, Path], int | None]] = {
    "onnxruntime": _count_onnxruntime,
    "openvino": _count_openvino,
    "tvm": _count_tvm,
    "iree": _count_iree,
    "inductor": _count_inductor,
}
"""By name what counts a region's kernels, with a folder for its files; None where the tool is not installed."""
