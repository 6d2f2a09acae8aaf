"""What the kernels of a plan do, for those who want to see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from itertools import repeat

from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel, kernel_nodes
from bricolage.native.ir.tensors import STORED_BYTES, ConcatBuffer, Constant, Node, View
from bricolage.work.fused_kernel import FusedKernel, KernelTraffic


def inspect_kernels(
    plan: FusionPlan, origins: Mapping[Node, str], spent: Sequence[float] | None = None
) -> tuple[FusedKernel, ...]:
    """The kernels in order, with the operators that they come from and the milliseconds that they take, where these are known."""
    return tuple(
        FusedKernel(
            name=f"kernel_{number}",
            kind=_kind(kernel),
            operators=_operators(kernel, plan, origins),
            shape=kernel.result.shape,
            flops=kernel_flops(kernel, plan),
            bytes=_bytes(kernel, plan),
            ms=ms,
        )
        for number, (kernel, ms) in enumerate(zip(plan.kernels, spent or repeat(None, len(plan.kernels)), strict=True))
    )


def kernel_traffic(plan: FusionPlan, origins: Mapping[Node, str]) -> tuple[KernelTraffic, ...]:
    """What each kernel moves, and what its operators would one by one."""
    return tuple(_traffic_of(f"kernel_{number}", kernel, plan, origins) for number, kernel in enumerate(plan.kernels))


def _traffic_of(name: str, kernel: PlannedKernel, plan: FusionPlan, origins: Mapping[Node, str]) -> KernelTraffic:
    inside, reads = kernel_nodes(kernel, plan)
    kept, unfused = _apart(inside, {node for node, _ in kernel.stores}, origins)
    return KernelTraffic(
        name=name,
        kind=_kind(kernel),
        operators=_operators(kernel, plan, origins),
        weights=sum(node.nbytes for node in inside if isinstance(node, Constant)),
        inputs=sum(math.prod(buffer.shape) * STORED_BYTES[buffer.dtype] for buffer in reads),
        outputs=sum(math.prod(buffer.shape) * STORED_BYTES[buffer.dtype] for buffer in kernel.targets),
        kept=kept,
        unfused=unfused,
    )


def _apart(inside: Sequence[Node], stored: Set[Node], origins: Mapping[Node, str]) -> tuple[int, int]:
    """Bytes that operators of a kernel hand to each other there, and bytes that they move if each is a kernel."""
    computing = [node for node in inside if not isinstance(node, (View, Constant, ConcatBuffer))]
    operator = {node: origins.get(node, str(id(node))) for node in computing}
    kept = moved = 0
    results = set(stored)
    for node in computing:
        tensors = {source for source in _tensors_below(node) if operator.get(source) != operator[node]}
        results |= tensors & operator.keys()
        moved += sum(map(_nbytes, tensors))
    for node in results:
        moved += _nbytes(node)
        kept += _nbytes(node) if node not in stored else 0
    return kept, moved


def _tensors_below(node: Node) -> set[Node]:
    """What a node reads, through views."""
    tensors: set[Node] = set()
    todo = list(node.sources)
    while todo:
        source = todo.pop()
        if isinstance(source, (View, ConcatBuffer)):
            todo.extend(source.sources)
        else:
            tensors.add(source)
    return tensors


def _nbytes(node: Node) -> int:
    return node.nbytes if isinstance(node, Constant) else node.elements * STORED_BYTES[node.dtype]


def _kind(kernel: PlannedKernel) -> str:
    return f"{kernel.kind} of bytes" if kernel.of_bytes else kernel.kind


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
