"""C of normalisations over more than one row of memory: groups of channels, instances, and very long rows.

One kernel makes three passes over each group: its mean, the squares of the distance from it, and the result. Nothing is kept in
between but one mean and one scale for each group, so that what is read a second and third time comes from a cache where a group
fits. Where channels lie last, groups that are neighbours go side by side, a cache line of channels wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.native.cpu.blocked_sum import blocked_sum, blocked_sums, wrap_in_loops
from bricolage.native.cpu.emit import KEEP_SCALAR, VECTORISED, Body, indent_lines, literal
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import Index, Var, flatten, nested_extents, unflatten, variable
from bricolage.native.ir.tensors import Coords, Normalise
from bricolage.native.select.algorithm import Algorithm, KernelRequest

_BESIDE = 16
"""Channels that go side by side: a cache line of them."""
_WORK = 32
"""Multiply-adds that take as long as an element: it is read three times."""


def _root(kernel: PlannedKernel) -> Normalise:
    assert isinstance(kernel.root, Normalise)
    return kernel.root


def _one_by_one(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock) -> Phase:
    """One group after another, in the order of memory."""
    root = _root(kernel)
    lead, inner = root.shape[: root.axis], root.shape[root.axis :]
    stays = unflatten(variable("o", math.prod(lead)), lead)
    whole = [Var(f"r{n}", extent) for n, extent in enumerate(inner)]
    probe = Body(plan, FunctionMemory(weights), kernel.targets)
    probe.value(root.source, (*stays, *(variable(loop_var.name, loop_var.extent) for loop_var in whole)))
    # A dimension may be a reshape of several, which lie otherwise in memory: it is divided into loops over these.
    nests = [nested_extents(loop_var, probe.indices) for loop_var in whole]
    loops = [(f"r{n}_{k}", extent) for n, nest in enumerate(nests) for k, extent in enumerate(nest)]
    steps = iter([variable(*loop) for loop in loops])
    coords = (*stays, *(flatten([next(steps) for _ in nest], nest) for nest in nests))
    memory = FunctionMemory(weights)
    body = Body(plan, memory, kernel.targets)
    element = body.value(root.source, coords)
    order = _by_stride(range(len(loops)), [variable(*loop) for loop in loops], body.indices)

    loops = [loops[number] for number in order]
    width = math.prod(inner)
    inside = [KEEP_SCALAR] if body.guarded else []
    if root.centred:
        inside += blocked_sum("total", loops, lambda total: [*body.lines, f"{total} += {element};"])
        inside.append(f"const float mean = total * {literal(1.0 / width, 'float32')};")
    else:
        inside.append("const float mean = 0.0f;")

    def square(total: str) -> list[str]:
        return [*body.lines, f"const float d = {element} - mean;", f"{total} += d * d;"]

    inside += [
        *blocked_sum("squares", loops, square),
        f"const float scale = {_scale(root, 'squares', width)};",
        *wrap_in_loops(loops, _emit_stores(kernel, plan, memory, coords, "(({} - mean) * scale)"), "#pragma GCC ivdep"),
    ]
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(inside), "}"]
    return Phase(lines, ParallelRange(math.prod(lead), _WORK * width), memory.operands)


def _side_by_side(kernel: PlannedKernel, plan: FusionPlan, weights: ConstantBlock) -> Phase | None:
    """Groups of few channels side by side, if channels are neighbours in memory. The first of the normalised dimensions are the
    channels of a group."""
    root = _root(kernel)
    *lead, groups, channels = root.shape[: root.axis + 1]
    if channels >= _BESIDE or groups * channels < _BESIDE or not lead:
        return None
    side = next(q for q in range(1, groups + 1) if groups % q == 0 and (q * channels >= _BESIDE or q == groups))
    width, spatial = side * channels, root.shape[root.axis + 1 :]
    if width > 4 * _BESIDE:
        return None
    *outer, block = unflatten(variable("o", math.prod(lead) * (groups // side)), (*lead, groups // side))
    i = variable("i", width)
    group, channel = i.split(channels)
    spots = tuple(variable(f"r{n}", extent) for n, extent in enumerate(spatial))
    coords = (*outer, block * side + group, channel, *spots)
    memory = FunctionMemory(weights)
    body = Body(plan, memory, kernel.targets)
    element = body.value(root.source, coords)
    strides = [index.stride(*i.variables) for index in body.indices]
    if any(stride not in (0, 1) for stride in strides) or 1 not in strides:
        return None
    order = _by_stride(range(len(spatial)), spots, body.indices)

    loops = [(f"r{n}", spatial[n]) for n in order]

    def over(lines: list[str], pragma: str) -> list[str]:
        return [pragma, f"for (long i = 0; i < {width}; i++) {{", *indent_lines(lines), "}"]

    count = channels * math.prod(spatial)

    def term(total: str) -> list[str]:
        return over([*body.lines, f"{total}[i] += {element};"], VECTORISED)

    def square(total: str) -> list[str]:
        distance = f"const float d = {element} - mean[i];"
        return over([*body.lines, distance, f"{total}[i] += d * d;"], VECTORISED)

    inside = [*([KEEP_SCALAR] if body.guarded else []), f"float mean[{width}], scale[{width}];"]
    if root.centred:
        inside += [
            *blocked_sums("total", width, loops, term),
            *_group_sums(side, channels, "total", "mean", f"sum * {literal(1.0 / count, 'float32')}"),
        ]
    else:
        inside.append(f"for (long i = 0; i < {width}; i++) mean[i] = 0.0f;")
    inside += [
        *blocked_sums("squares", width, loops, square),
        *_group_sums(side, channels, "squares", "scale", _scale(root, "sum", count)),
        *wrap_in_loops(
            loops, over(_emit_stores(kernel, plan, memory, coords, "(({} - mean[i]) * scale[i])"), "#pragma GCC ivdep")
        ),
    ]
    lines = ["for (long o = begin; o < end; o++) {", *indent_lines(inside), "}"]
    blocks = math.prod(lead) * (groups // side)
    return Phase(lines, ParallelRange(blocks, _WORK * width * math.prod(spatial)), memory.operands)


def _group_sums(groups: int, channels: int, total: str, to: str, value: str) -> list[str]:
    """From sums of channels to what a group makes of them, for each of its channels."""
    return [
        f"for (long g = 0; g < {groups}; g++) {{",
        "  float sum = 0.0f;",
        f"  for (long k = 0; k < {channels}; k++) sum += {total}[g * {channels} + k];",
        f"  for (long k = 0; k < {channels}; k++) {to}[g * {channels} + k] = {value};",
        "}",
    ]


def _emit_stores(
    kernel: PlannedKernel, plan: FusionPlan, memory: FunctionMemory, coords: Coords, normalised: str
) -> list[str]:
    """From an element of the source to what is stored in its stead."""
    root, body = _root(kernel), Body(plan, memory, kernel.targets)
    body.bind(root, normalised.format(body.value(root.source, coords)))
    return body.stored(kernel, kernel.result_coords(coords))


def _scale(root: Normalise, squares: str, count: int) -> str:
    epsilon = literal(root.epsilon, "float32")
    return f"1.0f / __builtin_sqrtf({squares} * {literal(1.0 / count, 'float32')} + {epsilon})"


def _by_stride(numbers: Sequence[int], spots: Sequence[Index], indices: Sequence[Index]) -> list[int]:
    """Loops from the one that moves furthest in memory to the one that moves least."""

    def step(number: int) -> int:
        loop_vars = [v for v in spots[number].variables if isinstance(v, Var)]
        return max((abs(index.stride(loop_vars[0]) or 0) for index in indices if loop_vars), default=0)

    return sorted(numbers, key=lambda number: -step(number))


def _applies(request: KernelRequest) -> bool:
    """To normalisations over several dimensions, or over rows that no thread can keep."""
    return isinstance(request.root, Normalise) and not request.root.in_rows


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """A normalisation over the last dimensions, from `axis` on."""
    given = request.kernel, request.plan, weights
    return [_side_by_side(*given) or _one_by_one(*given)]


GROUP_NORM = Algorithm("group norm", _applies, _generate)
