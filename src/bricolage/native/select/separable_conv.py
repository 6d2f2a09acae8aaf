"""A grouped convolution and a pointwise (1×1) one behind it as one kernel, as separable convolutions have them.

A thread computes some spatial positions for all channels, which stay in its second-level cache, and multiplies them. In DNNFusion's
words both are Many-to-Many, and never joined; tiles of rows do it without computing anything twice but a few positions at the ends
of a block.
"""

from __future__ import annotations

from dataclasses import replace

from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.gemm import GemmCodegen
from bricolage.native.cpu.gemm_blocks import ComputedRows
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.tile_plan import plan_tile
from bricolage.native.fuse.kernel_plan import Buffer, PlannedKernel
from bricolage.native.ir.tensors import Conv, Node
from bricolage.native.select.algorithm import Algorithm, KernelRequest, product_parameters
from bricolage.native.select.grouped_conv import GroupedConvCodegen


def _applies(request: KernelRequest) -> bool:
    """To what fusion has joined: a grouped convolution whose result a pointwise one reads."""
    return isinstance(request.root, Conv) and request.kernel.fused_producer is not None


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phase of both, with their epilogues. Threads share rows."""
    kernel, plan, target, operand = request.kernel, request.plan, request.target, request.operand
    assert kernel.fused_producer is not None
    first, between = kernel.fused_producer
    assert isinstance(first, Conv)
    rows = _rows(between, "bfloat16" if operand.dtype == "bfloat16" and operand.splits == 1 else "float32")
    inner = PlannedKernel(between, rows, first)
    memory = FunctionMemory(weights)
    grouped = GroupedConvCodegen(inner, plan, memory, target.isa, target.caches.l1_bytes)
    lines = ["{", *indent_lines([*grouped.declared(), *grouped.part("start", "stop")]), "}"]
    computed_rows = ComputedRows(rows, between.shape[1], grouped.positions, lines)
    local_plan = replace(plan, buffers={**plan.buffers, between: rows})
    by_rows = replace(request.choice.gemm, parallel="m")
    phase = GemmCodegen(plan_tile(kernel, local_plan, target, operand, by_rows, computed_rows), memory).phases()[0]
    phase.helpers.update(grouped.tables)
    return [phase]


def _rows(node: Node, dtype: str) -> Buffer:
    """Spatial positions as rows, their channels last."""
    _, channels, *sizes = node.shape
    strides = [channels]
    for extent in reversed(sizes):
        strides.insert(0, strides[0] * extent)
    image, *spatial = strides
    return Buffer(("rows", 0), node.shape, dtype, (image, 1, *spatial))


SEPARABLE_CONV = Algorithm("separable convolution", _applies, _generate, parameters=product_parameters)
