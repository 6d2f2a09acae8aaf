"""TVM: Relax programs compiled for this processor with LLVM, scheduled by rules of thumb (`tvm_schedule`) or as a search of ours
has chosen (`tvm_tuning`). TVM's own search, `tune_relax` of 0.27, ends in a segmentation fault with apache-tvm-ffi 0.1.15.post2,
where a context makes the default rules; with 0.1.14.post1 it runs. Its default cost model needs xgboost, its workers cloudpickle
and psutil, which TVM does not bring along. Its pass for mixed precision knows float16 alone, so there is no configuration in
bfloat16.
"""

from __future__ import annotations

import ctypes
import logging
import subprocess
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bricolage.backends import tvm_threads
from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key, load_proto
from bricolage.backends.interface import (
    Backend,
    Claim,
    Kind,
    RegionModel,
    Resources,
    Status,
    Travels,
    Trials,
    installed,
    require_static,
)
from bricolage.backends.isa_limits import llvm_target
from bricolage.backends.kernel import Array, Call, Kernel, StaticKernel
from bricolage.backends.tvm_rewrite import explicit_statistics, outputs_given, put_channels_last, rewrite_module
from bricolage.backends.tvm_schedule import schedule_module
from bricolage.backends.tvm_tuning import TvmTrials, parse_choice, tasks
from bricolage.base import sealed
from bricolage.device.device import Device
from bricolage.errors import Refused
from bricolage.native.cpu.toolchain import compiler
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig, Team

_LOG = logging.getLogger(__name__)
_LIBRARY = "region.so"
_SIZES = (8, 16, 32, 64)
_ELEMENTS = frozenset(
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in _SIZES]
)

if TYPE_CHECKING:
    from tvm import IRModule
    from tvm.runtime import Executable, Tensor
    from tvm.target import Target


class Tvm(Backend):
    """Regions of static shape."""

    name: ClassVar[str] = "tvm"
    title: ClassVar[str] = "TVM"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    compiles_slowly: ClassVar[bool] = True
    travels: ClassVar[Travels] = "alike"
    tunable: ClassVar[bool] = True
    gains_by_tuning: ClassVar[float] = 2.0
    teams: ClassVar[tuple[Team, ...]] = ("one-thread", "waiting")

    def status(self) -> Status:
        return installed("apache-tvm", "tvm", "tvm")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def environment(self, resources: Resources) -> dict[str, str]:
        return tvm_threads.tvm_environment(resources)

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        _check(region)
        return ConfigSpace(
            config.base, tuple(tasks(lower_module(region, tvm_target(resources.threads, resources.device))))
        )

    def trials(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Trials:
        del config
        _check(region)
        target = tvm_target(resources.threads, resources.device)
        choose_threads = tvm_threads.tvm_thread_chooser(resources, self.title)
        return TvmTrials(lower_module(region, target), target, resources.threads, choose_threads)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        _check(region)
        choose_threads = tvm_threads.tvm_thread_chooser(resources, self.title)
        if resources.cache is None or not _can_link():
            return _TvmKernel(region, build_executable(region, config, resources), choose_threads)
        target_text = str(llvm_target(resources.device))
        return sealed.keep_sealed(
            resources.cache / f"tvm-{content_key(region, config.text, str(resources.threads), target_text)}",
            lambda folder: build_executable(region, config, resources).export_library(
                str(folder / _LIBRARY), fcompile=_link
            ),
            lambda folder: _TvmKernel(region, _load(folder / _LIBRARY), choose_threads),
        )


@cache
def _can_link() -> bool:
    """Whether compiled code can be kept. Told where it cannot, once a process."""
    if compiler() is None:
        _LOG.warning("TVM's compiled code cannot be kept: that needs a C compiler. It is compiled again each time")
    return compiler() is not None


def _link(library: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
    """Makes a shared library of object files, and of C where TVM writes some; `options` are what that needs.

    Raises:
        Refused: the compiler does not.
    """
    arguments = [*(compiler() or ()), "-shared", "-fPIC", "-o", library, *objects, *options]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False, encoding="utf-8")
    if ran.returncode != 0:
        raise Refused(backend=Tvm.title, reason=f"{arguments[0]} does not link it: {ran.stderr.strip()[:300]}")


def _check(region: RegionModel) -> None:
    """Refuses what TVM cannot have."""
    require_static(region, Tvm.title)
    for info in (*region.inputs, *region.outputs):
        if info.numpy.name not in _ELEMENTS:
            raise Refused(backend=Tvm.title, reason=f"element type of '{info}'")
    _check_sizes(region)


def _check_sizes(region: RegionModel) -> None:
    """Refuses sums over nothing: TVM's loops that would start them never run (0.27), and what was in memory stays."""
    for node in region.model.graph:
        if node.op_type.startswith("Reduce") or node.op_type in ("MatMul", "Gemm", "Einsum", "Sum", "Mean"):
            for value in node.inputs:
                if value is not None and value.shape is not None and 0 in value.shape.dims:
                    raise Refused(backend=Tvm.title, reason=f"{node.op_type} of an empty tensor")


def _load(library: Path) -> Executable:
    import tvm

    return tvm.runtime.load_module(str(library))


def lower_module(region: RegionModel, target: Target) -> IRModule:
    """The region as a module of fused tensor programs that are not scheduled yet. Equal regions give equal names.

    Raises:
        Refused: the importer does not know something in the model.
    """
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    proto = explicit_statistics(load_proto(region))
    try:
        module = from_onnx(proto, keep_params_in_input=False)
    except Exception as error:
        raise Refused(backend=Tvm.title, reason=_reason(error)) from error
    passes = relax.transform
    with target:
        module = tvm.ir.transform.Sequential([passes.DecomposeOpsForInference(), passes.CanonicalizeBindings()])(module)
        module = rewrite_module(put_channels_last(module))
        lower = [
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
        return tvm.ir.transform.Sequential(lower)(module)


def build_executable(region: RegionModel, config: KernelConfig, resources: Resources) -> Executable:
    """An executable of the region.

    Raises:
        Refused: the importer does not know something in the model.
        ValueError: a parameter of the configuration is none.
    """
    import tvm
    from tvm import relax

    threads = resources.threads
    target = tvm_target(threads, resources.device)
    chosen = {name: parse_choice(value) for name, value in config.parameters}
    module, passes = lower_module(region, target), relax.transform
    with target:
        module = schedule_module(module, target, threads, chosen)
        explicit = [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            passes.LegalizeOps(),
            passes.RewriteDataflowReshape(),
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
        ]
        module = outputs_given(tvm.ir.transform.Sequential(explicit)(module))
        allocate = [
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
        return relax.build(tvm.ir.transform.Sequential(allocate)(module), target, relax_pipeline=None)


def _reason(error: Exception) -> str:
    """The first line of TVM's message that says something."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


def tvm_target(threads: int, device: Device) -> Target:
    """A device's processor in TVM's words."""
    import tvm

    cpu_target = llvm_target(device)
    processor = {"kind": "llvm", "mcpu": cpu_target.cpu, "num-cores": threads}
    return tvm.target.Target({**processor, "mattr": list(cpu_target.features)} if cpu_target.features else processor)


class _TvmKernel(StaticKernel):
    def __init__(self, region: RegionModel, executable: Executable, choose_threads: Callable[[], None]) -> None:
        import tvm
        from tvm import relax

        super().__init__(Tvm.title, region.inputs, region.outputs)
        self._choose_threads = choose_threads
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        arity = int(self._machine.module["get_function_arity"]("main"))
        self._filled = arity == len(self.inputs) + len(self.outputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        main, choose_threads = self._machine["main"], self._choose_threads
        arguments = [_tensor(array) for array in inputs]
        filled = [*arguments, *(_tensor(array) for array in outputs)]

        def fill() -> None:
            choose_threads()
            main(*filled)

        def call() -> None:
            choose_threads()
            results = main(*arguments)
            for target, result in zip(outputs, [results] if len(outputs) == 1 else results, strict=True):
                np.copyto(target, _array(result, target))

        return fill if self._filled else call


def _tensor(array: Array) -> Tensor:
    """The array's memory as a TVM tensor."""
    import tvm

    if not array.flags.writeable:  # DLPack hands out nothing read-only
        raw = memoryview((ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data))
        array = np.frombuffer(raw, np.uint8).view(array.dtype).reshape(array.shape)
    if array.dtype.kind == "V":  # bfloat16 is unknown to numpy's own DLPack
        words = tvm.runtime.from_dlpack(array.view(np.uint16))
        return words._create_view(array.shape, array.dtype.name)
    return tvm.runtime.from_dlpack(array)


def _array(tensor: Tensor, like: Array) -> Array:
    """A TVM tensor's memory as an array of the type of `like`."""
    if like.dtype.kind == "V":
        return np.from_dlpack(tensor._create_view(like.shape, "uint16")).view(like.dtype)
    return np.from_dlpack(tensor)
