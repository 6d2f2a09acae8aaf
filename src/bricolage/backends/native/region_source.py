"""From a region and a configuration to C, for this processor or another one."""

from __future__ import annotations

from dataclasses import replace

from bricolage.backends.interface import Refused, RegionModel, require_static
from bricolage.backends.native.structural_parameters import FUSED, LAYOUT, STRUCTURAL, WAVES
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.native.build import plan_fused_kernels
from bricolage.native.cpu.arithmetic import FLOAT32, Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.isa import Isa, needed_instructions
from bricolage.native.cpu.kernel_choice import KernelChoice, from_parameters
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.channels_last import LAYOUTS
from bricolage.native.fuse.kernel_plan import FusionPlan
from bricolage.native.ir.tensors import Node
from bricolage.native.library_files import TITLE
from bricolage.native.module import generate
from bricolage.plan.number_sets import parse_numbers
from bricolage.work.implementation import KernelConfig

ARITHMETICS = {
    "f32": FLOAT32,
    "f32-winograd2": Arithmetic(tile=2),
    "f32-winograd4": Arithmetic(tile=4),
    "bf16": Arithmetic(parts=1, stores="operands"),
    "bf16-winograd2": Arithmetic(tile=2, parts=1, stores="operands"),
    "bf16-stored": Arithmetic(parts=1, stores="everything"),
    "bf16x3": Arithmetic(parts=2),
    "bf16x6": Arithmetic(parts=3),
    "int8x6": Arithmetic(slice_products=6),
    "int8x9": Arithmetic(slice_products=9),
    "int8": Arithmetic(in_bytes=True),
    "int8-bf16": Arithmetic(parts=1, stores="operands", in_bytes=True),
    "f32-alike": Arithmetic(alike=True),
    "int8-alike": Arithmetic(in_bytes=True, alike=True),
}
"""By name of a configuration."""


def find_lack(arithmetic: Arithmetic, isa: Isa, device: Device) -> str | None:
    """What an instruction set lacks for it, if anything."""
    if arithmetic.parts and not isa.multiplies_bfloat16(device):
        return f"{isa.name} has no products of bfloat16 here"
    if arithmetic.parts > 1 and not isa.matrix_unit:
        return f"{isa.name} has no matrix unit, without which float32 is faster than its parts in bfloat16"
    if arithmetic.slice_products and isa.byte_dot != "tdpbusd":
        return f"{isa.name} has no matrix unit for bytes, without which float32 is faster than its slices"
    if arithmetic.stores == "everything" and not isa.matrix_unit:
        return f"{isa.name} has no matrix unit, without which residual streams in float32 cost no time"
    return None


def generate_for(
    region: RegionModel, config: KernelConfig, target: CpuTarget, *, own: bool
) -> tuple[CSource, Arithmetic]:
    """The region's C for a processor that need not be this one, and the arithmetic of it. `own`: the configuration was chosen for
    this target; of another one it says the arithmetic alone, and where that target has not what it needs, float32 is taken.

    Raises:
        Refused: as `generate_source`.
    """
    arithmetic = ARITHMETICS.get(config.name, FLOAT32)
    if own:
        return generate_source(region, config, target, arithmetic, {}), arithmetic
    instructions = needed_instructions(target.isa)
    described = replace(host(), instructions=instructions)
    lacking = find_lack(arithmetic, target.isa, described)
    chosen, base = (arithmetic, config.base) if lacking is None else (FLOAT32, KernelConfig("f32"))
    return generate_source(region, base, target, chosen, {}), chosen


def generate_source(
    region: RegionModel,
    config: KernelConfig,
    target: CpuTarget,
    arithmetic: Arithmetic,
    origins: dict[Node, str],
    *,
    timed: bool = False,
) -> CSource:
    """The region's C. `origins` takes the operator that each tensor comes from (see `lower_region`); a `timed` library takes the
    time of its kernels.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    structure, kernels = plan_structure(region, config, target, arithmetic, origins)
    return generate(kernels, target, arithmetic, choose_kernels(config, structure, kernels), timed=timed)


def choose_kernels(config: KernelConfig, structure: KernelConfig, kernels: FusionPlan) -> dict[int, KernelChoice]:
    """How kernels of a plan, by number, are computed by a configuration; `structure` has its structural parameters alone.

    Raises:
        Refused: the parameters are not the region's.
    """
    kernel_parameters = tuple(
        (name, value) for name, value in config.parameters if name not in dict(structure.parameters)
    )
    try:
        choices = from_parameters(kernel_parameters)
    except ValueError as error:
        raise Refused(backend=TITLE, reason=str(error)) from error
    if any(number >= len(kernels.kernels) for number in choices):
        raise Refused(backend=TITLE, reason=f"the parameters are those of more than {len(kernels.kernels)} kernels")
    return choices


def plan_structure(
    region: RegionModel,
    config: KernelConfig,
    target: CpuTarget,
    arithmetic: Arithmetic,
    origins: dict[Node, str],
    *,
    shared: bool = False,
) -> tuple[KernelConfig, FusionPlan]:
    """The kernels of a region as the structural parameters of a configuration make them; first the configuration with these
    alone. `origins` as for `plan_fused_kernels`. `shared`: threads share each kernel, one after another, without waves, strands and
    slices.

    Raises:
        Refused: something in the region has no lowering, or the parameters are not the region's.
    """
    require_static(region, TITLE)
    given = {name: value for name, value in config.parameters if name in STRUCTURAL}
    waves = given.get(WAVES, False)
    if not isinstance(waves, bool):
        raise Refused(backend=TITLE, reason=f"the parameter '{WAVES}' cannot be {waves!r}")
    layout = given.get(LAYOUT, LAYOUTS[0])
    if layout not in LAYOUTS:
        raise Refused(backend=TITLE, reason=f"the parameter '{LAYOUT}' cannot be {layout!r}")
    try:
        kept = parse_numbers(str(given[FUSED])) if FUSED in given else None
    except ValueError as error:
        raise Refused(backend=TITLE, reason=str(error)) from error
    apart = not shared
    plan = plan_fused_kernels(
        region, target, arithmetic, origins, kept, waves=waves and apart, strands=apart, slices=apart, layout=layout
    )
    return config.base.tuned(given), plan
