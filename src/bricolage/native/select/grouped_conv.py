"""Grouped and depthwise convolutions as C: vectors of channels, and as many neighbouring output positions at once as registers
hold.

Every input that a row of positions needs is loaded once for each row of kernel taps, and so are the taps: one by one, each
multiplication would cost two loads. Threads share blocks of channels first, so that the rows that a block reads again stay in
the first-level cache; a block holds whole cache lines, since a vector may be half a line.

A vector holds whole groups, if they are small: a shuffle brings the i-th input of its group to every output, so that nothing is
multiplied with zeros. Where a group holds whole vectors, its inputs are broadcast one after another.

Bytes become float32 where they are loaded: sums of so few products of bytes are integers below 2^24, which float32 holds exactly.
Zero is taken from them first, so that padding may be left out; what that leaves out of the sums is what they start with.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

import numpy as np

from bricolage.native.cpu.emit import (
    KEEP_SCALAR,
    VECTORISED,
    Body,
    ByteRuns,
    bounds_tests,
    conjunction,
    epilogue,
    indent_lines,
    loop_step,
    nest_loops,
    trace_element,
)
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.phase import ConstantBlock, FunctionMemory, Phase
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.cpu.target import MOST_TAPS, VECTOR_DTYPES
from bricolage.native.fuse.joined_roots import fits_vectors
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import ZERO, Index, constant, flatten, unflatten, variable
from bricolage.native.ir.tensors import Constant, Conv
from bricolage.native.select.algorithm import Algorithm, KernelRequest, look_up_parameters

_MOST_POSITIONS = 14
_SINGLY = 4
"""Multiply-adds that take as long as one for a position alone."""
_MOST_EDGES = 4
"""Starts of neighbours at an edge that have code of their own."""
_LINE = 16
"""Floats of a cache line."""
EXACT_TERMS = 2**24 // (255 * 128)
"""Products of bytes whose sums float32 holds exactly."""


_LOADS = {
    "float32": ("load({})", "{}"),
    "bfloat16": ("(vec)load_narrow({})", "nat_widen({})"),
    "uint8": ("load_bytes({})", "(float){}"),
}
"""C of a vector, and of one element, as float32 by what lies in memory."""


def _applies(request: KernelRequest) -> bool:
    """To convolutions in groups that go by vectors of channels, or channel by channel; of bytes, where float32 holds their sums."""
    root = request.root
    if not isinstance(root, Conv) or root.groups == 1:
        return False
    if root.dtype == "int32" and root.depth > EXACT_TERMS:
        return False
    return root.depthwise or _codegen(request, ConstantBlock(dry=True)).regular


def _generate(request: KernelRequest, weights: ConstantBlock) -> list[Phase]:
    """The phase of a convolution in groups, with its epilogue."""
    writer = _codegen(request, weights)
    lines = [*writer.declared(), *(writer.blocks() if writer.regular else writer.singly())]
    return [Phase(lines, writer.share(), writer.memory.operands, helpers=writer.tables)]


def _codegen(request: KernelRequest, weights: ConstantBlock) -> GroupedConvCodegen:
    target = request.target
    memory = FunctionMemory(weights)
    return GroupedConvCodegen(request.kernel, request.plan, memory, target.isa, target.caches.l1_bytes)


@dataclass
class GroupedConvCodegen:
    """C of one grouped convolution."""

    kernel: PlannedKernel
    plan: FusionPlan
    memory: FunctionMemory
    isa: Isa
    l1_bytes: int

    def __post_init__(self) -> None:
        self.tables: dict[str, str] = {}
        """Of functions of bytes."""
        assert isinstance(self.kernel.root, Conv)
        self.root = self.kernel.root
        root, lanes = self.root, self.isa.lanes
        self.images, self.channels, *self.sizes = root.shape
        self.taps = root.weight.shape[2:]
        self.inputs, self.outputs = root.weight.shape[1], self.channels // root.groups
        """Channels of a group."""
        width, row = self.sizes[-1], self.taps[-1]
        most = max(2, min(_MOST_POSITIONS, 2 * self.isa.rows + 2 - row))
        self.positions = -(-width // -(-width // most))
        """Neighbours that are computed at once; the last ones of a row are computed again where they do not divide it."""
        self.rows = self.images * math.prod(self.sizes[:-1])
        """Rows of positions."""
        self.image, *self.outer = unflatten(variable("y", self.rows), (self.images, *self.sizes[:-1]))
        self.c = variable("c", max(1, self.channels - lanes + 1))
        self.x = variable("x", width - self.positions + 1)
        self.j = variable("j", lanes)

    def declared(self) -> list[str]:
        """Where the weights are."""
        root = self.root
        assert isinstance(root.weight, Constant)
        array = root.weight.array

        def by_tap() -> np.ndarray:
            """[taps, inputs of a group, outputs]."""
            flat = array.reshape(*array.shape[:2], -1).transpose(2, 1, 0)
            return np.ascontiguousarray(flat, dtype=np.float32)

        offset = self.memory.weights.add(("grouped", id(root)), by_tap)
        lines = [
            f"const float *restrict taps = (const float *){self.memory.constant(offset)};",
            "const vec zero = {0}; (void)zero;",
        ]
        if root.fill:
            start = self.memory.weights.add(
                ("starts", id(root)),
                lambda: by_tap().astype(np.float64).sum(axis=(0, 1)).astype(np.float32) * np.float32(root.fill),
            )
            lines.append(f"const float *restrict starts = (const float *){self.memory.constant(start)};")
        return lines

    @property
    def block(self) -> int:
        """Channels that are gone through before the next row: whole cache lines, and as many as leave the rows of the source that
        the next one reads again, the taps, and a row of results half of the first-level cache."""
        line = max(self.isa.lanes, _LINE)
        read = self.root.source.shape[-1] * (self.taps[-2] if len(self.taps) > 1 else 1)
        each = 4 * (read + self.sizes[-1] + math.prod(self.taps) * self.inputs)
        most = max(1, self.l1_bytes // 2 // each // line)
        blocks = -(-self.channels // (most * line))
        return -(-self.channels // blocks // line) * line

    @property
    def blocks_of_channels(self) -> int:
        """Into how many blocks the channels are cut."""
        return -(-self.channels // self.block)

    def share(self) -> ParallelRange:
        """What threads share: rows of a block of channels, or positions."""
        items = self.blocks_of_channels * self.rows if self.regular else self.images * math.prod(self.sizes)
        products = self.images * self.channels * self.inputs * math.prod((*self.sizes, *self.taps))
        return ParallelRange(items, (1 if self.regular else _SINGLY) * products // items)

    def _spot(self, axis: int, at: Index, tap: Index | int) -> Index:
        """Where an output position reads along a dimension."""
        root = self.root
        return at * root.strides[axis] + tap * root.dilations[axis] + (-root.pads[axis])

    @property
    def regular(self) -> bool:
        """Whether vectors of channels lie side by side in memory, and hold whole groups or are held by one."""
        lanes = self.isa.lanes
        if not fits_vectors(self.root, (lanes, lanes), MOST_TAPS):
            return False
        outer = [self._spot(axis, at, 0) for axis, at in enumerate(self.outer)]
        column = self._spot(len(self.outer), self.x, 0)
        j = variable("j", lanes if self.outputs < lanes else self.inputs)
        element = trace_element(self.root.source, (self.image, self._first_input + j, *outer, column), self.plan)
        return element is not None and element[0].dtype in VECTOR_DTYPES and loop_step(element[1], j) == 1

    @property
    def _first_input(self) -> Index:
        """First input channel that the block of outputs reads."""
        if self.outputs < self.isa.lanes:
            return self.c
        return variable("g", self.root.groups) * self.inputs

    def blocks(self) -> list[str]:
        """Blocks of channels, rows of output, and blocks of positions."""
        positions, width = self.positions, self.sizes[-1]
        starts = {min(at, width - positions) for at in range(0, width, positions)}
        start = f"q * {positions} < {width - positions} ? q * {positions} : {width - positions}"
        return [
            "for (long o = begin; o < end; o++) {",
            *([f"  const long y = o % {self.rows};"] if self.rows > 1 else []),
            f"  for (long q = 0; q < {-(-width // positions)}; q++) {{",
            *([f"    const long x = {start};"] if width > positions else []),
            *indent_lines(self._over_channels(f"o / {self.rows}", self._neighbours(starts)), 2),
            "  }",
            "}",
        ]

    def part(self, start: str, stop: str) -> list[str]:
        """Only the positions from `start` to `stop`, counted through all rows, and up to `positions` before and behind."""
        positions, width = self.positions, self.sizes[-1]
        past = f"from + {stop} - m < {width} ? from + {stop} - m : {width}"
        first = f"q + {positions} <= past ? q : past > {positions} ? past - {positions} : 0"
        return [
            f"for (long o = 0; o < {self.blocks_of_channels}; o++) {{",
            f"  for (long m = {start}; m < {stop};) {{",
            f"    const long {f'y = m / {width}, ' if self.rows > 1 else ''}from = m % {width}, past = {past};",
            f"    for (long q = from; q < past; q += {positions}) {{",
            *([f"      const long x = {first};"] if width > positions else []),
            *indent_lines(self._over_channels("o", self._neighbours(set(range(width - positions + 1)))), 3),
            "    }",
            "    m += past - from;",
            "  }",
            "}",
        ]

    def _over_channels(self, number: str, lines: list[str]) -> list[str]:
        """The vectors of a block of channels by number, the first channel of each in c. The very last one may begin earlier, and
        leaves alone what the one before has stored."""
        channels, lanes, block = self.channels, self.isa.lanes, self.block
        last = channels - lanes
        declared: list[str] = []
        if channels % lanes:
            declared += [f"const long c = at < {last} ? at : {last}, skip = at - c;"]
        elif channels > lanes:
            declared += ["const long c = at;"]
        if self.outputs >= lanes and self.root.groups > 1:
            declared.append(f"const long g = c / {self.outputs};")
        past = f"({number} + 1) * {block}"
        return [
            f"const long past_block = {f'{past} < {channels} ? {past} : {channels}' if channels % block else past};",
            f"for (long at = {number} * {block}; at < past_block; at += {lanes}) {{",
            f"  {KEEP_SCALAR}",
            *indent_lines([*declared, *lines]),
            "}",
        ]

    def _neighbours(self, starts: Set[int]) -> list[str]:
        """Neighbouring positions of a block of channels; the first, x, is one of `starts`. A few starts whose taps reach beyond the
        edge have code of their own, which leaves these taps out; where there are more, the others test every column."""
        lanes, positions, stride = self.isa.lanes, self.positions, self.root.strides[-1]
        reach = (positions - 1) * stride + (self.taps[-1] - 1) * self.root.dilations[-1]
        extent, before = self.root.source.shape[-1], self.root.pads[-1]
        edges = sorted(x for x in starts if x * stride < before or x * stride - before + reach >= extent)
        apart = edges if len(edges) <= _MOST_EDGES else [edges[0], edges[-1]]
        ways: list[tuple[str, list[str]]] = []
        if starts - set(edges):
            tests = bounds_tests(self._column(self.x, 0), extent) + bounds_tests(self._column(self.x, reach), extent)
            ways.append((conjunction(tests), self._over_taps(self.x, edge=False)))
        ways += [(f"x == {x}", self._over_taps(constant(x), edge=False)) for x in apart]
        if len(edges) > len(apart):
            ways.append(("", self._over_taps(self.x, edge=True)))
        work: list[str] = []
        for test, lines in ways[:-1]:
            work += [f"{'} else ' if work else ''}if ({test}) {{", *indent_lines(lines)]
        work += ["} else {", *indent_lines(ways[-1][1]), "}"] if work else ways[-1][1]
        start = f"load(starts + {self.c.c()})" if self.root.fill else "{0}"
        return [
            *(f"vec acc{r} = {start};" for r in range(positions)),
            *work,
            f"float tile[{positions * lanes}] __attribute__((aligned(64)));",
            *(f"*(vec *)(tile + {r * lanes}) = acc{r};" for r in range(positions)),
            *self._finish(),
        ]

    def _column(self, x: Index, beyond: int) -> Index:
        """The column of the source that is so far beyond the first that position x reads."""
        return x * self.root.strides[-1] + (beyond - self.root.pads[-1])

    def _over_taps(self, x: Index, *, edge: bool) -> list[str]:
        """All rows of taps for the positions from x on; at the edge, columns are tested, if x does not say where they lie."""
        root = self.root
        *outer_taps, _ = self.taps
        t = [variable(f"t{n}", extent) for n, extent in enumerate(outer_taps)]
        spots = [self._spot(axis, at, tap) for axis, (at, tap) in enumerate(zip(self.outer, t, strict=True))]
        tests = [text for axis, spot in enumerate(spots) for text in bounds_tests(spot, root.source.shape[2 + axis])]
        first = flatten((*t, ZERO), self.taps) * (self.inputs * self.channels) + self.c
        lines = [f"const float *w = taps + {first.c()};"]
        if self.outputs < self.isa.lanes:
            for i in range(self.inputs):
                lines += ["{", *indent_lines(self._row(x, spots, str(i), edge=edge)), "}"]
        else:
            lines += [
                f"for (long i = 0; i < {self.inputs}; i++) {{",
                *indent_lines(self._row(x, spots, "i", edge=edge)),
                "}",
            ]
        lines = (
            [f"if ({conjunction(tests)}) {{", *indent_lines(lines), "}"] if tests else ["{", *indent_lines(lines), "}"]
        )
        return nest_loops("t", outer_taps, lines)

    def _row(self, x: Index, spots: list[Index], i: str, *, edge: bool) -> list[str]:
        """A row of taps on the i-th input of every group."""
        root, row, lanes = self.root, self.taps[-1], self.isa.lanes
        stride, dilation = root.strides[-1], root.dilations[-1]
        tap = self.inputs * self.channels
        lines = [f"const vec w{k} = load(w + {k * tap} + {i} * {self.channels});" for k in range(row)]
        for u in range((self.positions - 1) * stride + (row - 1) * dilation + 1):
            uses = [
                (r, (u - r * stride) // dilation)
                for r in range(self.positions)
                if (u - r * stride) % dilation == 0 and 0 <= (u - r * stride) // dilation < row
            ]
            column = self._column(x, u)
            first, last = column.range
            if not uses or last < 0 or first >= root.source.shape[-1]:
                continue
            element = trace_element(root.source, (self.image, self._first_input, *spots, column), self.plan)
            assert element is not None
            where = f"{self.memory.pointer(element[0])} + {element[1].c()}"
            whole, single = _LOADS[element[0].dtype]
            whole, single = whole.format(where), single.format(f"({where})[i]")
            if root.fill:
                whole, single = f"({whole} - {root.fill}.0f)", f"({single} - {root.fill}.0f)"
            if self.outputs >= lanes:
                load = f"{single} - zero"
            elif self.inputs == 1:
                load = whole
            else:
                lane_order = ", ".join(str(lane - lane % self.inputs + int(i)) for lane in range(lanes))
                load = f"nat_shuffle({whole}, {lane_order})"
            outside = bounds_tests(column, root.source.shape[-1]) if edge else []
            value = f"{conjunction(outside)} ? (vec)({load}) : zero" if outside else load
            lines.append(f"{{ const vec v = {value}; {' '.join(f'acc{r} += v * w{k};' for r, k in uses)} }}")
        return lines

    def _finish(self) -> list[str]:
        """The epilogue of all positions."""
        lanes, r = self.isa.lanes, variable("r", self.positions)
        coords = (self.image, self.c + self.j, *self.outer, self.x + r)
        runs = ByteRuns(self.j, lanes, looks_up=self.isa.looks_up)
        lines = epilogue(self.kernel, self.plan, self.memory, coords, f"{self._sum}tile[r * {lanes} + j]", runs)
        self.tables.update(runs.tables)

        def loop(start: str) -> list[str]:
            return [
                f"for (long r = 0; r < {self.positions}; r++) {{",
                *indent_lines(
                    runs.around(
                        [VECTORISED, f"for (long j = {start}; j < {lanes}; j++) {{", *indent_lines(lines), "}"], start
                    )
                ),
                "}",
            ]

        if self.channels % lanes == 0:
            return loop("0")
        return ["if (skip == 0) {", *indent_lines(loop("0")), "} else {", *indent_lines(loop("skip")), "}"]

    @property
    def _sum(self) -> str:
        """What makes a sum of the root's type out of a float."""
        return "(int32_t)" if self.root.dtype == "int32" else ""

    def singly(self) -> list[str]:
        """Position by position, whatever the source is: for few channels, foreign layouts, and very long kernels."""
        root, channels = self.root, self.channels
        o = variable("o", self.images * math.prod(self.sizes))
        image, *spots = unflatten(o, (self.images, *self.sizes))
        tap = [variable(f"t{n}", extent) for n, extent in enumerate(self.taps)]
        reads = [self._spot(axis, spot, t) for axis, (spot, t) in enumerate(zip(spots, tap, strict=True))]
        tests = [t for axis, index in enumerate(reads) for t in bounds_tests(index, root.source.shape[2 + axis])]
        j = variable("j", channels)
        body = Body(self.plan, self.memory, self.kernel.targets)
        value = body.value(root.source, (image, j, *reads))
        # Said to be vectorised on its own, since GCC 12 makes wrong code of the loop over guarded taps around it.
        over = [
            f"const float *w = taps + {(flatten(tap, self.taps) * channels).c()};",
            VECTORISED,
            f"for (long j = 0; j < {channels}; j++) {{",
            *indent_lines([*body.lines, f"tile[j] += {f'({value} - {root.fill}.0f)' if root.fill else value} * w[j];"]),
            "}",
        ]
        over = [f"if ({conjunction(tests)}) {{", *indent_lines(over), "}"] if tests else ["{", *indent_lines(over), "}"]
        finish = epilogue(self.kernel, self.plan, self.memory, (image, j, *spots), f"{self._sum}tile[j]")
        return [
            "for (long o = begin; o < end; o++) {",
            f"  {KEEP_SCALAR}",
            f"  float tile[{channels}];",
            f"  for (long j = 0; j < {channels}; j++) tile[j] = {'starts[j]' if root.fill else '0.0f'};",
            *indent_lines(nest_loops("t", self.taps, over)),
            f"  {VECTORISED}",
            f"  for (long j = 0; j < {channels}; j++) {{",
            *indent_lines(finish, 2),
            "  }",
            "}",
        ]


GROUPED_CONV = Algorithm("grouped convolution", _applies, _generate, parameters=look_up_parameters)
