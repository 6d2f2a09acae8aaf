"""What the native engine makes of regions: its claims, configurations, C and libraries. `engine` imports it when one is to be made;
what opens a library that is there does without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from bricolage.backends.capabilities import engine_claims
from bricolage.backends.content import content_key
from bricolage.backends.fused_patterns import ATTENTION, SIBLINGS
from bricolage.backends.interface import Anatomy, Backend, Claim, Refused, RegionModel, Resources, require_static
from bricolage.backends.native.chosen_isa import instruction_set
from bricolage.backends.native.kernel_space import NativeTrials, fusions, space
from bricolage.backends.native.loaded_library import NativeKernel, Stopwatch
from bricolage.backends.native.region_source import (
    ARITHMETICS,
    choose_kernels,
    find_lack,
    generate_source,
    plan_structure,
)
from bricolage.backends.native.structural_parameters import FUSED, LAYOUT, WAVES
from bricolage.backends.suitability import may_multiply, nodes_of
from bricolage.base import scratch
from bricolage.base.options import PRECISIONS, Precision
from bricolage.device.device import Device, Peaks
from bricolage.device.host import host
from bricolage.graph.graph import Graph, Operator, Region, describe
from bricolage.native.build import write_library
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import available_isas
from bricolage.native.cpu.peaks import measure
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.channels_last import lie_otherwise
from bricolage.native.fuse.inspect import inspect_kernels
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.fuse.waves import in_waves
from bricolage.native.ir.from_onnx import lower_operator
from bricolage.native.ir.tensors import Node
from bricolage.native.library_files import TITLE
from bricolage.native.loop_orders import LoopOrders, scale_to
from bricolage.native.module import generate
from bricolage.work.config_space import ConfigSpace
from bricolage.work.implementation import KernelConfig
from bricolage.work.kernel_orders import KernelOrders, OverlapEstimate

_REACHES: Mapping[int, tuple[Precision, ...]] = {0: PRECISIONS, 1: ("medium", "low"), 2: ("high",), 3: ("highest",)}
"""For which precisions a number of bfloat16 parts is tried: fewer are not accurate enough, more cost more."""
_SLICES_REACH: Mapping[int, tuple[Precision, ...]] = {0: PRECISIONS, 6: ("highest", "high"), 9: ("highest",)}
"""The same for a number of products of slices: six may be as accurate as float32, which shows when they are verified."""
_TIMED_RUNS = 10
_LOOKS_AT_PEAKS = 3


def claim_regions(backend: Backend) -> Iterable[Claim]:
    """See `Backend.claims`."""
    return engine_claims(backend, _declines, {"attention": ATTENTION, "siblings": SIBLINGS})


def list_configs(precision: Precision, device: Device) -> tuple[KernelConfig, ...]:
    """See `Backend.configs`."""
    isa = instruction_set(device)
    # Whether the error of larger tiles is small enough shows when it is verified.
    return tuple(
        KernelConfig(name)
        for name, arithmetic in ARITHMETICS.items()
        if not arithmetic.alike  # asked for by name, of language models
        and precision in _REACHES[arithmetic.parts]
        and precision in _SLICES_REACH[arithmetic.slice_products]
        and (precision == "low" or not arithmetic.in_bytes)
        and find_lack(arithmetic, isa, device) is None
    )


def suits_region(config: KernelConfig, region: Region) -> bool:
    """See `Backend.suits`. Only plain 3×3 convolutions have tiles (`select.winograd`), and only products have operands."""
    arithmetic = ARITHMETICS[config.base.name]
    if arithmetic.tile and not any(map(_may_be_tiled, region.operators)):
        return False
    return arithmetic == FLOAT32 or any(map(may_multiply, nodes_of(region)))


def state_space(region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
    """See `Backend.space`."""
    structure, plan, target, arithmetic = plan_region_structure(region, config, resources, {})
    return space(structure, plan, target, arithmetic)


def list_structures(region: RegionModel, config: KernelConfig, resources: Resources) -> list[KernelConfig]:
    """See `Backend.structures`."""
    origins = dict[Node, str]()
    _, plan, target, arithmetic = plan_region_structure(region, config.base, resources, origins)
    configs = [config.base.tuned({FUSED: text}) for text in fusions(plan, target, arithmetic, origins)]
    if target.threads > 1 and any(len(wave) > 1 for wave in in_waves(plan).sections):
        configs.append(config.base.tuned({WAVES: True}))
    dominant = config.base.tuned({LAYOUT: "dominant"})
    _, other, _, _ = plan_region_structure(region, dominant, resources, {})
    if lie_otherwise(plan, other):
        configs.append(dominant)
    return configs


def start_trials(region: RegionModel, config: KernelConfig, resources: Resources) -> NativeTrials:
    """See `Backend.trials`."""
    _, plan, target, arithmetic = plan_region_structure(region, config, resources, {})
    return NativeTrials(region, plan, target, arithmetic, resources)


def report_kernels(region: RegionModel, config: KernelConfig, resources: Resources, *, timed: bool) -> Anatomy:
    """See `Backend.kernel_report`."""
    require_static(region, TITLE)
    origins = dict[Node, str]()
    source = generate_region_source(region, config, resources, origins, timed=timed)
    if not timed:
        return Anatomy(inspect_kernels(source.plan, origins), source.text)
    arithmetic = find_arithmetic(config, resources.device)
    with scratch.using(scratch.temporary()) as folder:
        write_library(source, find_target(resources).isa, arithmetic, folder)
        watch = Stopwatch(NativeKernel(region, folder, resources), region, len(source.plan.kernels))
        spent = np.mean([watch.run() for _ in range(_TIMED_RUNS)], axis=0)
    isa = instruction_set(resources.device)
    given = next((kernel.root for kernel in source.plan.kernels if kernel.of_bytes), None)
    operand = None if given is None else arithmetic.operand_of(isa, given)
    peaks = measure(isa, arithmetic, resources.threads, operand)
    return Anatomy(inspect_kernels(source.plan, origins, spent.tolist()), source.text, peaks)


@cache
def measure_float32_peaks(device: Device, threads: int) -> Peaks | None:
    """See `Backend.measure_peaks`: the best of several looks, since others may use the processors; None for a device whose
    instructions do not run here, without a compiler, and without memory to read.

    A forced instruction set is left out: what other backends reach does not depend on it.
    """
    if not device.instructions <= host().instructions:
        return None
    isa = available_isas(device)[0]
    try:
        looks = [measure(isa, FLOAT32, threads) for _ in range(_LOOKS_AT_PEAKS)]
    except Refused:
        return None
    peaks = [look for look in looks if look is not None]
    return Peaks(max(look.gflops for look in peaks), max(look.gbytes for look in peaks)) if peaks else None


def simulate_orders(
    region: RegionModel, config: KernelConfig, resources: Resources, threads: Sequence[int]
) -> tuple[KernelOrders, ...]:
    """See `Backend.simulate_orders`: kernels are timed one by one on one thread, and their tasks placed on others."""
    arithmetic, origins = find_arithmetic(config, resources.device), dict[Node, str]()
    alone = replace(find_target(resources), threads=1)
    structure, plan = plan_structure(region, config, alone, arithmetic, origins, shared=True)
    choices = choose_kernels(config, structure, plan)
    with scratch.using(scratch.temporary()) as folder:
        source = generate(plan, alone, arithmetic, choices, timed=True)
        write_library(source, alone.isa, arithmetic, folder)
        watch = Stopwatch(NativeKernel(region, folder, replace(resources, threads=1)), region, len(plan.kernels))
        spent = np.median([watch.run() for _ in range(_TIMED_RUNS)], axis=0).tolist()
    moved = [float(kernel.bytes) for kernel in inspect_kernels(plan, origins)]
    compared = []
    for count in threads:
        orders = LoopOrders(plan, replace(alone, threads=count), arithmetic, choices)
        compared += [orders.compare(spent), orders.compare(spent, moved, resources.device.peaks.gbytes)]
    return tuple(compared)


def estimate_overlap(
    region: RegionModel, config: KernelConfig, resources: Resources, measured_ms: float
) -> OverlapEstimate | None:
    """See `Backend.estimate_overlap`: in waves. Kernels have shares of the measured time by their rooflines."""
    target, arithmetic = find_target(resources), find_arithmetic(config, resources.device)
    if target.threads == 1 or config.parameters:
        return None
    origins = dict[Node, str]()
    _, plan = plan_structure(region, config, target, arithmetic, origins)
    peaks = resources.device.peaks
    floors = [target.threads * peaks.floor_ms(kernel.flops, kernel.bytes) for kernel in inspect_kernels(plan, origins)]
    if plan.strands or plan.slices or not sum(floors) or all(len(wave) < 2 for wave in in_waves(plan).sections):
        return None
    orders = LoopOrders(plan, target, arithmetic)
    kernel_ms = scale_to(orders, floors, measured_ms)
    usual, waves, lower = orders.usual_ms(kernel_ms), orders.waves_ms(kernel_ms), orders.lower_ms(kernel_ms)
    return OverlapEstimate(config.base.tuned({WAVES: True}), usual, waves, lower, orders.together)


def find_target(resources: Resources) -> CpuTarget:
    """What C is generated for.

    Raises:
        Refused: the forced instruction set is unknown or does not run there.
    """
    return CpuTarget(instruction_set(resources.device), resources.threads, resources.device.caches)


def find_arithmetic(config: KernelConfig, device: Device) -> Arithmetic:
    """What the name of a configuration means.

    Raises:
        Refused: there is no such configuration, or the instruction set lacks what it needs.
    """
    arithmetic = ARITHMETICS.get(config.name)
    if arithmetic is None:
        raise Refused(backend=TITLE, reason=f"there is no configuration '{config.name}'")
    lacking = find_lack(arithmetic, instruction_set(device), device)
    if lacking is not None:
        raise Refused(backend=TITLE, reason=lacking)
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


def name_folder(region: RegionModel, config: KernelConfig, resources: Resources, generation: str) -> str:
    """Under which the region's library is kept: a name of everything that it is made of. `generation`: of the generator's code."""
    machine = find_target(resources)
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
    return f"native-{content_key(region, config.text, *named_by, generation)}"


def make_library(region: RegionModel, config: KernelConfig, folder: Path, resources: Resources) -> None:
    """Writes the region's library to `folder`.

    Raises:
        Refused: as `generate_region_source`, or the C does not compile.
    """
    source = generate_region_source(region, config, resources, {})
    isa, arithmetic = find_target(resources).isa, find_arithmetic(config, resources.device)
    write_library(source, isa, arithmetic, folder, shares_weights=resources.shares_weights)


def generate_region_source(
    region: RegionModel, config: KernelConfig, resources: Resources, origins: dict[Node, str], *, timed: bool = False
) -> CSource:
    """The region's C. `origins` takes the operator that each tensor comes from (see `lower`); a `timed` library takes the time of
    its kernels.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    target, arithmetic = find_target(resources), find_arithmetic(config, resources.device)
    return generate_source(region, config, target, arithmetic, origins, timed=timed)


def plan_region_structure(
    region: RegionModel, config: KernelConfig, resources: Resources, origins: dict[Node, str]
) -> tuple[KernelConfig, FusionPlan, CpuTarget, Arithmetic]:
    """The kernels of a region as the structural parameters of a configuration make them; first the configuration with these
    alone. `origins` as for `planned`.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    target, arithmetic = find_target(resources), find_arithmetic(config, resources.device)
    return *plan_structure(region, config, target, arithmetic, origins), target, arithmetic
