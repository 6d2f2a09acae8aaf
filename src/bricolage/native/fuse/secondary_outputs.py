"""Secondary outputs: a kernel also stores what element-wise functions make of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.cache_nodes import ReplacedRows
from bricolage.native.ir.tensors import Constant, Node, Pointwise, View


def attach_secondary_outputs(plan: FusionPlan, separated: Callable[[Node, Node], bool]) -> None:
    """Joins element-wise kernels to those whose results they read, where all else that they need is there by then. Two nodes
    that are `separated` are left so."""
    kept: list[PlannedKernel] = []
    stored_by: dict[Node, int] = {}
    """Position in `kept` of the kernel that stores a tensor."""
    last_in: dict[tuple[str, int], int] = {}
    """Of the last one that stores something in a storage."""
    for kernel in plan.kernels:
        host = _host(kernel, plan, stored_by, last_in, separated)
        if host is None:
            position = len(kept)
            kept.append(kernel)
        else:
            position = host
            kept[host] = replace(
                kept[host], secondary_outputs=(*kept[host].secondary_outputs, (kernel.result, kernel.target))
            )
        if plan.buffers.get(kernel.result) is kernel.target:
            stored_by[kernel.result] = position
        last_in[kernel.target.storage] = max(position, last_in.get(kernel.target.storage, 0))
    plan.kernels = kept


def _host(
    kernel: PlannedKernel,
    plan: FusionPlan,
    stored_by: Mapping[Node, int],
    last_in: Mapping[tuple[str, int], int],
    separated: Callable[[Node, Node], bool],
) -> int | None:
    """Position of the kernel that can store this one's result in addition to its own."""
    node, buffers = kernel.result, plan.buffers
    if not isinstance(node, Pointwise) or kernel.root is not None or buffers.get(node) is not kernel.target:
        return None
    leaves: dict[Node, int] = {}
    """What the result is computed from, each with the position of the kernel that completes it."""
    elsewhere = -1
    """Position of the last kernel that completes what is read at other indices."""
    todo: list[Node] = [node]
    while todo:
        for source in todo.pop().sources:
            if source in buffers:
                leaves[source] = _find_completing_kernel(source, plan, stored_by, last_in)
            elif isinstance(source, Pointwise) and source.shape == node.shape:
                todo.append(source)
            else:
                while isinstance(source, View) and source not in buffers:
                    source = source.source
                if source in buffers:
                    elsewhere = max(elsewhere, _find_completing_kernel(source, plan, stored_by, last_in))
                elif not isinstance(source, Constant):
                    return None
    latest = max(leaves.values(), default=-1)
    for leaf, position in leaves.items():
        alike = leaf.shape == node.shape and buffers[leaf].order == kernel.target.order
        alike &= not separated(leaf, node) and not isinstance(leaf, ReplacedRows)
        if position == latest > elsewhere and alike and stored_by.get(leaf) == latest:
            return latest
    return None


def _find_completing_kernel(
    node: Node, plan: FusionPlan, stored_by: Mapping[Node, int], last_in: Mapping[tuple[str, int], int]
) -> int:
    """Position of the kernel that completes a stored tensor; -1 for inputs."""
    return stored_by.get(node, last_in.get(plan.buffers[node].storage, -1))
