"""IREE: ahead-of-time compilation with MLIR (torch-mlir's ONNX importer, the `llvm-cpu` target, a small VM at run time).

Weights are compiled in, so that data tiling packs them once. Outputs are extra arguments that the program overwrites, so
inputs and outputs are the caller's own memory and a call makes no copy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key
from bricolage.backends.interface import (
    Backend,
    Claim,
    Kind,
    Missing,
    RegionModel,
    Resources,
    Status,
    Travels,
    installed,
    require_static,
    values_of,
)
from bricolage.backends.iree_compile import (
    CONVOLUTIONS,
    ENTRY,
    IN_BF16,
    OPTIONS,
    STACK_BYTES,
    TUNED,
    compile_in_child,
    processor,
)
from bricolage.backends.kernel import Array, Call, Kernel, StaticKernel
from bricolage.backends.suitability import convolution_weights, is_depthwise, may_multiply, nodes_of
from bricolage.base import scratch, sealed
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.errors import Refused
from bricolage.graph.graph import Region
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig, Team, named

_PROGRAM = "region.vmfb"
_CHANNELS_LAST = "-channels-last"
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
    """Regions of static shape."""

    name: ClassVar[str] = "iree"
    title: ClassVar[str] = "IREE"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    compiles_slowly: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    gains_by_tuning: ClassVar[float] = 1.5
    travels: ClassVar[Travels] = "alike"
    teams: ClassVar[tuple[Team, ...]] = ("one-thread", "waiting")

    def status(self) -> Status:
        compiler = installed("iree-base-compiler", "iree.compiler", "iree")
        runtime = installed("iree-base-runtime", "iree.runtime", "iree")
        return compiler if isinstance(compiler, Missing) else runtime

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        return named(*CONVOLUTIONS, *(IN_BF16 if precision in ("medium", "low") and device.bfloat16 else ()))

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Channels come last, and bfloat16 multiplies, where the compiler's pass for it finds what it knows."""
        name = config.base.name
        if name in IN_BF16 and not any(map(_rounds, nodes_of(region))):
            return False
        return not name.endswith(_CHANNELS_LAST) or any(map(_lays_out, nodes_of(region)))

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        del region, resources
        return ConfigSpace.of(config, TUNED)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        require_static(region, self.title)
        for info in (*region.inputs, *region.outputs):
            if info.numpy.name not in _ELEMENTS:
                raise Refused(backend=self.title, reason=f"element type of '{info}'")
        plain = config.name.removesuffix(_CHANNELS_LAST)
        if plain != config.name and not any(map(_lays_out, region.model.graph.all_nodes())):
            raise Refused(backend=self.title, reason=f"without convolutions, {config.name} is the same as {plain}")
        options = (
            *OPTIONS,
            *processor(resources.device),
            *{**CONVOLUTIONS, **IN_BF16}[config.name],
            f"--iree-llvmcpu-number-of-threads={resources.threads}",
            *(f"--{name}={str(value).lower()}" for name, value in values_of(config, TUNED, self.title).items()),
        )
        if resources.cache is None:
            with scratch.using(scratch.temporary()) as folder:
                program = folder / _PROGRAM
                compile_in_child(region, program, options)
                return _IreeKernel(region, program, resources)  # mapped: may be unlinked afterwards
        return sealed.keep_sealed(
            resources.cache / f"iree-{content_key(region, *options)}",
            lambda folder: compile_in_child(region, folder / _PROGRAM, options),
            lambda folder: _IreeKernel(region, folder / _PROGRAM, resources),
        )


def _lays_out(node: ir.Node) -> bool:
    """Whether the pass that lays channels last changes a node: a convolution without groups."""
    return convolution_weights(node) is not None and node.attributes.get_int("group", 1) == 1


def _rounds(node: ir.Node) -> bool:
    """Whether the pass into bfloat16 may change a node: of convolutions it knows those over two dimensions, but depthwise ones
    (3.13)."""
    weights = convolution_weights(node)
    return may_multiply(node) and (weights is None or (len(weights) == 4 and not is_depthwise(node)))


_making = threading.Lock()


@cache
def _device(threads: int, alone: bool, cores: tuple[int, ...]) -> Any:
    """`local-sync` runs in the caller's thread; `local-task` has its own workers, which must not spin while other processes run.
    A driver takes their number and how they wait from flags when it is made, and `get_driver` makes one a process: so each number
    has a driver of its own, and each of the `cores` on which they are started and stay."""
    del cores
    import iree.runtime as rt
    from iree.runtime._binding import create_hal_driver

    if threads == 1:
        return rt.get_driver("local-sync").create_default_device()
    with _making:
        rt.flags.parse_flags(
            f"--task_topology_group_count={threads}",
            f"--task_worker_spin_us={100 if alone else 0}",
            f"--task_worker_stack_size={STACK_BYTES}",
        )
        return create_hal_driver("local-task").create_default_device()


class _IreeKernel(StaticKernel):
    def __init__(self, region: RegionModel, program: Path, resources: Resources) -> None:
        import iree.runtime as rt

        super().__init__(Iree.title, region.inputs, region.outputs)
        self._device = _device(resources.threads, resources.alone, resources.device.cores)
        instance = rt.VmInstance()
        module = rt.VmModule.mmap(instance, str(program))
        self._context = rt.VmContext(instance, [rt.create_hal_module(instance, self._device), module])
        self._function = module.lookup_function(ENTRY)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        import iree.runtime as rt

        arguments, nothing = rt.VmVariantList(len(inputs) + len(outputs)), rt.VmVariantList(0)
        for array in (*inputs, *outputs):
            arguments.push_ref(self._view(array).ref)
        invoke, function = self._context.invoke, self._function

        def call() -> None:
            invoke(function, arguments, nothing)

        return call

    def _view(self, array: Array) -> Any:
        """The caller's memory as a buffer of the device."""
        import iree.runtime as rt

        kind = getattr(rt.HalElementType, _ELEMENTS[array.dtype.name])
        shape = array.shape
        if array.size == 0:  # an empty buffer cannot be imported; an empty view of one byte can be passed
            array = np.zeros(1, np.uint8)
        buffer = self._device.allocator.import_host_allocation(
            array.reshape(-1).view(np.uint8),  # bfloat16 has no buffer protocol
            rt.MemoryType.DEVICE_LOCAL | rt.MemoryType.HOST_VISIBLE,
            rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING,
        )
        return rt.HalBufferView(buffer, shape, kind)
