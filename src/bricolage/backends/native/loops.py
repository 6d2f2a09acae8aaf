"""C of the kernels that are plain loops: element-wise work, reductions, and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bricolage.backends.native.body import (
    OUTER,
    Body,
    Weights,
    epilogue,
    indented,
    literal,
    shares,
    tests_of,
    together,
)
from bricolage.backends.native.indexing import ZERO, Index, Var, unflatten, variable
from bricolage.backends.native.plan import Kernel, Plan
from bricolage.backends.native.sums import adding, looped, summed, summed_beside
from bricolage.backends.native.tensors import (
    C_TYPES,
    Node,
    Normalise,
    Place,
    Pointwise,
    Reduce,
    Softmax,
    View,
)

_SHORT = 16
"""Iterations below which an innermost loop is short."""
_SIDE_BY_SIDE = 64
"""Accumulators of a reduction whose innermost dimension stays."""


# --- element-wise ---------------------------------------------------------------------------------------------------


def elementwise(kernel: Kernel, plan: Plan, weights: Weights) -> list[str]:
    """One loop over the result in the order of its memory; as many dimensions as possible become the innermost loop. Around a
    short one stands a loop of its own, which saves the division that finds two places in one number."""
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
        place = _place(order, spots)
        body = Body(plan, weights, kernel.targets)
        lines = body.stored(kernel, place)
        if split == len(order) or all(_linear(index, i.variables) for index in body.indices):
            break
    if math.prod(outer) == middle == 1:  # one long loop: the threads share it
        return [*shares(inner), "#pragma GCC ivdep", "for (long i = begin; i < end; i++) {", *indented(lines), "}"]
    for name, extent in (("i", inner), ("w", middle)):
        if extent > 1:
            lines = [
                *([OUTER] if body.guarded else []),
                "#pragma GCC ivdep",
                f"for (long {name} = 0; {name} < {extent}; {name}++) {{",
                *indented(lines),
                "}",
            ]
    return [*shares(math.prod(outer)), "for (long o = begin; o < end; o++) {", *indented(lines), "}"]


def _linear(index: Index, variables: frozenset[Var]) -> bool:
    return all(index.stride(v) is not None for v in variables)


def _place(order: Sequence[int], indices: Sequence[Index]) -> Place:
    place = [ZERO] * len(order)
    for axis, index in zip(order, indices, strict=True):
        place[axis] = index
    return tuple(place)


# --- reductions -----------------------------------------------------------------------------------------------------

_START = {"sum": 0.0, "mean": 0.0, "max": -math.inf, "min": math.inf, "product": 1.0}
_STEP = {
    "sum": "{0} + {1}",
    "mean": "{0} + {1}",
    "product": "{0} * {1}",
    "max": "({1} > {0} || {1} != {1}) ? {1} : {0}",
    "min": "({1} < {0} || {1} != {1}) ? {1} : {0}",
}


def start_of(kind: str, dtype: str) -> float:
    """What a reduction begins with: integers know no infinity."""
    value = _START[kind]
    if dtype == "float32" or not math.isinf(value):
        return value
    return int(np.iinfo(dtype).min if value < 0 else np.iinfo(dtype).max)


def reduction(kernel: Kernel, plan: Plan, weights: Weights) -> list[str]:
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
    body = Body(plan, weights, kernel.targets)
    element = body.value(source, spot)
    alone = [OUTER] if body.guarded or tests else []
    total = "total[i - base]" if side is not None else "total"
    whole = f"({total} * {literal(1.0 / root.divisor, 'float32')})" if root.kind == "mean" else total
    stored = epilogue(kernel, plan, weights, tuple(stays), whole)
    start = literal(start_of(root.kind, root.dtype), root.dtype)
    loops = [(f"r{n}", root.source.shape[axis]) for n, axis in enumerate(reduced)]
    added = root.dtype == "float32" and root.kind in ("sum", "mean")

    def step(total: str) -> list[str]:
        return [*body.lines, f"{total} = {_STEP[root.kind].format(total, element)};"]

    if side is None:

        def tested(total: str) -> list[str]:
            return _if([text for text, _ in tests], step(total))

        if added:
            lines = summed("total", loops, tested)
        else:
            pragma = {"sum": adding("total"), "product": "#pragma omp simd reduction(*:total)"}.get(root.kind, "")
            lines = [f"{C_TYPES[root.dtype]} total = {start};", *looped(loops, tested("total"), pragma)]
        inside = [*alone, *lines, *stored]
    else:
        extent = root.shape[side]

        def beside(total: str) -> list[str]:
            # Said to be vectorised on its own, since GCC 12 makes wrong code of the loop over guarded taps around it.
            inner = _if([text for text, varies in tests if varies], step(f"{total}[i - base]"))
            over = ["#pragma omp simd", "for (long i = base; i < stop; i++) {", *indented(inner), "}"]
            return _if([text for text, varies in tests if not varies], over)

        if added:
            lines = summed_beside("total", _SIDE_BY_SIDE, loops, beside)
        else:
            lines = [
                f"{C_TYPES[root.dtype]} total[{_SIDE_BY_SIDE}];",
                f"for (long l = 0; l < {_SIDE_BY_SIDE}; l++) total[l] = {start};",
                *looped(loops, beside("total")),
            ]
        inside = [
            f"for (long base = 0; base < {extent}; base += {_SIDE_BY_SIDE}) {{",
            f"  const long stop = base + {_SIDE_BY_SIDE} < {extent} ? base + {_SIDE_BY_SIDE} : {extent};",
            *indented(lines),
            "  #pragma GCC ivdep",
            "  for (long i = base; i < stop; i++) {",
            *indented(stored, 2),
            "  }",
            "}",
        ]
    count = math.prod(root.shape[axis] for axis in outer)
    if count == 1:
        return ["if (tid != 0) return;", *inside]
    return [*shares(count), "for (long o = begin; o < end; o++) {", *indented(inside), "}"]


def _counting(root: Reduce, place: Place, plan: Plan, side: Index) -> tuple[Node, Place, list[tuple[str, bool]]]:
    """What a reduction really reads, and the conditions in C under which it does, each with whether it varies with `side`.
    Padding that changes nothing (zeros in a sum, -inf in a maximum) is left out."""
    node, tests = root.source, []
    while (
        isinstance(node, View)
        and node not in plan.buffers
        and (node.guard is None or node.fill == start_of(root.kind, root.dtype))
    ):
        for index, extent in node.guard(place) if node.guard is not None else ():
            varies = not index.variables.isdisjoint(side.variables)
            tests += [(text, varies) for text in tests_of(index, extent)]
        place = node.mapping(place)
        node = node.source
    return node, place, tests


def _if(tests: Sequence[str], lines: list[str]) -> list[str]:
    return [f"if ({together(tests)}) {{", *indented(lines), "}"] if tests else lines


def _side_by_side(root: Reduce, kept: Sequence[int], plan: Plan) -> int | None:
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


# --- rows -----------------------------------------------------------------------------------------------------------


SOFTMAX = "(row[i] * scale)"
"""An element of a softmax as C, after `exponentials`."""


def exponentials(width: int) -> list[str]:
    """Makes exponentials of `row`, and `scale`, which makes a softmax of them."""
    return [
        "float top = -__builtin_inff();",
        "#pragma omp simd reduction(max:top)",
        f"for (long i = 0; i < {width}; i++) top = row[i] > top ? row[i] : top;",
        "float sum = 0.0f;",
        "#pragma omp simd reduction(+:sum)",
        f"for (long i = 0; i < {width}; i++) {{ const float e = nat_exp(row[i] - top); row[i] = e; sum += e; }}",
        "const float scale = 1.0f / sum;",
    ]


def rows(kernel: Kernel, plan: Plan, weights: Weights) -> list[str]:
    """A softmax or a normalisation: each row is read once into a thread's own memory, and written once."""
    root = kernel.root
    assert isinstance(root, (Softmax, Normalise))
    *lead, width = root.shape
    o, i = variable("o", math.prod(lead)), variable("i", width)
    place = (*unflatten(o, lead), i)
    body = Body(plan, weights, kernel.targets)
    element = body.value(root.source, place)
    if isinstance(root, Softmax):
        found = SOFTMAX
        middle = exponentials(width)
    else:
        found = "((row[i] - mean) * scale)"
        mean = [
            "float sum = 0.0f;",
            "#pragma omp simd reduction(+:sum)",
            f"for (long i = 0; i < {width}; i++) sum += row[i];",
            f"const float mean = sum * {literal(1.0 / width, 'float32')};",
        ]
        middle = [
            *(mean if root.centred else ["const float mean = 0.0f;"]),
            "float squares = 0.0f;",
            "#pragma omp simd reduction(+:squares)",
            f"for (long i = 0; i < {width}; i++) {{ const float d = row[i] - mean; squares += d * d; }}",
            f"const float scale = 1.0f / __builtin_sqrtf(squares * {literal(1.0 / width, 'float32')}"
            f" + {literal(root.epsilon, 'float32')});",
        ]
    inside = [
        *([OUTER] if body.guarded else []),
        f"float row[{width}];",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented([*body.lines, f"row[i] = {element};"]),
        "}",
        *middle,
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented(epilogue(kernel, plan, weights, place, found)),
        "}",
    ]
    return [*shares(math.prod(lead)), "for (long o = begin; o < end; o++) {", *indented(inside), "}"]
