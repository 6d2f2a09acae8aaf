"""C of loops: how a kernel finds the elements it needs, and the kernels that are plain loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bricolage.backends.native.functions import FUNCTIONS
from bricolage.backends.native.fusion import Buffer, Kernel, Plan
from bricolage.backends.native.indexing import ZERO, Index, Var, constant, flatten, unflatten, variable
from bricolage.backends.native.tensors import (
    C_TYPES,
    Constant,
    Gather,
    Node,
    Normalise,
    Place,
    Pointwise,
    Reduce,
    Softmax,
    View,
)

_LANES = 64
"""Accumulators of a reduction whose innermost dimension stays."""


def literal(value: float, dtype: str) -> str:
    """A number as C."""
    if dtype != "float32":
        return f"{int(value)}LL" if dtype == "int64" else str(int(value))
    if math.isnan(value):
        return '__builtin_nanf("")'
    if math.isinf(value):
        return "-__builtin_inff()" if value < 0 else "__builtin_inff()"
    return f"{float(value).hex()}f"


@dataclass
class Weights:
    """Constant data of a region, one block; every tensor starts at a multiple of 64 bytes."""

    arrays: list[tuple[int, object]] = field(default_factory=list)
    size: int = 0
    _known: dict[object, int] = field(default_factory=dict)

    def add(self, key: object, make: Callable[[], object]) -> int:
        """Offset in bytes of what `make` makes, once for each key."""
        if key not in self._known:
            array = make()
            self._known[key] = self.size
            self.arrays.append((self.size, array))
            self.size += -(-array.nbytes // 64) * 64  # type: ignore[attr-defined]
        return self._known[key]


class Body:
    """Statements of an innermost loop body, in single-assignment form; equal elements are found once."""

    def __init__(self, plan: Plan, weights: Weights, target: Buffer | None) -> None:
        self.lines: list[str] = []
        self.indices: list[Index] = []
        """Everything that is addressed or tested, to see how it depends on a loop variable."""
        self._plan = plan
        self._weights = weights
        self._target = target
        self._bound: dict[Node, str] = {}
        self._known: dict[tuple[Node, Place, str], str] = {}
        self._names = itertools.count()
        self._guards: list[str] = []

    def bind(self, node: Node, expression: str) -> None:
        """From now on the elements of `node` are this expression, wherever they are asked for."""
        self._bound[node] = expression

    def value(self, node: Node, place: Place) -> str:
        """C expression of an element."""
        if node in self._bound:
            return self._bound[node]
        guard = " && ".join(self._guards)
        key = (node, place, guard)
        if key not in self._known:
            self._known[key] = self._find(node, place)
        return self._known[key]

    def _find(self, node: Node, place: Place) -> str:
        buffer = self._plan.buffers.get(node)
        if buffer is not None and buffer is not self._target:
            return self._load(buffer, place)
        match node:
            case Constant():
                if node.elements == 1:
                    return literal(node.array.reshape(-1)[0], node.dtype)
                return self._constant(node, place)
            case Pointwise():
                inputs = [self.value(source, aligned_place(place, source.shape)) for source in node.inputs]
                parameters = {f"p{i}": literal(value, "float32") for i, value in enumerate(node.parameters)}
                text = FUNCTIONS[node.function].format(*inputs, type=C_TYPES[node.dtype], **parameters)
                return self.name(node.dtype, text)
            case View():
                return self._view(node, place)
            case Gather():
                return self._gather(node, place)
        raise AssertionError(f"{type(node).__name__} is not computed inside a kernel")

    def _view(self, node: View, place: Place) -> str:
        if node.guard is None:
            return self.value(node.source, node.mapping(place))
        tests = []
        for index, extent in node.guard(place):
            self.indices.append(index)
            low, high = index.range
            tests += [f"{index.c()} >= 0"] if low < 0 else []
            tests += [f"{index.c()} < {extent}"] if high >= extent else []
        if not tests:
            return self.value(node.source, node.mapping(place))
        test = self.name("bool", " && ".join(f"({t})" for t in tests))
        self._guards.append(test)
        inner = self.value(node.source, node.mapping(place))
        self._guards.pop()
        return self.name(node.dtype, f"{test} ? {inner} : {literal(node.fill, node.dtype)}")

    def _gather(self, node: Gather, place: Place) -> str:
        axis, rank = node.axis, len(node.indices.shape)
        index = self.value(node.indices, place[axis : axis + rank])
        extent = node.source.shape[axis]
        chosen = self.name("int64", f"nat_wrap({index}, {extent})")
        found = Index(((Var(chosen, extent), 1),))
        return self.value(node.source, (*place[:axis], found, *place[axis + rank :]))

    def _load(self, buffer: Buffer, place: Place) -> str:
        return self._read(pointer(buffer), buffer.dtype, address(buffer, place))

    def _constant(self, node: Constant, place: Place) -> str:
        offset = self._weights.add(id(node.array), lambda: node.array)
        base = f"(({'const ' + C_TYPES[node.dtype]} *)(weights + {offset}))"
        return self._read(base, node.dtype, flatten(place, node.shape))

    def _read(self, base: str, dtype: str, index: Index) -> str:
        self.indices.append(index)
        load = f"{base}[{index.c()}]"
        if self._guards:
            load = f"({' && '.join(self._guards)}) ? {load} : 0"
        return self.name(dtype, load)

    def name(self, dtype: str, expression: str) -> str:
        made = f"v{next(self._names)}"
        self.lines.append(f"const {C_TYPES[dtype]} {made} = {expression};")
        return made


def aligned_place(place: Place, shape: Sequence[int]) -> Place:
    """The place in an input that broadcasts to the shape of `place`."""
    own = place[len(place) - len(shape) :]
    return tuple(ZERO if extent == 1 else index for index, extent in zip(own, shape, strict=True))


def address(buffer: Buffer, place: Place) -> Index:
    """Elements from the start of the buffer's home."""
    total = constant(buffer.offset)
    for index, stride in zip(place, buffer.strides, strict=True):
        total = total + index * stride
    return total


def pointer(buffer: Buffer) -> str:
    """The start of the buffer's home as C."""
    home, number = buffer.home
    return f"{home}_{number}_{buffer.dtype}"


def memory_order(buffer: Buffer) -> list[int]:
    """Dimensions from the outermost in memory to the innermost."""
    return sorted(range(len(buffer.shape)), key=lambda axis: -buffer.strides[axis])


def indented(lines: Sequence[str], depth: int = 1) -> list[str]:
    """Lines further to the right."""
    return ["  " * depth + line for line in lines]


def shares(count: int) -> list[str]:
    """The thread's part of `count` equal pieces, from `begin` to `end`."""
    return [
        f"const long begin = {count}L * tid / threads, end = {count}L * (tid + 1) / threads;",
    ]


@dataclass
class Phase:
    """Lines of a function `(io, arena, weights, own, shared, tid, threads)`; a barrier stands between phases."""

    lines: list[str]
    own: int = 0
    """Bytes of scratch memory that each thread needs."""
    shared: int = 0
    """Bytes of scratch memory that the threads share."""
    helpers: dict[str, str] = field(default_factory=dict)
    """Functions that it calls, by name."""


def trace(node: Node, place: Place, plan: Plan) -> tuple[str, Index] | None:
    """Where in memory an element lies, as a pointer in C and an index; None if it is computed or guarded."""
    while node not in plan.buffers:
        if not isinstance(node, View) or node.guard is not None:
            return None
        place = node.mapping(place)
        node = node.source
    buffer = plan.buffers[node]
    return pointer(buffer), address(buffer, place)


def step_of(index: Index, of: Index) -> int | None:
    """What a step of the loop variable that `of` is adds to an index; None where that depends on the place."""
    variables = [v for v in of.variables if isinstance(v, Var)]
    return index.stride(variables[0]) if variables else 0


def tests_of(index: Index, extent: int) -> list[str]:
    """Conditions in C under which an index lies from 0 to `extent`, without those that always hold."""
    low, high = index.range
    text = index.c()
    return ([f"{text} >= 0"] if low < 0 else []) + ([f"{text} < {extent}"] if high >= extent else [])


# --- element-wise ---------------------------------------------------------------------------------------------------


def elementwise(kernel: Kernel, plan: Plan, weights: Weights) -> list[str]:
    """One loop over the result in the order of its memory; as many dimensions as possible become the innermost loop."""
    target = kernel.target
    order = memory_order(target)
    extents = [target.shape[axis] for axis in order]
    for split in range(len(order) + 1):
        outer, inner = extents[:split], extents[split:]
        i = variable("i", math.prod(inner))
        o = variable("o", math.prod(outer))
        place = _place(order, (*unflatten(o, outer), *unflatten(i, inner)))
        body = Body(plan, weights, target)
        found = body.value(kernel.result, place)
        where = address(target, place)
        inner_variables = i.variables
        if split == len(order) or all(_linear(index, inner_variables) for index in (*body.indices, where)):
            break
    store = f"{pointer(target)}[{where.c()}] = {found};"
    count_outer, count_inner = math.prod(outer), math.prod(inner)
    if count_outer == 1:  # one long loop: the threads share it
        head = [*shares(count_inner), "#pragma GCC ivdep", "for (long i = begin; i < end; i++) {"]
        return [*head, *indented([*body.lines, store]), "}"]
    head = [*shares(count_outer), "for (long o = begin; o < end; o++) {"]
    if count_inner == 1:
        return [*head, *indented([*body.lines, store]), "}"]
    loop = ["#pragma GCC ivdep", f"for (long i = 0; i < {count_inner}; i++) {{", *indented([*body.lines, store]), "}"]
    return [*head, *indented(loop), "}"]


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
    body = Body(plan, weights, kernel.target)
    element = body.value(root.source, tuple(reads))
    total = "total[i - base]" if side is not None else "total"
    step = [*body.lines, f"{total} = {_STEP[root.kind].format(total, element)};"]
    finish = Body(plan, weights, kernel.target)
    finish.bind(root, f"({total} * {literal(1.0 / root.divisor, 'float32')})" if root.kind == "mean" else total)
    place = kernel.place_of_result(tuple(stays))
    value = finish.value(kernel.result, place)
    store = [*finish.lines, f"{pointer(kernel.target)}[{address(kernel.target, place).c()}] = {value};"]
    start = literal(_START[root.kind], root.dtype)
    if side is None:
        lines = step
        for n, axis in reversed(list(enumerate(reduced))):
            if root.source.shape[axis] == 1:
                continue
            pragma = []
            if lines is step:
                operator = {"sum": "+", "mean": "+", "product": "*"}.get(root.kind)
                pragma = [f"#pragma omp simd reduction({operator}:total)"] if operator else []
            lines = [
                *pragma,
                f"for (long r{n} = 0; r{n} < {root.source.shape[axis]}; r{n}++) {{",
                *indented(lines),
                "}",
            ]
        inside = [f"{C_TYPES[root.dtype]} total = {start};", *lines, *store]
    else:
        extent = root.shape[side]
        over = ["#pragma GCC ivdep", "for (long i = base; i < stop; i++) {", *indented(step), "}"]
        for n, axis in reversed(list(enumerate(reduced))):
            if root.source.shape[axis] > 1:
                over = [f"for (long r{n} = 0; r{n} < {root.source.shape[axis]}; r{n}++) {{", *indented(over), "}"]
        inside = [
            f"for (long base = 0; base < {extent}; base += {_LANES}) {{",
            f"  const long stop = base + {_LANES} < {extent} ? base + {_LANES} : {extent};",
            f"  {C_TYPES[root.dtype]} total[{_LANES}];",
            f"  for (long l = 0; l < {_LANES}; l++) total[l] = {start};",
            *indented(over),
            "  #pragma GCC ivdep",
            "  for (long i = base; i < stop; i++) {",
            *indented(store, 2),
            "  }",
            "}",
        ]
    count = math.prod(root.shape[axis] for axis in outer)
    if count == 1:
        return ["if (tid != 0) return;", *inside]
    return [*shares(count), "for (long o = begin; o < end; o++) {", *indented(inside), "}"]


def _side_by_side(root: Reduce, kept: Sequence[int], plan: Plan) -> int | None:
    """The dimension that stays and is innermost in the memory that is read."""
    node: Node = root.source
    while isinstance(node, (View, Pointwise)) and node not in plan.buffers:
        node = node.sources[0]
    buffer = plan.buffers.get(node)
    if buffer is None:
        return None
    innermost = memory_order(buffer)[-1] if buffer.shape else -1
    if (
        innermost in kept
        and len(root.shape) >= len(buffer.shape)
        and root.source.shape[innermost] == buffer.shape[innermost]
    ):
        return innermost if root.shape[innermost] >= 8 else None
    return None


# --- rows -----------------------------------------------------------------------------------------------------------


def rows(kernel: Kernel, plan: Plan, weights: Weights) -> list[str]:
    """A softmax or a normalisation: each row is read once into a thread's own memory, and written once."""
    root = kernel.root
    assert isinstance(root, (Softmax, Normalise))
    *lead, width = root.shape
    o, i = variable("o", math.prod(lead)), variable("i", width)
    place = (*unflatten(o, lead), i)
    body = Body(plan, weights, kernel.target)
    element = body.value(root.source, place)
    finish = Body(plan, weights, kernel.target)
    where = kernel.place_of_result(place)
    if isinstance(root, Softmax):
        finish.bind(root, "(row[i] * scale)")
        middle = [
            "float top = -__builtin_inff();",
            "#pragma omp simd reduction(max:top)",
            f"for (long i = 0; i < {width}; i++) top = row[i] > top ? row[i] : top;",
            "float sum = 0.0f;",
            "#pragma omp simd reduction(+:sum)",
            f"for (long i = 0; i < {width}; i++) {{ const float e = nat_exp(row[i] - top); row[i] = e; sum += e; }}",
            "const float scale = 1.0f / sum;",
        ]
    else:
        finish.bind(root, "((row[i] - mean) * scale)")
        middle = [
            "float sum = 0.0f;",
            "#pragma omp simd reduction(+:sum)",
            f"for (long i = 0; i < {width}; i++) sum += row[i];",
            f"const float mean = sum * {literal(1.0 / width, 'float32')};",
            "float squares = 0.0f;",
            "#pragma omp simd reduction(+:squares)",
            f"for (long i = 0; i < {width}; i++) {{ const float d = row[i] - mean; squares += d * d; }}",
            f"const float scale = 1.0f / __builtin_sqrtf(squares * {literal(1.0 / width, 'float32')}"
            f" + {literal(root.epsilon, 'float32')});",
        ]
    value = finish.value(kernel.result, where)
    store = [*finish.lines, f"{pointer(kernel.target)}[{address(kernel.target, where).c()}] = {value};"]
    inside = [
        f"float row[{width}];",
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented([*body.lines, f"row[i] = {element};"]),
        "}",
        *middle,
        "#pragma GCC ivdep",
        f"for (long i = 0; i < {width}; i++) {{",
        *indented(store),
        "}",
    ]
    return [*shares(math.prod(lead)), "for (long o = begin; o < end; o++) {", *indented(inside), "}"]
