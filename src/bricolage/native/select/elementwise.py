"""C of kernels that are nothing but element-wise work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.native.cpu.emit import KEEP_SCALAR, VECTORISED, Body, indent_lines
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import ZERO, Index, Var, unflatten, variable
from bricolage.native.ir.tensors import Coords
from bricolage.native.select.algorithm import Algorithm, KernelRequest

_SHORT = 16
"""Iterations below which an innermost loop is short."""
_WORK = 16
"""Multiply-adds that take as long as an element: most wait for memory."""


def _elementwise(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock) -> Phase:
    """One loop over the result in the order of its memory; as many dimensions as possible become the innermost loop. Around a
    short one stands a loop of its own, which saves the division that finds two coordinates in one number."""
    target = kernel.target
    order = target.order
    extents = [target.shape[axis] for axis in order]
    for split in range(len(order) + 1):
        inner = math.prod(extents[split:])
        apart = inner < _SHORT <= math.prod(extents[: max(0, split - 1)])  # enough must remain for the threads to share
        middle = extents[split - 1] if apart else 1
        outer = extents[: split - 1] if middle > 1 else extents[:split]
        i, w, o = variable("i", inner), variable("w", middle), variable("o", math.prod(outer))
        spots = (*unflatten(o, outer), *((w,) if middle > 1 else ()), *unflatten(i, extents[split:]))
        coords = _place(order, spots)
        memory = FunctionMemory(weights)
        body = Body(plan, memory, kernel.targets)
        lines = body.stored(kernel, coords)
        if split == len(order) or all(_linear(index, i.variables) for index in body.indices):
            break
    if math.prod(outer) == middle == 1:  # one long loop: the threads share it
        lines = [VECTORISED, "for (long i = begin; i < end; i++) {", *indent_lines(lines), "}"]
        return Phase(lines, ParallelRange(inner, _WORK), memory.operands)
    for name, extent in (("i", inner), ("w", middle)):
        if extent > 1:
            lines = [
                *([KEEP_SCALAR] if body.guarded else []),
                VECTORISED if name == "i" else "#pragma GCC ivdep",  # vectors go along the innermost loop
                f"for (long {name} = 0; {name} < {extent}; {name}++) {{",
                *indent_lines(lines),
                "}",
            ]
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(lines), "}"]
    return Phase(lines, ParallelRange(math.prod(outer), _WORK * middle * inner), memory.operands)


def _linear(index: Index, variables: frozenset[Var]) -> bool:
    return all(index.stride(v) is not None for v in variables)


def _place(order: Sequence[int], indices: Sequence[Index]) -> Coords:
    coords = [ZERO] * len(order)
    for axis, index in zip(order, indices, strict=True):
        coords[axis] = index
    return tuple(coords)


def _applies(request: KernelRequest) -> bool:
    """To what holds nothing else than element-wise functions, views and gathers."""
    return request.root is None


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    return [_elementwise(request.kernel, request.plan, weights)]


ELEMENTWISE = Algorithm("element-wise", _applies, _generate)
