"""The native engine as a backend: fused kernels, generated for exactly one region and compiled on this machine.

What makes libraries (`region_builder`) is imported when one is to be made: opening one that is there needs none of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bricolage import native
from bricolage._version import __version__
from bricolage.backends.interface import (
    AfterFailure,
    AfterFork,
    Anatomy,
    Available,
    Backend,
    Claim,
    Kernel,
    Kind,
    Missing,
    RegionEnds,
    RegionModel,
    Resources,
    Status,
    Travels,
    Trials,
    require_static,
)
from bricolage.backends.native.chosen_isa import FORCED_ISA_VARIABLE, instruction_set
from bricolage.backends.native.loaded_library import NativeKernel
from bricolage.backends.native.structural_parameters import FUSED, STRUCTURAL
from bricolage.base import scratch, sealed
from bricolage.base.options import Precision
from bricolage.device.device import Device, Peaks
from bricolage.extras import install_command
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.isa import find_isa
from bricolage.native.library_files import TITLE
from bricolage.plan.number_sets import format_numbers
from bricolage.work.config_space import ConfigSpace
from bricolage.work.fused_kernel import RegionTraffic
from bricolage.work.implementation import KernelConfig, Team
from bricolage.work.kernel_orders import KernelOrders, OverlapEstimate

if TYPE_CHECKING:
    from bricolage.graph.graph import Region

__all__ = ["FORCED_ISA_VARIABLE", "Native", "instruction_set"]


class Native(Backend):
    """bricolage's own engine."""

    name: ClassVar[str] = "native"
    title: ClassVar[str] = TITLE
    kind: ClassVar[Kind] = "engine"
    after_failure: ClassVar[AfterFailure] = "lives"
    tries_whole: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
    overlaps: ClassVar[bool] = True
    structural: ClassVar[frozenset[str]] = STRUCTURAL
    always_measured: ClassVar[bool] = True
    travels: ClassVar[Travels] = "anywhere"
    teams: ClassVar[tuple[Team, ...]] = ("one-thread", "waiting")
    after_fork: ClassVar[AfterFork] = "lives"  # the first call starts the threads again, see cpu/threads.py

    def status(self) -> Status:
        if toolchain.compiler() is None:
            return Missing("it needs a C compiler and finds none", install_command("cc"))
        if toolchain.compiler_version() is None:
            return Missing(f"the C compiler '{' '.join(toolchain.compiler() or ())}' does not run", "reinstall it")
        forced = os.environ.get(FORCED_ISA_VARIABLE)
        if forced and find_isa(forced) is None:
            return Missing(f"{FORCED_ISA_VARIABLE}={forced} does not run here", f"unset {FORCED_ISA_VARIABLE}")
        level = toolchain.level()
        if level is None:
            return Missing(f"{toolchain.LEVEL_VARIABLE} is none of 0, 1, 2, 3", f"unset {toolchain.LEVEL_VARIABLE}")
        version = f"{__version__}+{_generation(level)[:8]}"
        return Available(f"{version}+{forced}" if forced else version)  # its costs are no other instruction set's

    def table_version(self) -> str | None:
        """bricolage's: the generator changes with every change of its code, and its own tests answer for those in between."""
        return __version__

    def claims(self) -> Iterable[Claim]:
        from bricolage.backends.native import region_builder

        return region_builder.claim_regions(self)

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        from bricolage.backends.native import region_builder

        return region_builder.list_configs(precision, device)

    def suits(self, config: KernelConfig, region: Region) -> bool:
        from bricolage.backends.native import region_builder

        return region_builder.suits_region(config, region)

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        from bricolage.backends.native import region_builder

        return region_builder.state_space(region, config, resources)

    def structures(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Sequence[KernelConfig]:
        from bricolage.backends.native import region_builder

        return region_builder.list_structures(region, config, resources)

    def trials(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Trials:
        from bricolage.backends.native import region_builder

        return region_builder.start_trials(region, config, resources)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        from bricolage.backends.native import region_builder

        require_static(region, self.title)
        if resources.cache is None:
            with scratch.using(scratch.temporary()) as folder:
                region_builder.make_library(region, config, folder, resources)
                return NativeKernel(region, folder, resources)
        name = region_builder.name_folder(region, config, resources, _generation(toolchain.level()))
        return sealed.keep_sealed(
            resources.cache / name,
            lambda folder: region_builder.make_library(region, config, folder, resources),
            lambda folder: NativeKernel(region, folder, resources, kept=True),
        )

    def reopen(self, region: RegionEnds, name: str, resources: Resources) -> Kernel | None:
        instruction_set(resources.device)  # it asks for the registers that the library may use
        if resources.cache is None or not sealed.intact(resources.cache / name):
            return None
        try:
            return NativeKernel(region, resources.cache / name, resources, kept=True)
        except FileNotFoundError:  # weights that it shared with others
            return None

    def build(self, region: RegionModel, config: KernelConfig, resources: Resources) -> None:
        from bricolage.backends.native import region_builder

        require_static(region, self.title)
        assert resources.cache is not None
        name = region_builder.name_folder(region, config, resources, _generation(toolchain.level()))
        with sealed.making(resources.cache / name) as folder:
            region_builder.make_library(region, config, folder, resources)

    def kernel_report(
        self, region: RegionModel, config: KernelConfig, resources: Resources, *, timed: bool = True
    ) -> Anatomy:
        from bricolage.backends.native import region_builder

        return region_builder.report_kernels(region, config, resources, timed=timed)

    def measure_peaks(self, resources: Resources) -> Peaks | None:
        from bricolage.backends.native import region_builder

        return region_builder.measure_float32_peaks(resources.device, resources.threads)

    def traffic_report(self, region: RegionModel, config: KernelConfig, resources: Resources) -> RegionTraffic:
        from bricolage.backends.native import region_traffic

        return region_traffic.report_traffic(region, config, resources)

    def simulate_orders(
        self, region: RegionModel, config: KernelConfig, resources: Resources, threads: Sequence[int]
    ) -> tuple[KernelOrders, ...]:
        from bricolage.backends.native import region_builder

        return region_builder.simulate_orders(region, config, resources, threads)

    def estimate_overlap(
        self, region: RegionModel, config: KernelConfig, resources: Resources, measured_ms: float
    ) -> OverlapEstimate | None:
        from bricolage.backends.native import region_builder

        return region_builder.estimate_overlap(region, config, resources, measured_ms)

    def unoptimised(self, config: KernelConfig) -> KernelConfig | None:
        return self.fusing(config.base, ())

    def fusing(self, config: KernelConfig, kernels: Collection[int]) -> KernelConfig:
        return config.tuned({FUSED: format_numbers(tuple(sorted(kernels)))})


@cache
def _generation(level: str | None) -> str:
    """Hash of the generator's own code, of the compiler and of how much it optimises: other code makes other libraries."""
    digest = hashlib.sha256(f"{toolchain.compiler_version() or ''} {level}".encode())
    folders = (Path(__file__).parent, Path(native.__file__).parent)
    for path in (path for folder in folders for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.h")])):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
