"""How both sides of a product lie for its micro-kernel: rows of A, where they lie or packed, and panels of B.

Rows of A are read where they lie if they lie in rows; otherwise they are packed, which is where padding, strides and foreign
layouts are dealt with. Where several bfloat16 numbers represent a float32, a packed row holds their first parts, then the
second ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bricolage.native.cpu.emit import (
    KEEP_SCALAR,
    Body,
    bounds_tests,
    conjunction,
    indent_lines,
    loop_step,
    nest_loops,
    trace_element,
)
from bricolage.native.cpu.gemm_blocks import GemmBlocks
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import ProductOperand
from bricolage.native.cpu.phase import FunctionMemory
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan
from bricolage.native.ir.index_expressions import ZERO, Index, constant, flatten, variable
from bricolage.native.ir.tensors import Constant, Conv, Coords, MatMul, Node

_SHORT = 64
"""Bytes of a run that is copied at once: compilers make a few moves of it that overlap; of a loop they make moves and single
bytes."""
_TOGETHER = 64
"""Numbers that are computed before they are rounded."""


@dataclass(frozen=True)
class Direct:
    """Rows of A that are read where they lie."""

    buffer: Buffer
    origin: Index
    """Of row 0 of a batch, in elements from the start of the buffer."""
    lda: int
    """Elements from one row to the next."""

    def pointer(self, memory: FunctionMemory) -> str:
        """Row 0 as C."""
        return f"({memory.pointer(self.buffer)} + {self.origin.c()})"


@dataclass
class Packing:
    """C that packs the sides of one product."""

    plan: FusionPlan
    isa: Isa
    p: Product
    operand: ProductOperand
    packs: bool = False
    """Whether rows are packed even where they could be read where they lie."""
    peak: str = ""
    """C of the peak that gives row `m` its scale, where it is not the row's own."""

    def __post_init__(self) -> None:
        p, lanes, operand = self.p, self.isa.lanes, self.operand
        self.element, self.bytes = operand.element, operand.bytes
        self.steps, self.depth = operand.steps(p.k), operand.row(p.k)
        self.column = operand.column(p.k)
        """Elements of a column of a panel."""
        self.part = operand.depth(p.k) // operand.splits
        """Elements of a packed row's first parts."""
        self.pitch = operand.pitch(p.k)
        self.wide = wide = operand.panel_vectors * lanes
        """Columns of a panel."""
        self.columns = [(start, min(wide, p.n - start)) for start in range(0, p.n, wide)]
        self.vectors = [2 if width > lanes else 1 for _, width in self.columns]
        self.direct = (
            None if self.packs else self._direct(variable("b", p.batch), variable("m", p.m), variable("k", p.k))
        )
        """Row 0 of A, and the distance of its rows in elements, if its elements lie in memory as rows."""

    @property
    def right_bytes(self) -> int:
        """Of all panels of a batch."""
        return -(-sum(self.vectors) * self.isa.lanes * self.column * self.bytes // 64) * 64

    @property
    def all_rows_bytes(self) -> int:
        """Of all packed rows of a batch, in whole groups."""
        return -(-self.p.m // self.operand.row_group) * self.operand.row_group * self.pitch * self.bytes

    def reads_less_by_columns(self, target: CpuTarget) -> bool:
        """Whether a thread of a matrix unit, which is as fast as what feeds it, reads less from beyond its second-level cache where
        threads share columns."""
        p, threads, stays = self.p, target.threads, GemmBlocks(target.l2_bytes).unit_rows
        left, right = p.m * self.pitch * self.bytes, p.n * self.column * self.bytes
        panels = -(-len(self.columns) // threads)
        by_columns = right // threads + (left if left <= stays else left * panels)
        by_rows = right * -(-left // threads // stays)
        return by_columns < by_rows

    def packed_right(self, offset: int) -> str:
        """Declares where a thread packs its panels: `offset` bytes from the start of its own memory."""
        return f"{self.element} *restrict right = ({self.element} *)(own + {offset});"

    def _direct(self, b: Index, i: Index, kk: Index) -> Direct | None:
        operand = self.operand
        if operand.splits > 1 or operand.whole_rows or operand.row_group > 1 or self.depth != self.p.k:
            return None
        return self._lies(self.operand.dtype, b, i, kk)

    def _lies(self, dtype: str, b: Index, i: Index, kk: Index) -> Direct | None:
        """Where the rows of A lie in memory as numbers of a type, if they do."""
        node, coords, guards = self.p.left(b, i, kk)
        if guards:
            return None
        element = trace_element(node, coords, self.plan)
        if element is None:
            return None
        buffer, index = element
        if buffer.dtype != dtype:
            return None
        m_step, k_step = (loop_step(index, v) for v in (i, kk))
        if m_step is None or k_step != (1 if self.p.k > 1 else 0) or (self.p.m > 1 and m_step < 1):
            return None
        origin = index.substitute(dict.fromkeys((*i.variables, *kk.variables), ZERO))
        return Direct(buffer, origin, m_step)

    @property
    def row_bytes(self) -> int:
        """Of a row that a thread keeps before it packs it; none where each number is packed by itself."""
        if not self._keeps_row or self.direct is not None:
            return 0
        return -(-(self.p.k * 4 if self.operand.whole_rows else self.part * self.bytes) // 64) * 64

    @property
    def _keeps_row(self) -> bool:
        """Whether a row is packed as a whole, be it of numbers or of operands."""
        return self.operand.whole_rows or self.operand.row_group > 1

    def row_of_numbers(self, offset: int) -> list[str]:
        """Declares where a thread keeps that row: `offset` bytes from the start of its own memory."""
        kind = "float" if self.operand.whole_rows else self.element
        return [f"{kind} *restrict numbers = ({kind} *)(own + {offset});"] if self.row_bytes else []

    def rows(self, start: str, stop: str, origin: str, memory: FunctionMemory) -> list[str]:
        """Copies rows of A to `block`, row `origin` first."""
        p, k, part = self.p, self.p.k, self.part
        to = f"block + {self.operand.row_at(f'(m - {origin})', self.pitch)}"
        if self.operand.whole_rows:
            return self._whole_rows(start, stop, lambda x: self.operand.pack_row(x, to, k, part, self.peak), memory)
        if not self._keeps_row:
            return self._over_rows(start, stop, self._row_of_operands(to, memory))
        lies = self._lies(self.operand.dtype, variable("b", p.batch), variable("m", p.m), variable("k", k))
        if lies is not None:
            at = f"{lies.pointer(memory)} + m * {lies.lda}"
            return self._over_rows(start, stop, [self.operand.spread_row(at, to, k, part)])
        kept = [*self._row_of_operands("numbers", memory), self.operand.spread_row("numbers", to, part, part)]
        return self._over_rows(start, stop, kept)

    def _row_of_operands(self, at: str, memory: FunctionMemory) -> list[str]:
        """C that makes operands of row `m` of A, one after another."""
        p = self.p
        m = variable("m", p.m)
        taps = [variable(f"t{n}", extent) for n, extent in enumerate(p.runs[:-1])]
        c = variable("c", p.runs[-1])
        node, coords, guards = p.left(variable("b", p.batch), m, flatten((*taps, c), p.runs))
        body = Body(self.plan, memory)
        run = f"{at} + {flatten((*taps, ZERO), p.runs).c()}"
        stored = trace_element(node, coords, self.plan) if self.operand.dtype == "bfloat16" else None
        if (short := self._short_run(node, coords, c, memory)) is not None:
            copy = [short]
        elif self.operand.dtype == "bfloat16" and (stored is None or stored[0].dtype != "bfloat16"):
            copy = self._emit_narrowing(body, node, coords, p.runs[-1])
        else:
            copy = [
                "#pragma GCC ivdep",
                f"for (long c = 0; c < {p.runs[-1]}; c++) {{",
                *indent_lines(self._emit_move(body, node, coords, "c", self.part, memory)),
                "}",
            ]
        zero = self.zeros("to", 0, p.runs[-1], p.fill)
        inner = [f"{self.element} *restrict to = {run};", *_within(guards, copy, zero, guarded=body.guarded)]
        lines = nest_loops("t", p.runs[:-1], inner)
        return [*lines, *self.zeros(at, p.k, self.part)]

    def _short_run(self, node: Node, coords: Coords, c: Index, memory: FunctionMemory) -> str | None:
        """C that copies a run of a few bytes that lie as they are packed; None of others."""
        count = self.p.runs[-1]
        element = (
            trace_element(node, coords, self.plan) if self.operand.dtype == "uint8" and 1 < count < _SHORT else None
        )
        if element is None or element[0].dtype != "uint8" or loop_step(element[1], c) != 1:
            return None
        start = element[1].substitute(dict.fromkeys(c.variables, ZERO))
        return f"__builtin_memcpy(to, {memory.pointer(element[0])} + {start.c()}, {count});"

    def _over_rows(self, start: str, stop: str, lines: list[str]) -> list[str]:
        if self.p.m == 1:
            return ["{", *indent_lines(["const long m = 0; (void)m;", *lines]), "}"]
        return [f"for (long m = {start}; m < {stop}; m++) {{", *indent_lines(lines), "}"]

    def peaks(self, start: str, stop: str, to: str, memory: FunctionMemory) -> list[str]:
        """Stores the peaks of rows of A where row 0 has its peak at `to`."""
        return self._whole_rows(start, stop, lambda x: f"{to}[m] = {self.operand.row_peak(x, self.p.k)};", memory)

    def _whole_rows(self, start: str, stop: str, statement: Callable[[str], str], memory: FunctionMemory) -> list[str]:
        """A statement for each row, of which it needs all numbers at a time: they are found first, unless they lie in
        memory as they are."""
        p = self.p
        whole = self._lies("float32", variable("b", p.batch), variable("m", p.m), variable("k", p.k))
        if whole is not None:
            at = f"{whole.pointer(memory)} + m * {whole.lda}"
            return self._over_rows(start, stop, [statement(at)])
        taps = [variable(f"t{n}", extent) for n, extent in enumerate(p.runs[:-1])]
        c = variable("c", p.runs[-1])
        node, coords, guards = p.left(variable("b", p.batch), variable("m", p.m), flatten((*taps, c), p.runs))
        body = Body(self.plan, memory)
        value = body.value(node, coords)
        copy = [
            "#pragma GCC ivdep",
            f"for (long c = 0; c < {p.runs[-1]}; c++) {{",
            *indent_lines([*body.lines, f"to[c] = {value};"]),
            "}",
        ]
        zero = [f"for (long c = 0; c < {p.runs[-1]}; c++) to[c] = 0;"]
        inner = [f"float *restrict to = numbers + {flatten((*taps, ZERO), p.runs).c()};"]
        inner += _within(guards, copy, zero, guarded=body.guarded)
        lines = [*nest_loops("t", p.runs[:-1], inner), statement("numbers")]
        return self._over_rows(start, stop, lines)

    def _emit_narrowing(self, body: Body, node: Node, coords: Coords, count: int) -> list[str]:
        """Statements that compute `count` numbers, some at a time, and store them as operands: no compiler makes the instruction
        that rounds out of the arithmetic of one number, which takes twice as long."""
        value = body.value(node, coords)
        lines: list[str] = []
        whole = count - count % _TOGETHER
        for start, stop in ((0, whole), (whole, count)):
            if start == stop:
                continue
            chunk = min(_TOGETHER, stop - start)
            lines += [
                f"for (long from = {start}; from < {stop}; from += {chunk}) {{",
                f"  float numbers[{_TOGETHER}] __attribute__((aligned(64)));",
                "  #pragma GCC ivdep",
                f"  for (long i = 0; i < {chunk}; i++) {{",
                "    const long c = from + i;",
                *indent_lines([*body.lines, f"numbers[i] = {value};"], 2),
                "  }",
                f"  split_narrow(numbers, to + from, {self.part}, {self.operand.splits}, {chunk});",
                "}",
            ]
        return lines

    def zeros(self, at: str, start: int, stop: int, fill: int = 0) -> list[str]:
        """Fills elements of a packed row, of each of its parts."""
        if self.operand.dtype == "uint8" and 1 < stop - start < _SHORT:
            return [f"__builtin_memset({at} + {start}, {fill}, {stop - start});"]
        return [
            f"for (long c = {start}; c < {stop}; c++) ({at})[{number * self.part} + c] = {fill};"
            for number in range(self.operand.splits if stop > start else 0)
        ]

    def kept(self, value: str, at: str, part: int) -> list[str]:
        """Statements that store a float at `to[at]` as an operand, its parts `part` apart."""
        if self.operand.splits == 1:
            return [f"to[{at}] = nat_narrow({value});" if self.operand.dtype == "bfloat16" else f"to[{at}] = {value};"]
        lines = [f"float rest = {value};"]
        for number in range(self.operand.splits):
            lines.append(f"const uint16_t part{number} = nat_narrow(rest);")
            lines.append(f"to[{at} + {number * part}] = part{number};")
            if number + 1 < self.operand.splits:
                lines.append(f"rest -= nat_widen(part{number});")
        return lines

    def _emit_move(
        self, body: Body, node: Node, coords: Coords, at: str, part: int, memory: FunctionMemory
    ) -> list[str]:
        """Statements that pack one element to `to[at]`, its parts `part` apart. What is stored in bfloat16 already is moved as
        it is."""
        narrow = self.operand.dtype == "bfloat16"
        element = trace_element(node, coords, self.plan) if narrow else None
        if element is not None and element[0].dtype == "bfloat16":
            return [f"to[{at}] = {memory.pointer(element[0])}[{element[1].c()}];"]
        value = body.value(node, coords)
        return [*body.lines, *self.kept(value, at, part)]

    def right(self, memory: FunctionMemory) -> list[str]:
        """Copies B of one batch to panels, padded with zeros."""
        lanes, columns, wide = self.isa.lanes, self.columns, self.wide
        full = sum(1 for _, width in columns if width == wide)
        groups = [(full, wide, wide)] if full else []
        groups += [(1, columns[i][1], self.vectors[i] * lanes) for i in range(full, len(columns))]
        lines: list[str] = []
        start, offset = 0, 0
        for count, width, padded in groups:
            at = f"right + {offset} + q * {self.column * padded}"
            lines += [
                f"for (long q = 0; q < {count}; q++) {{",
                *indent_lines(self._pack_panel(at, start, count, width, padded, memory)),
                "}",
            ]
            start += count * width
            offset += count * padded * self.column
        return lines

    def _pack_panel(
        self, at: str, start: int, count: int, width: int, padded: int, memory: FunctionMemory
    ) -> list[str]:
        """One panel, `q`, of `count` alike: rows of neighbours along k, in the order of `ProductOperand.panels`."""
        operand, k_pack = self.operand, self.operand.k_pack
        in_step = operand.k_step // k_pack
        row_size = padded * k_pack
        offset = (
            f"k * {row_size}"
            if operand.splits == 1
            else f"(k / {in_step} * {in_step * operand.splits} + k % {in_step}) * {row_size}"
        )
        to = f"{self.element} *restrict to = {at} + {offset};"
        column = variable("q", count) * self.wide + variable("j", width) + start

        def row(first: Index, real: int) -> list[str]:
            return self._pack_panel_row(to, first, real, column, width, padded, memory)

        whole, rest = divmod(self.p.k, k_pack)
        lines: list[str] = []
        if whole:
            k = variable("k", whole)
            lines += [f"for (long k = 0; k < {whole}; k++) {{", *indent_lines(row(k * k_pack, k_pack)), "}"]
        if rest:
            lines += ["{", f"  const long k = {whole};", *indent_lines(row(constant(whole * k_pack), rest)), "}"]
        packed, all_rows = whole + (rest > 0), self.steps * in_step
        if packed < all_rows:
            zeros = self._panel_zeros(0, row_size, in_step * row_size)
            lines += [f"for (long k = {packed}; k < {all_rows}; k++) {{", *indent_lines([to, *zeros]), "}"]
        return lines

    def _pack_panel_row(
        self, to: str, first: Index, real: int, column: Index, width: int, padded: int, memory: FunctionMemory
    ) -> list[str]:
        """One row of a panel from index `first` along k, of which `real` neighbours are there; `to` declares where it lies."""
        p, k_pack = self.p, self.operand.k_pack
        assert not callable(p.right)
        node, coords_of = p.right
        row_size = padded * k_pack
        apart = self.operand.k_step // k_pack * row_size
        moves: list[str] = []
        guarded = False
        for neighbour in range(k_pack):
            spot = f"j * {k_pack} + {neighbour}" if k_pack > 1 else "j"
            if neighbour < real:
                body = Body(self.plan, memory)
                coords = coords_of(variable("b", p.batch), first + neighbour, column)
                moves += ["{", *indent_lines(self._emit_move(body, node, coords, spot, apart, memory)), "}"]
                guarded |= body.guarded
            else:
                moves += [f"to[{spot} + {number * apart}] = 0;" for number in range(self.operand.splits)]
        return [
            *([KEEP_SCALAR] if guarded else []),
            to,
            "#pragma GCC ivdep",
            f"for (long j = 0; j < {width}; j++) {{",
            *indent_lines(moves),
            "}",
            *(self._panel_zeros(width * k_pack, row_size, apart) if width < padded and real else []),
        ]

    def _panel_zeros(self, start: int, stop: int, apart: int) -> list[str]:
        """Fills every part of a row with zeros; parts lie `apart`."""
        return [
            f"for (long j = {start}; j < {stop}; j++) to[j + {number * apart}] = 0;"
            for number in range(self.operand.splits)
        ]


def _within(guards: Sequence[tuple[Index, int]], copy: list[str], zero: list[str], *, guarded: bool) -> list[str]:
    """`copy` where all guards hold, and `zero` elsewhere; `guarded`: whether it has conditions of its own."""
    tests = [test for index, extent in guards for test in bounds_tests(index, extent)]
    if not tests:
        return [*([KEEP_SCALAR] if guarded else []), *copy]
    return [KEEP_SCALAR, f"if ({conjunction(tests)}) {{", *indent_lines(copy), "} else {", *indent_lines(zero), "}"]


def constant_identity(root: Node | None) -> int:
    """What the right side of a product is made of, as a number: steps of a recurrence share it."""
    assert isinstance(root, (MatMul, Conv))
    right = root.right if isinstance(root, MatMul) else root.weight
    assert isinstance(right, Constant)
    return right.identity
