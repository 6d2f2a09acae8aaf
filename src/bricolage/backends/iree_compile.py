"""From a region to an IREE program: torch-mlir's ONNX importer, then the compiler in a child process."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bricolage.backends.content import load_proto
from bricolage.backends.interface import RegionModel
from bricolage.backends.isa_limits import llvm_target
from bricolage.device.device import Device
from bricolage.errors import BackendFailed, Refused
from bricolage.work.implementation import Scalar

STACK_BYTES = 2 << 20
"""Of a thread that runs a program, at least; half of it is for what the program keeps there."""
OPTIONS = (
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-demote-f64-to-f32=false",  # what is float64 in the model stays so
    "--iree-opt-level=O3",
    f"--iree-llvmcpu-stack-allocation-limit={STACK_BYTES // 2}",  # 32 KiB is too little for a LayerNormalization of 768
    "--iree-opt-data-tiling",  # packs the constant side of matrix products: twice as fast as without
)
_IM2COL = "--iree-global-opt-use-im2col-for-convs"
_CHANNELS_LAST, _TO_BF16 = (
    "iree-preprocessing-convert-conv-to-channels-last",
    "iree-global-opt-demote-contraction-inputs{type=bf16 operation=all}",
)


def _first(*passes: str) -> str:
    """What tells the compiler to begin with these passes. That into bfloat16 has an option of its own, which comes after products
    have become loops that the pass does not know (3.13)."""
    return f"--iree-preprocessing-pass-pipeline=builtin.module(util.func({','.join(passes)}))"


CONVOLUTIONS = {"f32": (_IM2COL,), "f32-channels-last": (_first(_CHANNELS_LAST),)}
"""Two ways with convolutions, and what the compiler is told for each: as matrix products, which is even over all shapes; or
direct with channels last, which is up to 1.7 times as fast on large images and up to 4 times as slow on small ones."""
IN_BF16 = {"bf16": (_IM2COL, _first(_TO_BF16)), "bf16-channels-last": (_first(_CHANNELS_LAST, _TO_BF16),)}
"""The same with what convolutions and products multiply rounded to bfloat16; they add up in float32."""
TUNED: Mapping[str, tuple[Scalar, ...]] = {
    "iree-opt-data-tiling": (False,),
    "iree-llvmcpu-enable-ukernels": ("none", "all"),
    "iree-dispatch-creation-enable-aggressive-fusion": (True,),
    "iree-llvmcpu-target-vector-width-in-bytes": (16, 32, 64),
    "iree-llvmcpu-distribution-size": (16, 32, 128, 256),
    "iree-opt-aggressively-propagate-transposes": (True,),
}
"""Options of the compiler that a tuner may choose, and their values other than the default ones."""
ENTRY = "region"
"""Name of the program's only function."""
_TITLE = "IREE"


def processor(device: Device) -> tuple[str, ...]:
    """What the compiler is told about the processor."""
    target = llvm_target(device)
    return f"--iree-llvmcpu-target-cpu={target.cpu}", f"--iree-llvmcpu-target-cpu-features={','.join(target.features)}"


def compile_in_child(region: RegionModel, program: Path, options: Sequence[str]) -> None:
    """Compiles in a child process: the compiler's assertions then end the child, and its diagnostics can be read."""
    from iree.compiler.tools.binaries import find_tool

    source = program.with_suffix(".mlirbc")
    try:
        import_region(region, source)
        command = [find_tool("iree-compile"), str(source), "-o", str(program), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")
    finally:
        source.unlink(missing_ok=True)
    if done.returncode < 0 or (done.returncode > 0 and "error:" not in done.stderr):
        raise BackendFailed(
            backend=_TITLE, stage="compiling", reason=_reason(done.stderr) or f"signal {-done.returncode}"
        )
    if done.returncode:
        raise Refused(backend=_TITLE, reason=_reason(done.stderr))


def _reason(text: str) -> str:
    """The first error of the compiler's diagnostics."""
    diagnostic = re.search(r"error: (.+)", text)
    lines = diagnostic.group(1) if diagnostic else next((line for line in text.splitlines() if line.strip()), "")
    return " ".join(lines.split())[:300]


def import_region(region: RegionModel, target: Path) -> None:
    """Writes the region as MLIR bytecode: a function of inputs and outputs that overwrites the outputs.

    Raises:
        Refused: the importer does not know something in the model.
    """
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    proto = load_proto(region)
    proto.graph.name = ENTRY
    try:
        information = onnx_importer.ModelInfo(proto)
        with ir.Context() as context, ir.Location.unknown():
            module = information.create_module(context=context)
            onnx_importer.NodeImporter.define_function(information.main_graph, module.operation).import_all()
            for operation in module.body.operations:
                if operation.operation.name == "func.func" and operation.name.value == ENTRY:
                    _return_in_place(operation.operation)
            module.operation.verify()
            with target.open("wb") as file:
                module.operation.write_bytecode(file)
    except OSError:
        raise
    except Exception as error:
        raise Refused(backend=_TITLE, reason=_reason(f"error: {error}") or type(error).__name__) from error


def _return_in_place(function: Any) -> None:
    """Turns results into trailing arguments whose contents are overwritten (torch-mlir's mutable tensors)."""
    from iree.compiler import ir

    block = function.regions[0].blocks[0]
    *_, final = block.operations
    for value in list(final.operation.operands):
        mutable = ir.Type.parse(str(value.type).replace("!torch.vtensor", "!torch.tensor"))
        target = block.add_argument(mutable, ir.Location.unknown())
        with ir.InsertionPoint(final):
            ir.Operation.create("torch.overwrite.tensor.contents", operands=[value, target])
    with ir.InsertionPoint(final):
        ir.Operation.create("func.return")
    final.operation.erase()
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], [])
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
