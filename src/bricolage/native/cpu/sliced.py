"""A product with the element-wise kernel behind it, slice by slice (`fuse.slice_pairs`)."""

from __future__ import annotations

from dataclasses import replace

from bricolage.native.cpu.emit import KEEP_SCALAR, VECTORISED, Body, indent_lines
from bricolage.native.cpu.gemm import GemmCodegen
from bricolage.native.cpu.kernel_choice import KernelChoice
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.tile_plan import TilePlan, plan_tile
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.fuse.slice_pairs import rows_and_units


def build_paired_phase(tilings: tuple[TilePlan, TilePlan], weights: ConstantBlock, pieces: int | None) -> Phase:
    """The phase of a product and of one that reads its columns where it has the same: one loop over the panels of both."""
    memory = FunctionMemory(weights)
    first, second = (GemmCodegen(tiling, memory).columns() for tiling in tilings)
    assert first.share.count == second.share.count, "panels of both have the same columns"
    blocks = [["{", *indent_lines(phase.lines), "}"] for phase in (first, second)]
    return Phase(
        [line for block in blocks for line in block],
        replace(second.share, work=first.share.work + second.share.work, most=pieces),
        memory.operands,
        thread_scratch=max(first.thread_scratch, second.thread_scratch),
        helpers={**first.helpers, **second.helpers},
    )


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
