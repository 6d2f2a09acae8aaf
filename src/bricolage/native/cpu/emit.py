"""C of what loops are made of: elements and where they lie, constants, and guards."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from bricolage.native.cpu.byte_tables import byte_before
from bricolage.native.cpu.math_c import function_of
from bricolage.native.cpu.phase import FunctionMemory
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, PlannedKernel
from bricolage.native.ir.bounds import magnitude, single
from bricolage.native.ir.index_expressions import ZERO, Index, Var, broadcast_coords, flatten
from bricolage.native.ir.tensors import (
    C_TYPES,
    STORED_BYTES,
    STORED_TYPES,
    Constant,
    Coords,
    Gather,
    Node,
    Pointwise,
    View,
)


def literal(value: float, dtype: str) -> str:
    """A number as C."""
    if dtype not in _FLOAT_SUFFIX:
        return f"{int(value)}{_INTEGER_SUFFIX.get(dtype, '')}"
    suffix = _FLOAT_SUFFIX[dtype]
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"-__builtin_inf{suffix}()" if value < 0 else f"__builtin_inf{suffix}()"
    return f"{float(value).hex()}{suffix}"


_FLOAT_SUFFIX = {"float32": "f", "float16": "f", "bfloat16": "f", "float64": ""}
_INTEGER_SUFFIX = {"int64": "LL", "uint64": "ULL", "uint32": "U"}

_LOADS = {"bfloat16": "nat_widen({})", "float16": "wide_from_half({})"}
_STORES = {"bfloat16": "nat_narrow({})", "float16": "wide_to_half({})"}
"""Conversions of element types that lie in memory otherwise than they are computed with."""


class Body:
    """Statements of an innermost loop body, in single-assignment form; equal elements are found once."""

    def __init__(
        self, plan: FusionPlan, memory: FunctionMemory, targets: Sequence[Buffer] = (), runs: ByteRuns | None = None
    ) -> None:
        """What lies in `targets` is computed here, and not read. `memory` takes note of what is read. Runs of bytes are read and
        stored as `runs` says, if it is given."""
        self.lines: list[str] = []
        self.indices: list[Index] = []
        """Everything that is addressed or tested, to see how it depends on a loop variable."""
        self.guarded = False
        """Whether some elements are read under conditions."""
        self._plan = plan
        self._memory = memory
        self._targets = targets
        self._runs = runs
        self._bound: dict[Node, str] = {}
        self._known: dict[tuple[Node, Coords, str], str] = {}
        self._names = itertools.count()
        self._guards: list[str] = []

    def bind(self, node: Node, expression: str) -> None:
        """From now on the elements of `node` are this expression, wherever they are asked for."""
        self._bound[node] = expression

    def value(self, node: Node, coords: Coords) -> str:
        """C expression of an element."""
        if node in self._bound:
            return self._bound[node]
        guard = conjunction(self._guards)
        key = (node, coords, guard)
        if key not in self._known:
            self._known[key] = self._find(node, coords)
        return self._known[key]

    def _find(self, node: Node, coords: Coords) -> str:
        buffer = self._plan.buffers.get(node)
        if buffer is not None and buffer not in self._targets:
            return self._load(buffer, coords)
        match node:
            case Constant():
                if node.elements == 1:
                    return literal(node.array.reshape(-1)[0], node.dtype)
                return self._constant(node, coords)
            case Pointwise(function="dequantise") if (
                ratio := self._find_ratio(node.inputs[0], node.inputs[1])
            ) is not None:
                # The byte itself is not asked for: what was rounded is a float already, less its zero point.
                x = self.value(ratio, broadcast_coords(coords, ratio.shape))
                scale = self.value(node.inputs[2], broadcast_coords(coords, node.inputs[2].shape))
                zero = single(node.inputs[1])
                low, high = (literal(value - zero, "float32") for value in node.inputs[0].parameters)  # type: ignore[attr-defined]
                return self.name(node.dtype, f"(nat_whole({x}, {low}, {high}) * {scale})")
            case Pointwise():
                inputs = [self.value(source, broadcast_coords(coords, source.shape)) for source in node.inputs]
                dtypes = [source.dtype for source in node.inputs]
                kind = "float64" if "float64" in dtypes else "float32"
                parameters = {f"p{i}": literal(value, kind) for i, value in enumerate(node.parameters)}
                text = function_of(node.function, dtypes).format(*inputs, type=C_TYPES[node.dtype], **parameters)
                # A byte that is computed stays as wide as what it comes from and goes to: it is narrowed where it is stored.
                return self.name("int32" if node.function == "saturate" else node.dtype, text)
            case View():
                return self._view(node, coords)
            case Gather():
                return self._gather(node, coords)
        raise AssertionError(f"{type(node).__name__} is not computed inside a kernel")

    def _view(self, node: View, coords: Coords) -> str:
        if node.guard is None:
            return self.value(node.source, node.locate(coords))
        tests = []
        for index, extent in node.guard(coords):
            self.indices.append(index)
            tests += bounds_tests(index, extent)
        if not tests:
            return self.value(node.source, node.locate(coords))
        test = self.name("bool", conjunction([f"({t})" for t in tests]))
        self._guards.append(test)
        inner = self.value(node.source, node.locate(coords))
        self._guards.pop()
        return self.name(node.dtype, f"{test} ? {inner} : {literal(node.fill, node.dtype)}")

    def _gather(self, node: Gather, coords: Coords) -> str:
        axis, rank = node.axis, len(node.indices.shape)
        index = self.value(node.indices, coords[axis : axis + rank])
        extent = node.source.shape[axis]
        chosen = self.name("int64", f"nat_wrap({index}, {extent})")
        position = Index(((Var(chosen, extent), 1),))
        return self.value(node.source, (*coords[:axis], position, *coords[axis + rank :]))

    def _load(self, buffer: Buffer, coords: Coords) -> str:
        index, start = _split_start(buffer.address(coords))
        return self._read(self._memory.pointer(buffer, start), buffer.dtype, index)

    def _constant(self, node: Constant, coords: Coords) -> str:
        index, start = _split_start(flatten(coords, node.shape))
        offset = self._memory.weights.add(id(node.array), lambda: node.array) + start * STORED_BYTES[node.dtype]
        base = f"(({'const ' + STORED_TYPES[node.dtype]} *){self._memory.constant(offset)})"
        return self._read(base, node.dtype, index)

    def _read(self, base: str, dtype: str, index: Index) -> str:
        self.indices.append(index)
        if self._runs is not None and not self._guards and (widened := self._runs.read(base, dtype, index)):
            return self.name("int32", widened)
        load = _LOADS.get(dtype, "{}").format(f"{base}[{index.c()}]")
        if self._guards:
            self.guarded = True
            load = f"({conjunction(self._guards)}) ? {load} : 0"
        return self.name(dtype, load)

    def stored(self, kernel: PlannedKernel, coords: Coords) -> list[str]:
        """All statements, with those that store what the kernel stores at `coords`."""
        store_lines = []
        for node, buffer in kernel.stores:
            self.indices.append(buffer.address(coords))
            store_lines.append(self._looked_up(node, buffer, coords) or self._store(node, buffer, coords))
        return [*self.lines, *store_lines]

    def _looked_up(self, result: Node, buffer: Buffer, coords: Coords) -> str | None:
        """A statement that keeps a byte for a run, whose function is looked up behind it; None where that does not suit."""
        if self._runs is None or not self._runs.looks_up:
            return None
        pointer, index = self._memory.pointer(buffer), buffer.address(coords)
        node = result
        while isinstance(node, View) and node.guard is None:
            coords = node.locate(coords)
            node = node.source
        stored = self._plan.buffers.get(node)
        byte = byte_before(node, self._plan.buffers) if stored is None or stored in self._targets else None
        if byte is None:
            return None
        function = Body(self._plan, self._memory, self._targets)
        function.bind(byte, "i")
        expression = function.value(node, coords)
        table = self._runs.table(function.lines, expression)
        kept = self._runs.stored(pointer, buffer.dtype, index, table)
        return f"{kept} = {self.value(byte, coords)};" if kept else None

    def _find_ratio(self, node: Node, zero: Node) -> Node | None:
        """What a byte is rounded from that is computed here, around that zero point; None where it is none."""
        if not isinstance(node, Pointwise) or node.function != "saturate" or node in self._bound:
            return None
        buffer, zero_point = self._plan.buffers.get(node), single(node.inputs[1])
        here = buffer is None or buffer in self._targets
        whole = tuple(node.parameters) == (0, 255) and zero_point is not None
        return node.inputs[0] if here and whole and zero_point == single(zero) else None

    def _store(self, node: Node, buffer: Buffer, coords: Coords) -> str:
        pointer, index = self._memory.pointer(buffer), buffer.address(coords)
        if (
            self._runs is not None
            and isinstance(node, Pointwise)
            and (ratio := self._find_ratio(node, node.inputs[-1]))
        ):
            zero = single(node.inputs[-1])
            assert zero is not None
            near = magnitude(ratio) < _NEAR
            if kept := self._runs.rounded(pointer, buffer.dtype, index, int(zero), near=near):
                return f"{kept} = {self.value(ratio, broadcast_coords(coords, ratio.shape))};"
        value = self.value(node, coords)
        if self._runs is not None and (kept := self._runs.stored(pointer, buffer.dtype, index)):
            return f"{kept} = {value};"
        stored = _STORES.get(buffer.dtype, "{}").format(value)
        return f"{pointer}[{index.c()}] = {stored};"

    def name(self, dtype: str, expression: str) -> str:
        """Gives a C expression a name of its own, and returns that."""
        identifier = f"v{next(self._names)}"
        self.lines.append(f"const {C_TYPES[dtype]} {identifier} = {expression};")
        return identifier


KEEP_SCALAR = '__asm__ volatile ("");'
"""A statement that does nothing, but the loop around it is not vectorised. Where GCC 12 vectorises an outer loop, having unrolled
the one inside, it mixes up the conditions of guarded elements that lie side by side, and takes some for zero."""

VECTORISED = "#pragma omp simd"
"""Said of loops whose iterations are independent and fill vectors, above all of those of one or two, such as epilogues over a tile:
GCC 12 writes these out before it looks for vectors, and then leaves those with conditions scalar, with a jump for each element:
with AVX2, a hard-swish took longer than its convolution. Of others it asks at run time whether memories overlap, for ten pairs at
most, whatever `ivdep` says: a loop with more stays scalar, as that of a recurrent cell did."""


def conjunction(tests: Sequence[str]) -> str:
    """All of these conditions, in C. They are all computed: of conditions that hide others (`&&`), GCC 12 splits loops in
    which it then takes guarded elements for zero, with AVX2 and AVX-512."""
    return " & ".join(tests)


_NEAR = 2.0**30
"""Floats below it are held by int32, however they were rounded on the way."""


def _split_start(index: Index) -> tuple[Index, int]:
    """An index, and how far ahead all that a loop reads by it begins. Only where that lies behind what it would read from the
    start of the tensor: the steps of a sequence then share one function, and the taps of a window keep one pointer."""
    moving = index - index.constant
    low, high = moving.range
    return (moving, index.constant) if low >= 0 and index.constant > high else (index, 0)


def epilogue(
    kernel: PlannedKernel,
    plan: FusionPlan,
    memory: FunctionMemory,
    coords: Coords,
    value: str,
    runs: ByteRuns | None = None,
) -> list[str]:
    """From an element of the kernel's root, at `coords` and in C `value`, to what is stored in its stead."""
    assert kernel.root is not None
    body = Body(plan, memory, kernel.targets, runs)
    body.bind(kernel.root, value)
    return body.stored(kernel, kernel.result_coords(coords))


@dataclass
class ByteRuns:
    """Runs of bytes that a loop over `j` reads and stores: they are widened ahead of it, and narrowed behind it. GCC 12 makes
    vectors of bytes, not of floats, of a loop that has both, or none: a product's epilogue took three to six times as long. Floats
    that become bytes are rounded and kept within their bounds behind it too, by the instructions that pack vectors."""

    j: Index
    count: int
    ahead: dict[str, str] = field(default_factory=dict)
    """Names of runs by where they lie."""
    behind: dict[str, str] = field(default_factory=dict)
    looks_up: bool = False
    """Whether long functions of a byte are looked up behind the loop."""
    tables: dict[str, str] = field(default_factory=dict)
    """C of tables by name: helpers of the function that the loop is in."""
    _through: dict[str, str] = field(default_factory=dict)
    """Names of tables by that of the run that is looked up there."""
    rounds: dict[str, tuple[str, int, bool]] = field(default_factory=dict)
    """Names of runs of floats that are rounded, their zero points, and whether int32 holds all of them."""

    def table(self, lines: Sequence[str], value: str) -> str:
        """The name of a table of `value`, which lines compute of the byte `i`. It is filled when the library is loaded."""
        text = "\n".join([*indent_lines(lines, 2), f"    @[i] = {value};"])
        name = f"table_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self.tables[name] = _TABLE.replace("@LINES@", text).replace("@", name)
        return name

    def read(self, base: str, dtype: str, index: Index) -> str | None:
        """An element of a run as C; None where there is none."""
        return self._element(self.ahead, "wide", base, dtype, index)

    def stored(self, base: str, dtype: str, index: Index, table: str = "") -> str | None:
        """The same of a run that is stored, by what a `table` has for it where one is given."""
        element = self._element(self.behind, "made", base, dtype, index)
        if element is not None and table:
            self._through[element.partition("[")[0]] = table
        return element

    def rounded(self, base: str, dtype: str, index: Index, zero: int, *, near: bool) -> str | None:
        """The same of one whose floats are rounded to bytes around a zero point."""
        where = self._start(base, dtype, index)
        if where is None:
            return None
        name, *_ = self.rounds.setdefault(where, (f"exact{len(self.rounds)}", zero, near))
        return f"{name}[{self.j.c()}]"

    def _element(self, runs: dict[str, str], kind: str, base: str, dtype: str, index: Index) -> str | None:
        where = self._start(base, dtype, index)
        return None if where is None else f"{runs.setdefault(where, f'{kind}{len(runs)}')}[{self.j.c()}]"

    def _start(self, base: str, dtype: str, index: Index) -> str | None:
        """Where the run begins that an element is of."""
        if dtype != "uint8" or loop_step(index, self.j) != 1 or self.count == 1:
            return None
        return f"{base} + {index.substitute(dict.fromkeys(self.j.variables, ZERO)).c()}"

    def around(self, loop: Sequence[str], start: str = "0") -> list[str]:
        """A loop over `j` from `start` on with its runs."""
        if not self.ahead and not self.behind and not self.rounds:
            return list(loop)
        names = [*self.ahead.values(), *self.behind.values()]
        skip = "" if start == "0" else f" + {start}"
        return [
            "{",
            *(f"  int32_t {name}[{self.count}] __attribute__((aligned(64)));" for name in names),
            *(f"  float {name}[{self.count}] __attribute__((aligned(64)));" for name, *_ in self.rounds.values()),
            *(f"  widen_bytes({where}, {name}, {self.count});" for where, name in self.ahead.items()),
            *indent_lines(loop),
            *(
                f"  {self._narrowing(name)}{name}{skip}, {where}{skip}, {self.count}{' - ' + start if skip else ''});"
                for where, name in self.behind.items()
            ),
            *(
                f"  round_bytes({name}{skip}, {where}{skip}, {self.count}{' - ' + start if skip else ''}, {zero}, {int(near)});"
                for where, (name, zero, near) in self.rounds.items()
            ),
            "}",
        ]

    def _narrowing(self, name: str) -> str:
        """What stores a run as bytes."""
        table = self._through.get(name)
        return "narrow_bytes(" if table is None else f"looked_up_bytes({table}, "


_TABLE = """
static int32_t @[256] __attribute__((aligned(64)));
static __attribute__((constructor)) void fill_@(void) {
  for (long i = 0; i < 256; i++) {
@LINES@
  }
}
""".strip()


def nest_loops(name: str, extents: Sequence[int], lines: list[str]) -> list[str]:
    """`lines` in loops over `name0`, `name1` and so on, without those that would run once."""
    for number, extent in reversed(list(enumerate(extents))):
        if extent > 1:
            variable = f"{name}{number}"
            lines = [f"for (long {variable} = 0; {variable} < {extent}; {variable}++) {{", *indent_lines(lines), "}"]
    return lines


def indent_lines(lines: Sequence[str], depth: int = 1) -> list[str]:
    """Lines further to the right."""
    return ["  " * depth + line for line in lines]


def trace_element(node: Node, coords: Coords, plan: FusionPlan) -> tuple[Buffer, Index] | None:
    """Where in memory an element lies: which buffer, and how many elements from its start; None if it is computed or guarded."""
    while node not in plan.buffers:
        if not isinstance(node, View) or node.guard is not None:
            return None
        coords = node.locate(coords)
        node = node.source
    buffer = plan.buffers[node]
    return buffer, buffer.address(coords)


def loop_step(index: Index, of: Index) -> int | None:
    """What a step of the loop variable that `of` is adds to an index; None where that differs."""
    variables = [v for v in of.variables if isinstance(v, Var)]
    return index.stride(variables[0]) if variables else 0


def bounds_tests(index: Index, extent: int) -> list[str]:
    """Conditions in C under which an index lies from 0 to `extent`, without those that always hold."""
    low, high = index.range
    if low < 0 and high >= extent:
        # One comparison: of two, GCC 12.2 makes wrong code in loops over two neighbours.
        return [f"(unsigned long)({index.c()}) < {extent}"]
    return ([f"{index.c()} >= 0"] if low < 0 else []) + ([f"{index.c()} < {extent}"] if high >= extent else [])
