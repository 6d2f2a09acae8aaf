"""TorchInductor: the lowered graph as generated C++ with frozen, packed weights, in a library compiled ahead of time.

Autotuning (`max_autotune`) stays off: on an AMD EPYC (Zen 5, 2 threads) it gained 1 % on Collage's BERT in bfloat16 and lost
2 % on ResNet-50 (20.6 to 21.1 ms), for a longer compilation.

The package that the compiler makes is kept in the cache under a hash of the region and its weights, so an executable that
is loaded again does not compile again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

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
from bricolage.backends.isa_limits import library_limits, llvm_target
from bricolage.backends.kernel import Answer, Array, Call, Kernel, StaticKernel
from bricolage.backends.suitability import reads_floats
from bricolage.backends.torch import DIRECT_BYTES, UnboundFunction, bind_call, lower_to_module, openmp, tensor_of
from bricolage.base import scratch, sealed
from bricolage.base.options import Precision
from bricolage.device.device import Device
from bricolage.errors import Refused
from bricolage.graph.graph import Region
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig, Scalar, Team, named

_PACKAGE = "region.pt2"
_CONFIG: dict[str, Any] = {
    "freezing": True,
    "cpp.enable_kernel_profile": False,
    # PyTorch would keep them (300 MB for each set of flags) in a folder of a known name among everybody's temporary files.
    # Making them takes a core 13 s and saves it 2 s a region: a decision compiles the whole model once or twice.
    "aot_inductor.precompile_headers": False,
    "aot_inductor.use_runtime_constant_folding": False,
    "cpp.dynamic_threads": False,
}


_TUNED: Mapping[str, tuple[Scalar, ...]] = {
    "cpp.simdlen": (128, 256, 512),
    "cpp.weight_prepack": (False,),
    "cpp.enable_tiling_heuristics": (False,),
    "cpp.min_chunk_size": (512, 1024, 16384),
    "cpp.max_horizontal_fusion_size": (1, 4),
    "layout_optimization": (False,),
    "max_fusion_size": (8, 256),
}
"""Inductor's settings that a tuner may choose, and their values other than the default ones."""


class Inductor(Backend):
    """Ahead-of-time compilation by Inductor's C++ code generator, oneDNN for convolutions and matrix products."""

    name: ClassVar[str] = "inductor"
    title: ClassVar[str] = "TorchInductor"
    kind: ClassVar[Kind] = "engine"
    tries_whole: ClassVar[bool] = True
    compiles_slowly: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    gains_by_tuning: ClassVar[float] = 1.3
    travels: ClassVar[Travels] = "alike"
    teams: ClassVar[tuple[Team, ...]] = ("one-thread",)

    def status(self) -> Status:
        torch_status = installed("torch", "torch", "inductor")
        if not isinstance(torch_status, Missing) and not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
            return Missing("it needs a C++ compiler and finds none", "apt-get install g++")
        return torch_status

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        return named("f32", "bf16") if precision in ("medium", "low") and device.bfloat16 else named("f32")

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """bfloat16 takes the place of wider floats."""
        return not config.bfloat16 or reads_floats(region)

    def environment(self, resources: Resources) -> dict[str, str]:
        limited = library_limits(resources.device)
        if resources.device.isa == "avx2":
            limited["TORCHINDUCTOR_CPP_MARCH"] = "native -mno-avx512f"  # and with it all that needs it
        return {**openmp(resources), **limited, "TORCHINDUCTOR_COMPILE_THREADS": str(resources.threads)}

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        del region, resources
        return ConfigSpace.of(config, _TUNED)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        import torch

        require_static(region, self.title)
        _check_traceable(region)
        torch.set_num_threads(resources.threads)  # what lowering computes is computed with them, too
        if resources.cache is None:
            with scratch.using(scratch.temporary()) as folder:
                return _InductorKernel(
                    region, _package(region, config, folder / _PACKAGE, resources.threads), resources.threads
                )
        flags = str(llvm_target(resources.device))  # "native", for the C++ compiler, means these
        return sealed.keep_sealed(
            resources.cache / f"inductor-{content_key(region, config.text, str(resources.threads), flags)}",
            lambda folder: _package(region, config, folder / _PACKAGE, resources.threads),
            lambda folder: _InductorKernel(region, folder / _PACKAGE, resources.threads),
        )


def _check_traceable(region: RegionModel) -> None:
    """Refuses what the exporter could not trace in one graph, before any time is spent on it."""
    from bricolage.lowering.torch import untraceable

    opsets = region.model.graph.opset_imports
    for node in region.model.graph:
        reason = untraceable(node, opsets.get(node.domain, 1))
        if reason:
            raise Refused(backend=Inductor.title, reason=f"{node.op_type}: {reason}")


@cache
def _workplace(process: int) -> Path:
    """Where Inductor keeps what it generates on the way to a package, and reads it again unchecked: a folder of this process's own.
    The default is one of a known name among everybody's temporary files."""
    del process
    return scratch.temporary()


def _package(region: RegionModel, config: KernelConfig, path: Path, threads: int) -> Path:
    import torch
    from torch._inductor import aoti_compile_and_package

    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_workplace(os.getpid())))
    chosen = values_of(config, _TUNED, Inductor.title)
    module = lower_to_module(region, Inductor.title, config.base)
    examples = tuple(tensor_of(np.zeros(info.sizes, info.numpy)) for info in region.inputs)
    settings = {**_CONFIG, "cpp.threads": threads, **chosen}  # whatever the process has set for its own programs
    with torch.no_grad():
        program = torch.export.export(module, examples, strict=False)
        aoti_compile_and_package(program, package_path=str(path), inductor_configs=settings)
    return path


class _InductorKernel(StaticKernel):
    """A loaded package. It takes its arguments as they come, whatever their shapes and strides."""

    direct_bytes = DIRECT_BYTES

    def __init__(self, region: RegionModel, package: Path, threads: int) -> None:
        import torch

        super().__init__(Inductor.title, region.inputs, region.outputs)
        # The package's own call flattens its arguments anew each time, which takes longer than a small region does.
        run = torch._inductor.aoti_load_package(str(package)).loader.run
        self._function = lambda *tensors: run(list(tensors))
        self._threads = threads
        self._unbound = UnboundFunction(self._function, None, threads)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        return bind_call(self._function, inputs, outputs, self._threads)

    def bind_inputs(self, inputs: Sequence[Array]) -> Answer:
        return self._unbound.bind(inputs)

    def run(self, inputs: Sequence[object]) -> list[object]:
        return self._unbound(self.checked(inputs))
