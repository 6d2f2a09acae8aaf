"""IREE: ahead-of-time compilation with MLIR (torch-mlir's ONNX importer, the `llvm-cpu` target, a small VM at run time).

Weights are compiled in, so that data tiling packs them once. Outputs are extra arguments that the program overwrites, so
inputs and outputs are the caller's own memory and a call makes no copy.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key, load_proto
from bricolage.backends.interface import Backend, Claim, Kind, Missing, RegionModel, Resources, Status, installed
from bricolage.errors import BackendFailed, Refused
from bricolage.runtime.buffers import aligned
from bricolage.runtime.kernel import Array, Call, Kernel

_OPTIONS = (
    "--iree-input-type=onnx",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",  # what is float64 in the model stays so
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling",  # packs the constant side of matrix products: twice as fast as without
    # Convolutions vectorise over channels only when those come last: 2 to 4 times as fast as in ONNX's order.
    "--iree-preprocessing-pass-pipeline=builtin.module(util.func(iree-preprocessing-convert-conv-to-channels-last))",
)
_ENTRY = "region"
_ELEMENTS = {
    "bool": "BOOL_8",
    "int8": "SINT_8",
    "int16": "SINT_16",
    "int32": "SINT_32",
    "int64": "SINT_64",
    "uint8": "UINT_8",
    "uint16": "UINT_16",
    "uint32": "UINT_32",
    "uint64": "UINT_64",
    "float16": "FLOAT_16",
    "bfloat16": "BFLOAT_16",
    "float32": "FLOAT_32",
    "float64": "FLOAT_64",
}


class Iree(Backend):
    """Regions of static shape. The threads of the first kernel decide for the process: IREE's executor is made once."""

    name: ClassVar[str] = "iree"
    title: ClassVar[str] = "IREE"
    kind: ClassVar[Kind] = "engine"
    compiles_slowly: ClassVar[bool] = True

    def status(self) -> Status:
        compiler = installed("iree-base-compiler", "iree.compiler", "iree")
        runtime = installed("iree-base-runtime", "iree.runtime", "iree")
        return compiler if isinstance(compiler, Missing) else runtime

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self.name)

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        if not all(info.static for info in (*region.inputs, *region.outputs)):
            raise Refused(backend=self.title, reason="shapes must be known before running")
        for info in (*region.inputs, *region.outputs):
            if info.numpy.name not in _ELEMENTS:
                raise Refused(backend=self.title, reason=f"element type of {info}")
            if info.elements == 0:
                raise Refused(backend=self.title, reason=f"{info.name} is empty")
        options = (*_OPTIONS, f"--iree-llvmcpu-number-of-threads={resources.threads}")
        if resources.cache is None:
            with tempfile.TemporaryDirectory() as folder:
                program = Path(folder) / "region.vmfb"
                _build(region, program, options)
                return _IreeKernel(region, program, resources)  # mapped: may be unlinked afterwards
        program = resources.cache / f"iree-{content_key(region, variant, *options)}.vmfb"
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            partial = program.with_suffix(f".{os.getpid()}.partial")
            try:
                _build(region, partial, options)
                partial.replace(program)
            finally:
                partial.unlink(missing_ok=True)
        return _IreeKernel(region, program, resources)


def _build(region: RegionModel, program: Path, options: Sequence[str]) -> None:
    """Compiles in a child process: the compiler's assertions then end the child, and its diagnostics can be read."""
    from iree.compiler.tools.binaries import find_tool

    source = program.with_suffix(".mlirbc")
    try:
        _import(region, source)
        command = [find_tool("iree-compile"), str(source), "-o", str(program), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        source.unlink(missing_ok=True)
    if done.returncode < 0 or (done.returncode > 0 and "error:" not in done.stderr):
        raise BackendFailed(backend=Iree.title, stage="compiling", reason=_reason(done.stderr) or f"signal {-done.returncode}")
    if done.returncode:
        raise Refused(backend=Iree.title, reason=_reason(done.stderr))


def _reason(text: str) -> str:
    """The first error of the compiler's diagnostics."""
    found = re.search(r"error: (.+)", text)
    lines = found.group(1) if found else next((line for line in text.splitlines() if line.strip()), "")
    return " ".join(lines.split())[:300]


def _import(region: RegionModel, target: Path) -> None:
    """Writes the region as MLIR bytecode: a function of inputs and outputs that overwrites the outputs.

    Raises:
        Refused: the importer does not know something in the model.
    """
    from iree.compiler import ir
    from iree.compiler.extras import onnx_importer

    proto = load_proto(region)
    proto.graph.name = _ENTRY
    try:
        information = onnx_importer.ModelInfo(proto)
        with ir.Context() as context, ir.Location.unknown():
            module = information.create_module(context=context)
            onnx_importer.NodeImporter.define_function(information.main_graph, module.operation).import_all()
            for operation in module.body.operations:
                if operation.operation.name == "func.func" and operation.name.value == _ENTRY:
                    _return_in_place(operation.operation)
            module.operation.verify()
            with target.open("wb") as file:
                module.operation.write_bytecode(file)
    except OSError:
        raise
    except Exception as error:
        raise Refused(backend=Iree.title, reason=_reason(f"error: {error}") or type(error).__name__) from error


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


@cache
def _device(threads: int, alone: bool) -> Any:
    """`local-sync` runs in the caller's thread; `local-task` has its own workers, which must not spin beside others."""
    import iree.runtime as rt

    if threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    rt.flags.parse_flags(f"--task_topology_group_count={threads}", f"--task_worker_spin_us={100 if alone else 0}")
    return rt.get_driver("local-task").create_default_device()


class _IreeKernel(Kernel):
    def __init__(self, region: RegionModel, program: Path, resources: Resources) -> None:
        import iree.runtime as rt

        self._device = _device(resources.threads, resources.alone)
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(program))
        self._context = rt.VmContext(instance, [rt.create_hal_module(instance, self._device), module])
        self._function = module.lookup_function(_ENTRY)
        self._outputs = [(info.sizes, info.numpy) for info in region.outputs]
        self._inputs = [(info.sizes, info.numpy) for info in region.inputs]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        import iree.runtime as rt

        arguments, nothing = rt.VmVariantList(len(inputs) + len(outputs)), rt.VmVariantList(0)
        for array in (*inputs, *outputs):
            arguments.push_ref(self._view(array).ref)
        invoke, function = self._context.invoke, self._function

        def call() -> None:
            invoke(function, arguments, nothing)

        return call

    def run(self, inputs: Sequence[object]) -> list[object]:
        given = [aligned(sizes, kind) for sizes, kind in self._inputs]
        for target, value in zip(given, inputs, strict=True):
            if np.shape(value) != target.shape:
                raise Refused(backend=Iree.title, reason=f"compiled for the shape {target.shape}, got {np.shape(value)}")
            target[...] = value
        results = [aligned(sizes, kind) for sizes, kind in self._outputs]
        self.bind(given, results)()
        return list(results)

    def _view(self, array: Array) -> Any:
        """The caller's memory as a buffer of the device."""
        import iree.runtime as rt

        kind = getattr(rt.HalElementType, _ELEMENTS[array.dtype.name])
        buffer = self._device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8),  # bfloat16 has no buffer protocol
            rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE,
            rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
        )
        return rt.HalBufferView(buffer, array.shape, kind)
