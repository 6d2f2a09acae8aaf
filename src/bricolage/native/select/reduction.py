"""C of reductions: sums, means, extrema and products along dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.native.cpu.blocked_sum import adding, blocked_sum, blocked_sums, wrap_in_loops
from bricolage.native.cpu.emit import (
    KEEP_SCALAR,
    VECTORISED,
    Body,
    bounds_tests,
    conjunction,
    epilogue,
    indent_lines,
    literal,
)
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import ZERO, Index, unflatten, variable
from bricolage.native.ir.tensors import C_TYPES, FLOATS, Coords, Node, Pointwise, Reduce, View
from bricolage.native.select.algorithm import Algorithm, KernelRequest

_SIDE_BY_SIDE = 64
"""Accumulators of a reduction whose innermost dimension stays."""
_WORK = 4
"""Multiply-adds that take as long as a term."""

_START = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "product": 1.0}
_STEP = {
    "sum": "{0} + {1}",
    "mean": "{0} + {1}",
    "product": "{0} * {1}",
    "max": "({1} > {0} || {1} != {1}) ? {1} : {0}",
    "min": "({1} < {0} || {1} != {1}) ? {1} : {0}",
}


def start_value(kind: str, dtype: str) -> float:
    """What a reduction begins with: integers know no infinity."""
    value = _START[kind]
    if dtype in FLOATS or not math.isinf(value):
        return value
    return int(np.iinfo(dtype).min if value < 0 else np.iinfo(dtype).max)


def _reduction(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock) -> Phase:
    """Loops over what stays, and inside over what is reduced. Where the innermost dimension in memory stays (channels last),
    that many accumulators are kept side by side."""
    root = kernel.root
    assert isinstance(root, Reduce)
    kept = [axis for axis in range(len(root.shape)) if root.shape[axis] > 1]
    reduced = list(root.axes)
    side = _side_by_side(root, kept, plan)
    outer = [axis for axis in kept if axis != side]
    o = variable("o", math.prod(root.shape[axis] for axis in outer))
    i = variable("i", root.shape[side]) if side is not None else ZERO
    reduced_vars = [variable(f"r{n}", root.source.shape[axis]) for n, axis in enumerate(reduced)]
    stays = [ZERO] * len(root.shape)
    for axis, index in zip(outer, unflatten(o, [root.shape[axis] for axis in outer]), strict=True):
        stays[axis] = index
    if side is not None:
        stays[side] = i
    reads = list(stays)
    for axis, index in zip(reduced, reduced_vars, strict=True):
        reads[axis] = index
    source, spot, tests = _counting(root, tuple(reads), plan, i)
    memory = FunctionMemory(weights)
    body = Body(plan, memory, kernel.targets)
    element = body.value(source, spot)
    total = "total[i - base]" if side is not None else "total"
    whole = f"({total} * {literal(1.0 / root.divisor, root.dtype)})" if root.kind == "mean" else total
    stored = epilogue(kernel, plan, memory, tuple(stays), whole)
    loops = [(f"r{n}", root.source.shape[axis]) for n, axis in enumerate(reduced)]
    step = _Step(root, element, body.lines, tests)
    if side is None:
        inside = [*([KEEP_SCALAR] if body.guarded or tests else []), *step.one_total(loops), *stored]
    else:
        inside = step.totals(loops, root.shape[side], stored)
    count = math.prod(root.shape[axis] for axis in outer)
    if count == 1:
        return Phase(inside, ParallelRange(1), memory.operands)
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(inside), "}"]
    return Phase(lines, ParallelRange(count, _WORK * math.prod(root.source.shape) // count), memory.operands)


@dataclass(frozen=True)
class _Step:
    """What is done with each term of a reduction."""

    root: Reduce
    element: str
    """C of the term, ..."""
    lines: Sequence[str]
    """... which these compute."""
    tests: Sequence[tuple[str, bool]]
    """Conditions under which it counts, each with whether it varies with `i`."""

    @property
    def _is_blocked_sum(self) -> bool:
        """Whether rounding is kept small by summing in blocks."""
        return self.root.dtype == "float32" and self.root.kind in ("sum", "mean")

    @property
    def _start(self) -> str:
        return literal(start_value(self.root.kind, self.root.dtype), self.root.dtype)

    def _into(self, total: str) -> list[str]:
        return [*self.lines, f"{total} = {_STEP[self.root.kind].format(total, self.element)};"]

    def one_total(self, loops: Sequence[tuple[str, int]]) -> list[str]:
        """Loops that leave the result in `total`."""

        def emit_tested(total: str) -> list[str]:
            return _if([text for text, _ in self.tests], self._into(total))

        if self._is_blocked_sum:
            return blocked_sum("total", loops, emit_tested)
        pragma = {"sum": adding("total"), "product": "#pragma omp simd reduction(*:total)"}.get(self.root.kind, "")
        return [
            f"{C_TYPES[self.root.dtype]} total = {self._start};",
            *wrap_in_loops(loops, emit_tested("total"), pragma),
        ]

    def totals(self, loops: Sequence[tuple[str, int]], extent: int, stored: list[str]) -> list[str]:
        """Loops for `extent` results that lie side by side, some accumulators at a time, each with what is `stored` of it."""

        def emit_interleaved(total: str) -> list[str]:
            # Said to be vectorised on its own, since GCC 12 makes wrong code of the loop over guarded taps around it.
            inner = _if([text for text, varies in self.tests if varies], self._into(f"{total}[i - base]"))
            over = [VECTORISED, "for (long i = base; i < stop; i++) {", *indent_lines(inner), "}"]
            return _if([text for text, varies in self.tests if not varies], over)

        if self._is_blocked_sum:
            lines = blocked_sums("total", _SIDE_BY_SIDE, loops, emit_interleaved)
        else:
            lines = [
                f"{C_TYPES[self.root.dtype]} total[{_SIDE_BY_SIDE}];",
                f"for (long l = 0; l < {_SIDE_BY_SIDE}; l++) total[l] = {self._start};",
                *wrap_in_loops(loops, emit_interleaved("total")),
            ]
        return [
            f"for (long base = 0; base < {extent}; base += {_SIDE_BY_SIDE}) {{",
            f"  const long stop = base + {_SIDE_BY_SIDE} < {extent} ? base + {_SIDE_BY_SIDE} : {extent};",
            *indent_lines(lines),
            "  #pragma GCC ivdep",
            "  for (long i = base; i < stop; i++) {",
            *indent_lines(stored, 2),
            "  }",
            "}",
        ]


def _counting(
    root: Reduce, coords: Coords, plan: FusionPlan, side: Index
) -> tuple[Node, Coords, list[tuple[str, bool]]]:
    """What a reduction really reads, and the conditions in C under which it does, each with whether it varies with `side`.
    Padding that changes nothing (zeros in a sum, -inf in a maximum) is left out."""
    node, tests = root.source, []
    while (
        isinstance(node, View)
        and node not in plan.buffers
        and (node.guard is None or node.fill == start_value(root.kind, root.dtype))
    ):
        for index, extent in node.guard(coords) if node.guard is not None else ():
            varies = not index.variables.isdisjoint(side.variables)
            tests += [(text, varies) for text in bounds_tests(index, extent)]
        coords = node.locate(coords)
        node = node.source
    return node, coords, tests


def _if(tests: Sequence[str], lines: list[str]) -> list[str]:
    return [f"if ({conjunction(tests)}) {{", *indent_lines(lines), "}"] if tests else lines


def _side_by_side(root: Reduce, kept: Sequence[int], plan: FusionPlan) -> int | None:
    """The dimension that stays and is innermost in the memory that is read."""
    node: Node = root.source
    while isinstance(node, (View, Pointwise)) and node not in plan.buffers:
        node = node.sources[0]
    buffer = plan.buffers.get(node)
    if buffer is None:
        return None
    innermost = buffer.order[-1] if buffer.shape else -1
    if (
        innermost in kept
        and len(root.shape) >= len(buffer.shape)
        and root.source.shape[innermost] == buffer.shape[innermost]
    ):
        return innermost if root.shape[innermost] >= 8 else None
    return None


def _applies(request: KernelRequest) -> bool:
    """To sums, means, extremes and products along dimensions."""
    return isinstance(request.root, Reduce)


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    return [_reduction(request.kernel, request.plan, weights)]


REDUCTION = Algorithm("reduction", _applies, _generate)
