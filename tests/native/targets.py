"""Targets described by hand: the same on every machine that runs the tests."""

from __future__ import annotations

from bricolage.backends.interface import RegionModel
from bricolage.device.caches import Cache, Caches
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32
from bricolage.native.cpu.isa import Isa, available_isas
from bricolage.native.cpu.target import CpuTarget, fusion_target
from bricolage.native.fuse.kernel_plan import FusionPlan

CACHES = Caches((Cache(1, 48 << 10), Cache(2, 1 << 20)))
FUSION = fusion_target(CACHES)


def cpu_target(isa: Isa | None = None, threads: int = 2) -> CpuTarget:
    """The best instruction set of this machine, if none is given, with 1 MiB of second-level cache."""
    return CpuTarget(isa or available_isas()[0], threads, CACHES)


def planned_region(region: RegionModel) -> FusionPlan:
    """The fused kernels of a region for that target."""
    return plan_fused_kernels(region, cpu_target(), FLOAT32, {})
