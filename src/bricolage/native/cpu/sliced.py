"""A product with the element-wise kernel behind it, slice by slice (`fuse.slice_pairs`)."""

from __future__ import annotations

from dataclasses import replace

from bricolage.native.cpu.emit import KEEP_SCALAR, VECTORISED, Body, indent_lines
from bricolage.native.cpu.gemm import GemmCodegen
from bricolage.native.cpu.kernel_choice import KernelChoice
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.tile_plan import plan_tile
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.fuse.slice_pairs import rows_and_units


def build_sliced_phase(
    kernels: tuple[PlannedKernel, PlannedKernel],
    parts: int,
    plan: FusionPlan,
    weights: ConstantBlock,
    target: CpuTarget,
    operand: ProductOperand,
    choice: KernelChoice,
) -> Phase:
    """The phase of both. The loop is over panels of the second kernel's units."""
    first, second = kernels
    memory = FunctionMemory(weights)
    # The weights stay in a second-level cache from step to step, and what follows a slice is another thread's.
    ahead = bool(choice.gemm.prefetch)
    tiling = plan_tile(first, plan, target, operand, replace(choice.gemm, prefetch=ahead))
    phase, panel = GemmCodegen(tiling, memory).columns(parts), tiling.packing.wide
    _, _, coords = rows_and_units(second)
    body = Body(plan, memory, second.targets)
    lines = body.stored(second, coords)
    loop = [
        *([KEEP_SCALAR] if body.guarded else []),
        VECTORISED,
        f"for (long j = {panel} * begin; j < {panel} * end; j++) {{",
        *indent_lines(lines),
        "}",
    ]
    rows = tiling.p.m
    each = loop if rows == 1 else [f"for (long m = 0; m < {rows}; m++) {{", *indent_lines(loop), "}"]
    # What the loop before has written is read: a block of its own, so that names do not meet.
    both = ["{", *indent_lines(phase.lines), "}", *each]
    return replace(phase, lines=both, operands=memory.operands, share=replace(phase.share, most=choice.pieces))
