"""TVM: Relax programs compiled for this processor with LLVM, scheduled without tuning (see `tvm_schedule`).

Tuning with MetaSchedule is left out: this version still has it, but it needs a measuring server and minutes for every
operator, while the rules of `tvm_schedule` come within a few per cent of a library on dense operators at once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any, ClassVar

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key, load_proto
from bricolage.backends.interface import Backend, Claim, Kind, RegionModel, Resources, Status, installed
from bricolage.errors import Refused
from bricolage.runtime.buffers import aligned
from bricolage.runtime.kernel import Array, Call, Kernel

_LOG = logging.getLogger(__name__)
_ELEMENTS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64".split()
)
_CHANNELS_LAST = {"relax.nn.conv2d": ["NHWC", "HWIO"]}


class Tvm(Backend):
    """Regions of static shape. The number of threads is the process's: it must stand in the environment first."""

    name: ClassVar[str] = "tvm"
    title: ClassVar[str] = "TVM"
    kind: ClassVar[Kind] = "engine"
    compiles_slowly: ClassVar[bool] = True

    def status(self) -> Status:
        return installed("apache-tvm", "tvm", "tvm")

    def claims(self) -> Iterable[Claim]:
        return engine_claims(self.name)

    def environment(self, resources: Resources) -> dict[str, str]:
        return {
            "TVM_NUM_THREADS": str(resources.threads),
            "TVM_BIND_THREADS": "0",
            # Waiting threads that spin are faster, but they steal the cores from the next runtime.
            **({} if resources.alone else {"TVM_THREAD_POOL_SPIN_COUNT": "0"}),
        }

    def compile(self, region: RegionModel, variant: str, resources: Resources) -> Kernel:
        for info in (*region.inputs, *region.outputs):
            if not info.static:
                raise Refused(backend=self.title, reason="shapes must be known before running")
            if info.numpy.name not in _ELEMENTS:
                raise Refused(backend=self.title, reason=f"element type of '{info}'")
        if resources.cache is None or which("cc") is None:  # keeping compiled code needs a linker
            return _TvmKernel(region, _build(region, resources.threads))
        library = resources.cache / f"tvm-{content_key(region, variant, str(resources.threads))}.so"
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            partial_library = library.with_name(f"{library.stem}.{os.getpid()}.so")
            try:
                _build(region, resources.threads).export_library(str(partial_library))
                partial_library.replace(library)
            finally:
                partial_library.unlink(missing_ok=True)
        return _TvmKernel(region, _load(library))


def _load(library: Path) -> Any:
    import tvm

    return tvm.runtime.load_module(str(library))


def _build(region: RegionModel, threads: int) -> Any:
    """An executable of the region.

    Raises:
        Refused: the importer does not know something in the model.
    """
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    from bricolage.backends.tvm_schedule import schedule

    proto = load_proto(region)
    try:
        module = from_onnx(proto, keep_params_in_input=False)
    except Exception as error:
        raise Refused(backend=Tvm.title, reason=_reason(error)) from error
    target = _target(threads)
    passes = relax.transform
    with target:
        module = tvm.ir.transform.Sequential([passes.DecomposeOpsForInference(), passes.CanonicalizeBindings()])(module)
        module = _erf(_channels_last(module))
        lower = [
            passes.LegalizeOps(),
            passes.AnnotateTIROpPattern(),
            passes.FoldConstant(),
            passes.FuseOps(),
            passes.FuseTIR(),
            passes.DeadCodeElimination(),
        ]
        module = schedule(tvm.ir.transform.Sequential(lower)(module), target, threads)
        return relax.build(module, target)
