"""What the kernels of a plan do, for those who want to see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import repeat

from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel, kernel_nodes
from bricolage.native.ir.tensors import STORED_BYTES, Constant, Node
from bricolage.work.fused_kernel import FusedKernel


def inspect_kernels(
    plan: FusionPlan, origins: Mapping[Node, str], spent: Sequence[float] | None = None
) -> tuple[FusedKernel, ...]:
    """The kernels in order, with the operators that they come from and the milliseconds that they take, where these are known."""
    return tuple(
        FusedKernel(
            name=f"kernel_{number}",
            kind=f"{kernel.kind} of bytes" if kernel.of_bytes else kernel.kind,
            operators=_operators(kernel, plan, origins),
            shape=kernel.result.shape,
            flops=kernel_flops(kernel, plan),
            bytes=_bytes(kernel, plan),
            ms=ms,
        )
        for number, (kernel, ms) in enumerate(zip(plan.kernels, spent or repeat(None, len(plan.kernels)), strict=True))
    )


def kernel_flops(kernel: PlannedKernel, plan: FusionPlan) -> int:
    """Floating-point operations of a kernel."""
    return sum(node.operations for node in kernel_nodes(kernel, plan)[0])


def _operators(kernel: PlannedKernel, plan: FusionPlan, origins: Mapping[Node, str]) -> tuple[str, ...]:
    """In the order of the region, which is the order in which their nodes were made."""
    inside = set(kernel_nodes(kernel, plan)[0])
    return tuple(dict.fromkeys(name for node, name in origins.items() if node in inside))


def _bytes(kernel: PlannedKernel, plan: FusionPlan) -> int:
    inside, reads = kernel_nodes(kernel, plan)
    stored = sum(math.prod(buffer.shape) * STORED_BYTES[buffer.dtype] for buffer in (*kernel.targets, *reads))
    return stored + sum(node.nbytes for node in inside if isinstance(node, Constant))
