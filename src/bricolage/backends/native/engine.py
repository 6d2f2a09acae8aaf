"""The native engine as a backend: fused kernels, generated for exactly one region and compiled on this machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from bricolage import native
from bricolage._version import __version__
from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key
from bricolage.backends.fused_patterns import ATTENTION, SIBLINGS
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
    Refused,
    RegionModel,
    Resources,
    Status,
    Travels,
    Trials,
    require_static,
)
from bricolage.backends.native.kernel_space import NativeTrials, fusions, space
from bricolage.backends.native.loaded_library import NativeKernel, Stopwatch
from bricolage.backends.native.region_source import (
    ARITHMETICS,
    FUSED,
    LAYOUT,
    STRUCTURAL,
    WAVES,
    find_lack,
    generate_source,
    plan_structure,
)
from bricolage.backends.suitability import may_multiply, nodes_of
from bricolage.base import scratch, sealed
from bricolage.base.options import PRECISIONS, Precision
from bricolage.device.device import Device
from bricolage.extras import install_command
from bricolage.graph.graph import Graph, Operator, Region, describe
from bricolage.native.build import TITLE, write_library
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import ISAS, Isa, available_isas, find_isa
from bricolage.native.cpu.peaks import measure
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.channels_last import lie_otherwise
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.fuse.waves import in_waves
from bricolage.native.ir.from_onnx import lower_operator
from bricolage.native.ir.tensors import Node
from bricolage.plan.number_sets import format_numbers
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig, Team

FORCED_ISA_VARIABLE = "BRICOLAGE_NATIVE_ISA"
"""Environment variable that forces one of the generator's own instruction sets (plain C, an emulated matrix unit), for tests of its
code. It is no property of a device, of which backends other than this one would have to be told, but of the generated C, like the
variables of the compiler and its optimisation level: all three are read where C is made, and are a part of this backend's version,
so that costs are not mixed. What a user may choose is the device's."""
_REACHES: Mapping[int, tuple[Precision, ...]] = {0: PRECISIONS, 1: ("medium", "low"), 2: ("high",), 3: ("highest",)}
"""For which precisions a number of bfloat16 parts is tried: fewer are not accurate enough, more cost more."""
_SLICES_REACH: Mapping[int, tuple[Precision, ...]] = {0: PRECISIONS, 6: ("highest", "high"), 9: ("highest",)}
"""The same for a number of products of slices: six may be as accurate as float32, which shows when they are verified."""
_TIMED_RUNS = 10


def instruction_set(device: Device) -> Isa:
    """The best instruction set that runs on a device, or the one that is forced.

    Raises:
        Refused: the forced one is unknown or does not run here.
    """
    wanted = os.environ.get(FORCED_ISA_VARIABLE)
    if not wanted:
        return available_isas(device)[0]
    forced_isa = find_isa(wanted, device)
    if forced_isa is None:
        isa_names = ", ".join(isa.name for isa in ISAS)
        raise Refused(
            backend=Native.title, reason=f"{FORCED_ISA_VARIABLE}={wanted} does not run here (there are: {isa_names})"
        )
    return forced_isa


class Native(Backend):
    """bricolage's own engine."""

    name: ClassVar[str] = "native"
    title: ClassVar[str] = TITLE
    kind: ClassVar[Kind] = "engine"
    after_failure: ClassVar[AfterFailure] = "lives"
    tries_whole: ClassVar[bool] = True
    tunable: ClassVar[bool] = True
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
        return engine_claims(self, _declines, {"attention": ATTENTION, "siblings": SIBLINGS})

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        isa = instruction_set(device)
        # Whether the error of larger tiles is small enough shows when it is verified.
        return tuple(
            KernelConfig(name)
            for name, arithmetic in ARITHMETICS.items()
            if precision in _REACHES[arithmetic.parts]
            and precision in _SLICES_REACH[arithmetic.slice_products]
            and (precision == "low" or not arithmetic.in_bytes)
            and find_lack(arithmetic, isa, device) is None
        )

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Only plain 3×3 convolutions have tiles (`select.winograd`), and only products have operands."""
        arithmetic = ARITHMETICS[config.base.name]
        if arithmetic.tile and not any(map(_may_be_tiled, region.operators)):
            return False
        return arithmetic == FLOAT32 or any(map(may_multiply, nodes_of(region)))

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        structure, plan, target, arithmetic = _plan_structure(region, config, resources, {})
        return space(structure, plan, target, arithmetic)

    def structures(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Sequence[KernelConfig]:
        origins = dict[Node, str]()
        _, plan, target, arithmetic = _plan_structure(region, config.base, resources, origins)
        configs = [config.base.tuned({FUSED: text}) for text in fusions(plan, target, arithmetic, origins)]
        if target.threads > 1 and any(len(wave) > 1 for wave in in_waves(plan).sections):
            configs.append(config.base.tuned({WAVES: True}))
        dominant = config.base.tuned({LAYOUT: "dominant"})
        _, other, _, _ = _plan_structure(region, dominant, resources, {})
        if lie_otherwise(plan, other):
            configs.append(dominant)
        return configs

    def trials(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Trials:
        _, plan, target, arithmetic = _plan_structure(region, config, resources, {})
        return NativeTrials(region, plan, target, arithmetic, resources)

    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        require_static(region, self.title)
        if resources.cache is None:
            with scratch.using(scratch.temporary()) as folder:
                _make(region, config, folder, resources)
                return NativeKernel(region, folder, resources)
        return sealed.keep_sealed(
            _kept_in(resources.cache, region, config, resources),
            lambda folder: _make(region, config, folder, resources),
            lambda folder: NativeKernel(region, folder, resources),
        )

    def build(self, region: RegionModel, config: KernelConfig, resources: Resources) -> None:
        require_static(region, self.title)
        assert resources.cache is not None
        with sealed.making(_kept_in(resources.cache, region, config, resources)) as folder:
            _make(region, config, folder, resources)

    def kernel_report(
        self, region: RegionModel, config: KernelConfig, resources: Resources, *, timed: bool = True
    ) -> Anatomy:
        require_static(region, self.title)
        origins = dict[Node, str]()
        source = _generate_source(region, config, resources, origins, timed=timed)
        if not timed:
            return Anatomy(inspect_kernels(source.plan, origins), source.text)
        arithmetic = _arithmetic(config, resources.device)
        with scratch.using(scratch.temporary()) as folder:
            write_library(source, _target(resources).isa, arithmetic, folder)
            watch = Stopwatch(NativeKernel(region, folder, resources), region, len(source.plan.kernels))
            spent = np.mean([watch.run() for _ in range(_TIMED_RUNS)], axis=0)
        isa = instruction_set(resources.device)
        given = next((kernel.root for kernel in source.plan.kernels if kernel.of_bytes), None)
        operand = None if given is None else arithmetic.operand_of(isa, given)
        peaks = measure(isa, arithmetic, resources.threads, operand)
        return Anatomy(inspect_kernels(source.plan, origins, spent.tolist()), source.text, peaks)

    def unoptimised(self, config: KernelConfig) -> KernelConfig | None:
        return self.fusing(config.base, ())

    def fusing(self, config: KernelConfig, kernels: Collection[int]) -> KernelConfig:
        return config.tuned({FUSED: format_numbers(tuple(sorted(kernels)))})


def _target(resources: Resources) -> CpuTarget:
    """What C is generated for.

    Raises:
        Refused: the forced instruction set is unknown or does not run there.
    """
    return CpuTarget(instruction_set(resources.device), resources.threads, resources.device.caches)


def _arithmetic(config: KernelConfig, device: Device) -> Arithmetic:
    """What the name of a configuration means.

    Raises:
        Refused: there is no such configuration, or the instruction set lacks what it needs.
    """
    arithmetic = ARITHMETICS.get(config.name)
    if arithmetic is None:
        raise Refused(backend=Native.title, reason=f"there is no configuration '{config.name}'")
    lacking = find_lack(arithmetic, instruction_set(device), device)
    if lacking is not None:
        raise Refused(backend=Native.title, reason=lacking)
    return arithmetic


def _may_be_tiled(operator: Operator) -> bool:
    """Whether it may become a convolution that `select.winograd` computes."""
    if operator.op_type != "Conv":
        return "Conv" in operator.op_type
    kernel = describe(operator.inputs[1]).shape or ()
    steps = [integer for name in ("strides", "dilations") for integer in operator.integers(name)[-2:]]
    return kernel[-2:] == (3, 3) and len(kernel) > 3 and set(steps) <= {1} and operator.attribute("group", 1) == 1


def _declines(graph: Graph, operator: Operator) -> str | None:
    return lower_operator(operator.node, graph.opsets.get(operator.node.domain, 1))


@cache
def _generation(level: str | None) -> str:
    """Hash of the generator's own code, of the compiler and of how much it optimises: other code makes other libraries."""
    digest = hashlib.sha256(f"{toolchain.compiler_version() or ''} {level}".encode())
    folders = (Path(__file__).parent, Path(native.__file__).parent)
    for path in (path for folder in folders for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.h")])):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _kept_in(cache: Path, region: RegionModel, config: KernelConfig, resources: Resources) -> Path:
    """Where the region's library is kept: a name of everything that it is made of."""
    machine = _target(resources)
    named_by = (
        machine.isa.name,
        machine.isa.byte_dot,
        machine.isa.vector_dot,
        str(machine.isa.reads_halves),
        str(machine.isa.looks_up),
        str(machine.l2_bytes),
        str(machine.caches.l3_bytes),
        str(machine.threads),
    )
    return cache / f"native-{content_key(region, config.text, *named_by, _generation(toolchain.level()))}"


def _make(region: RegionModel, config: KernelConfig, folder: Path, resources: Resources) -> None:
    """Writes the region's library to `folder`.

    Raises:
        Refused: as `_generated`, or the C does not compile.
    """
    source = _generate_source(region, config, resources, {})
    write_library(source, _target(resources).isa, _arithmetic(config, resources.device), folder)


def _generate_source(
    region: RegionModel, config: KernelConfig, resources: Resources, origins: dict[Node, str], *, timed: bool = False
) -> CSource:
    """The region's C. `origins` takes the operator that each tensor comes from (see `lower`); a `timed` library takes the time of
    its kernels.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    target, arithmetic = _target(resources), _arithmetic(config, resources.device)
    return generate_source(region, config, target, arithmetic, origins, timed=timed)


def _plan_structure(
    region: RegionModel, config: KernelConfig, resources: Resources, origins: dict[Node, str]
) -> tuple[KernelConfig, FusionPlan, CpuTarget, Arithmetic]:
    """The kernels of a region as the structural parameters of a configuration make them; first the configuration with these
    alone. `origins` as for `planned`.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    target, arithmetic = _target(resources), _arithmetic(config, resources.device)
    return *plan_structure(region, config, target, arithmetic, origins), target, arithmetic
