"""Matrix products and convolutions as products of panels.

Both become C[m, n] = Σ A[m, k] · B[k, n]: for convolutions m counts output pixels, n output channels, and k kernel taps and
input channels (channels last, so that a tap is a run of memory). B is cut into panels of one or two vectors; weights are packed
when the region is compiled. Rows of A are read where they lie if they can be, otherwise a block of them is packed first, which
is where padding, strides and foreign layouts are dealt with. A tile of the product stays in registers for all of k; then the
kernel's epilogue computes on it and stores.

In bfloat16 both operands are rounded where they are packed, and neighbours along k are multiplied in pairs; sums, and everything
behind them, stay float32. Where several bfloat16 numbers stand for a float32, a packed row holds their first parts, then the
second ones.

A matrix unit is so fast that its panel must come from the first-level cache: where all of k does not fit, a block of rows goes
through the panel piece by piece, with its sums in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bricolage.backends.native.body import (
    OUTER,
    Body,
    Phase,
    Weights,
    epilogue,
    indented,
    nested,
    pointer,
    shares,
    step_of,
    tests_of,
    together,
    trace,
    weights_at,
)
from bricolage.backends.native.indexing import ZERO, Index, constant, flatten, variable
from bricolage.backends.native.isa import Isa
from bricolage.backends.native.matrix_unit import Tiles
from bricolage.backends.native.panels import Operand
from bricolage.backends.native.plan import Kernel, Plan
from bricolage.backends.native.products import Product, product
from bricolage.backends.native.tensors import Constant, Conv, MatMul, Node, Place

_STREAMED_BYTES = 64 * 1024
"""Weights from this size on are fetched ahead: those of a whole network do not stay in the second-level cache."""
_FEW_TILES = 64
"""Tiles of a thread up to which waiting for a panel shows (3 % of ResNet-50)."""
_BLOCK_BYTES = 192 * 1024
"""Packed rows that are multiplied before the next are packed: a part of the second-level cache."""
_UNIT_BLOCK_BYTES = 768 * 1024
"""The same for a matrix unit, which needs its panel for more rows; processors that have one have 2 MiB there."""
_PANEL_BYTES = 32 * 1024
"""What a matrix unit reads of a panel before it goes on with the next rows: a part of the first-level cache."""
_SUMS_BYTES = 128 * 1024
"""Sums of a block of rows in memory, where k is cut into pieces: a part of the second-level cache."""


@dataclass(frozen=True)
class Blocking:
    """How a product is cut up. What is None, rules of thumb decide."""

    block_bytes: int | None = None
    """Packed rows that are multiplied before the next are packed."""
    panel_bytes: int | None = None
    """What is read of a panel before the next rows; for a matrix unit."""
    by_columns: bool | None = None
    """Whether threads share columns rather than rows."""
    ahead: bool | None = None
    """Whether the next panel is fetched while one is multiplied."""


def contraction(
    kernel: Kernel,
    plan: Plan,
    weights: Weights,
    isa: Isa,
    threads: int,
    operand: Operand,
    blocking: Blocking = Blocking(),  # frozen
) -> list[Phase]:
    """The phases of a matrix product or convolution with its epilogue."""
    root = kernel.root
    assert isinstance(root, (MatMul, Conv))
    return Writer(kernel, plan, weights, isa, threads, product(root, isa.lanes), operand, blocking).phases()


def _constant_of(root: Node | None) -> np.ndarray:
    """The array that the right side of a product is made of: steps of a recurrence share it."""
    assert isinstance(root, (MatMul, Conv))
    right = root.right if isinstance(root, MatMul) else root.weight
    assert isinstance(right, Constant)
    return right.array


@dataclass
class Writer:
    """C of one product."""

    kernel: Kernel
    plan: Plan
    weights: Weights
    isa: Isa
    threads: int
    p: Product
    operand: Operand
    blocking: Blocking

    def __post_init__(self) -> None:
        p, lanes, blocking = self.p, self.isa.lanes, self.blocking
        self.helpers: dict[str, str] = {}
        self.element, self.bytes = self.operand.element, self.operand.bytes
        self.steps, self.depth = self.operand.steps(p.k), self.operand.row(p.k)
        self.rows = self.operand.rows(self.isa)
        self.tiles = -(-p.m // self.rows)
        self.most = -(-p.m // self.tiles)
        """Rows of the largest tile: all that there are, shared evenly."""
        wide = 2 * lanes
        unit = isinstance(self.operand, Tiles)
        pieces = -(-self.depth * wide * self.bytes // (blocking.panel_bytes or _PANEL_BYTES)) if unit else 1
        self.pieces = min(pieces, self.steps)
        """That k is cut into."""
        self.direct = self._direct(variable("b", p.batch), variable("m", p.m), variable("k", p.k))
        self.columns = [(start, min(wide, p.n - start)) for start in range(0, p.n, wide)]
        self.vectors = [2 if width > lanes else 1 for _, width in self.columns]
        right_bytes = self.depth * self.bytes * p.n
        streamed = right_bytes > _STREAMED_BYTES and self.tiles <= _FEW_TILES * self.threads
        self.ahead = callable(p.right) and (streamed if blocking.ahead is None else blocking.ahead)
        self.block_bytes = blocking.block_bytes or (_UNIT_BLOCK_BYTES if unit else _BLOCK_BYTES)

    def phases(self) -> list[Phase]:
        """Work is shared by columns where there are more of them than rows: each thread then reads its own weights only."""
        p = self.p
        many = p.n > p.m and len(self.columns) >= 2 * self.threads
        wanted = many if self.blocking.by_columns is None else self.blocking.by_columns
        return self._by_columns() if callable(p.right) and p.batch == 1 and wanted else [self._by_rows()]

    def constant_right(self) -> str:
        """Where the packed weights of a batch are, as a declaration."""
        p, lanes = self.p, self.isa.lanes
        offset = self.weights.add(
            ("panels", id(_constant_of(self.kernel.root)), p.batch, p.k, p.n),
            lambda: self.operand.panels(p.right(), lanes),  # type: ignore[operator]
        )
        per_batch = self.depth * (sum(self.vectors) * lanes) * self.bytes
        kind = f"const {self.element} *"
        return f"{kind}restrict right = ({kind})({weights_at(offset)} + b * {per_batch}L);"

    def _by_columns(self) -> list[Phase]:
        """Rows are packed together first, where they must be; then each thread multiplies all of them with its panels."""
        p = self.p
        phases: list[Phase] = []
        right = self.constant_right()
        if self.direct is None:
            pack = [
                *shares(p.m),
                "const long b = 0;",
                f"{self.element} *restrict block = ({self.element} *)shared;",
                *self.pack_rows("begin", "end", "0"),
            ]
            phases.append(Phase(pack, shared=p.m * self.depth * self.bytes))
        left, lda = self.direct if self.direct is not None else (f"(const {self.element} *)shared", self.depth)
        multiply = [
            "for (long panel = begin; panel < end; panel++) {",
            *indented(self._panel(self._tiles("0", str(self.tiles), left, lda, "0"))),
            "}",
        ]
        body = [
            "const long b = 0;",
            right,
            *self._sums(0),
            *shares(len(self.columns)),
            *self.operand.prepared(self.most, multiply),
        ]
        return [*phases, Phase(body, own=self._sums_bytes(self.tiles), helpers=self.helpers)]

    def _sums_bytes(self, tiles: int) -> int:
        return tiles * self.most * 2 * self.isa.lanes * 4 if self.pieces > 1 else 0

    def _sums(self, offset: int) -> list[str]:
        """Where the sums of a block of rows are, where they are in memory."""
        return [f"float *restrict sums = (float *)(own + {offset});"] if self.pieces > 1 else []

    def _by_rows(self) -> Phase:
        """Each thread takes batches, or rows, and goes through all panels with one block of rows after another."""
        p, tiles = self.p, self.tiles
        own = 0
        pack_right: list[str] = []
        if callable(p.right):
            right = self.constant_right()
        else:
            own, right, pack_right = self.right_bytes, self.packed_right(0), self.pack_right()
        lines: list[str] = []
        if self.direct is None:
            left, lda, origin = "block", self.depth, "start"
            rows_in_block = max(self.rows, self.block_bytes // (self.bytes * self.depth))
            block_tiles = -(-tiles // -(-p.m // rows_in_block))
            lines.append(f"{self.element} *restrict block = ({self.element} *)(own + {own});")
            own += (block_tiles + 1) * self.rows * self.depth * self.bytes
        else:
            (left, lda), origin = self.direct, "0"
            block_tiles = tiles
        if self.pieces > 1:
            block_tiles = min(block_tiles, -(-_SUMS_BYTES // self._sums_bytes(1)))
            lines += self._sums(own)
            own += self._sums_bytes(block_tiles)
        over_columns = self.over_panels("first", "last", left, lda, origin)
        work = [
            f"for (long first = low; first < high; first += {block_tiles}) {{",
            f"  const long last = first + {block_tiles} < high ? first + {block_tiles} : high;",
        ]
        if self.direct is None:
            work += [
                f"  const long start = {p.m}L * first / {tiles}, stop = {p.m}L * last / {tiles};",
                *indented(self.pack_rows("start", "stop", "start")),
            ]
        work += [*indented(over_columns), "}"]
        if p.batch >= self.threads and p.batch > 1:
            lines += [
                *shares(p.batch),
                "for (long b = begin; b < end; b++) {",
                *indented([right, *pack_right, f"const long low = 0, high = {tiles};", *work]),
                "}",
            ]
        else:
            lines += [
                f"for (long b = 0; b < {p.batch}; b++) {{",
                *indented([right, *pack_right]),
                f"  const long low = {tiles}L * tid / threads, high = {tiles}L * (tid + 1) / threads;",
                *indented(work),
                "}",
            ]
        return Phase(self.operand.prepared(self.most, lines), own=own, helpers=self.helpers)

    @property
    def right_bytes(self) -> int:
        """Of all panels of a batch."""
        return -(-sum(self.vectors) * self.isa.lanes * self.depth * self.bytes // 64) * 64

    def packed_right(self, offset: int) -> str:
        """Declares where a thread packs its panels: `offset` bytes from the start of its own memory."""
        return f"{self.element} *restrict right = ({self.element} *)(own + {offset});"

    def over_panels(self, first: str, last: str, left: str, lda: int, origin: str) -> list[str]:
        """Multiplies the tiles from `first` to `last` with all panels, and stores what becomes of them. The rows of `left` are
        `lda` apart; its first is row `origin`."""
        return [
            f"for (long panel = 0; panel < {len(self.columns)}; panel++) {{",
            *indented(self._panel(self._tiles(first, last, left, lda, origin))),
            "}",
        ]

    def _direct(self, b: Index, i: Index, kk: Index) -> tuple[str, int] | None:
        """Pointer to row 0 of A as C, and the distance of its rows, if its elements lie in memory as rows."""
        node, place, guards = self.p.left(b, i, kk)
        if guards:
            return None
        found = trace(node, place, self.plan)
        if found is None:
            return None
        buffer, index = found
        if buffer.dtype != self.operand.dtype or self.operand.parts > 1 or self.depth != self.p.k:
            return None
        m_step, k_step = (step_of(index, v) for v in (i, kk))
        if m_step is None or k_step != (1 if self.p.k > 1 else 0) or (self.p.m > 1 and m_step < 1):
            return None
        origin = index.substitute(dict.fromkeys((*i.variables, *kk.variables), ZERO))
        return f"({pointer(buffer)} + {origin.c()})", m_step

    def pack_rows(self, start: str, stop: str, origin: str) -> list[str]:
        """Copies rows of A to `block`, row `origin` first."""
        p = self.p
        m = variable("m", p.m)
        taps = [variable(f"t{n}", extent) for n, extent in enumerate(p.runs[:-1])]
        c = variable("c", p.runs[-1])
        node, place, guards = p.left(variable("b", p.batch), m, flatten((*taps, c), p.runs))
        body = Body(self.plan, self.weights)
        run = f"block + (m - {origin}) * {self.depth} + {flatten((*taps, ZERO), p.runs).c()}"
        copy = [
            "#pragma GCC ivdep",
            f"for (long c = 0; c < {p.runs[-1]}; c++) {{",
            *indented(self._moved(body, node, place, "c", self.depth // self.operand.parts)),
            "}",
        ]
        tests = [t for index, extent in guards for t in tests_of(index, extent)]
        inner = [f"{self.element} *restrict to = {run};"]
        if tests:
            zero = self.zeros("to", 0, p.runs[-1])
            inner += [OUTER, f"if ({together(tests)}) {{", *indented(copy), "} else {", *indented(zero), "}"]
        else:
            inner += [*([OUTER] if body.guarded else []), *copy]
        lines = nested("t", p.runs[:-1], inner)
        lines += self.zeros(f"block + (m - {origin}) * {self.depth}", p.k, self.depth // self.operand.parts)
        if p.m == 1:
            return ["{", *indented(["const long m = 0; (void)m;", *lines]), "}"]
        return [f"for (long m = {start}; m < {stop}; m++) {{", *indented(lines), "}"]

    def zeros(self, at: str, start: int, stop: int) -> list[str]:
        """Fills elements of a packed row, of each of its parts."""
        part = self.depth // self.operand.parts
        return [
            f"for (long c = {start}; c < {stop}; c++) ({at})[{number * part} + c] = 0;"
            for number in range(self.operand.parts if stop > start else 0)
        ]

    def _moved(self, body: Body, node: Node, place: Place, at: str, part: int) -> list[str]:
        """Statements that pack one element to `to[at]`, its parts `part` apart. What is stored in bfloat16 already is moved as
        it is."""
        narrow = self.operand.dtype == "bfloat16"
        found = trace(node, place, self.plan) if narrow else None
        if found is not None and found[0].dtype == "bfloat16":
            return [f"to[{at}] = {pointer(found[0])}[{found[1].c()}];"]
        value = body.value(node, place)
        return [*body.lines, *self.kept(value, at, part)]

    def kept(self, value: str, at: str, part: int) -> list[str]:
        """Statements that store a float at `to[at]` as an operand, its parts `part` apart."""
        if self.operand.parts == 1:
            return [f"to[{at}] = nat_narrow({value});" if self.operand.dtype == "bfloat16" else f"to[{at}] = {value};"]
        lines = [f"float rest = {value};"]
        for number in range(self.operand.parts):
            lines.append(f"const uint16_t part{number} = nat_narrow(rest);")
            lines.append(f"to[{at} + {number * part}] = part{number};")
            if number + 1 < self.operand.parts:
                lines.append(f"rest -= nat_widen(part{number});")
        return lines

    def pack_right(self) -> list[str]:
        """Copies B of one batch to panels, padded with zeros."""
        lanes, columns = self.isa.lanes, self.columns
        full = sum(1 for _, width in columns if width == 2 * lanes)
        groups = [(full, 2 * lanes, 2 * lanes)] if full else []
        groups += [(1, columns[i][1], self.vectors[i] * lanes) for i in range(full, len(columns))]
        lines: list[str] = []
        start, offset = 0, 0
        for count, width, padded in groups:
            at = f"right + {offset} + q * {self.depth * padded}"
            lines += [
                f"for (long q = 0; q < {count}; q++) {{",
                *indented(self._pack_panel(at, start, count, width, padded)),
                "}",
            ]
            start += count * width
            offset += count * padded * self.depth
        return lines

    def _pack_panel(self, at: str, start: int, count: int, width: int, padded: int) -> list[str]:
        """One panel, `q`, of `count` alike: rows of neighbours along k, in the order of `Operand.panels`."""
        p, operand, beside = self.p, self.operand, self.operand.together
        assert not callable(p.right)
        node, place_of = p.right
        panel, j = variable("q", count), variable("j", width)
        in_step = operand.step // beside
        row_size = padded * beside

        def row(first: Index, real: int) -> list[str]:
            column = panel * (2 * self.isa.lanes) + j + start
            moves: list[str] = []
            guarded = False
            for neighbour in range(beside):
                spot = f"j * {beside} + {neighbour}" if beside > 1 else "j"
                if neighbour < real:
                    body = Body(self.plan, self.weights)
                    place = place_of(variable("b", p.batch), first + neighbour, column)
                    moves += ["{", *indented(self._moved(body, node, place, spot, in_step * row_size)), "}"]
                    guarded |= body.guarded
                else:
                    moves += [f"to[{spot} + {number * in_step * row_size}] = 0;" for number in range(operand.parts)]
            lines = [
                *([OUTER] if guarded else []),
                f"{self.element} *restrict to = {at} + {offset_of_row};",
                "#pragma GCC ivdep",
                f"for (long j = 0; j < {width}; j++) {{",
                *indented(moves),
                "}",
            ]
            if width < padded and real:
                lines += [
                    f"for (long j = {width * beside}; j < {row_size}; j++) to[j + {number * in_step * row_size}] = 0;"
                    for number in range(operand.parts)
                ]
            return lines

        offset_of_row = (
            f"k * {row_size}"
            if operand.parts == 1
            else f"(k / {in_step} * {in_step * operand.parts} + k % {in_step}) * {row_size}"
        )
        whole, rest = divmod(p.k, beside)
        lines: list[str] = []
        if whole:
            k = variable("k", whole)
            lines += [f"for (long k = 0; k < {whole}; k++) {{", *indented(row(k * beside, beside)), "}"]
        if rest:
            lines += ["{", f"  const long k = {whole};", *indented(row(constant(whole * beside), rest)), "}"]
        packed, all_rows = whole + (rest > 0), self.steps * in_step
        if packed < all_rows:
            zeros = [
                f"{self.element} *restrict to = {at} + {offset_of_row};",
                *(
                    f"for (long j = 0; j < {row_size}; j++) to[j + {number * in_step * row_size}] = 0;"
                    for number in range(operand.parts)
                ),
            ]
            lines += [f"for (long k = {packed}; k < {all_rows}; k++) {{", *indented(zeros), "}"]
        return lines

    def _panel(self, tiles: Callable[[int, int], list[str]]) -> list[str]:
        """The work on one panel: all but the last have the full width."""
        p, lanes, vectors, count = self.p, self.isa.lanes, self.vectors, len(self.columns)
        last = p.n - (count - 1) * 2 * lanes
        narrow = last < 2 * lanes
        full = count - 1 if narrow else count
        lines = [f"const {self.element} *restrict columns = right + panel * {2 * lanes * self.depth};"]
        if full and narrow:
            return [
                *lines,
                f"if (panel < {full}) {{",
                *indented(tiles(2, 2 * lanes)),
                "} else {",
                *indented(tiles(vectors[-1], last)),
                "}",
            ]
        return [*lines, *(tiles(2, 2 * lanes) if full else tiles(vectors[-1], last))]

    def _tiles(self, first: str, last: str, left: str, lda: int, origin: str) -> Callable[[int, int], list[str]]:
        """Writes the loop over the tiles of a panel, given its vectors and the columns that count."""
        p, tiles = self.p, self.tiles
        a = f"{left} + (row - {origin}) * {lda}" if origin != "0" else f"{left} + row * {lda}"
        where = f"const long row = {p.m}L * t / {tiles}, count = {p.m}L * (t + 1) / {tiles} - row;"
        over = f"for (long t = {first}; t < {last}; t++) {{"

        def finish(padded: int, width: int) -> list[str]:
            return [
                "for (long r = 0; r < count; r++) {",
                *([] if p.m == 1 else ["  const long m = row + r;"]),
                *indented(self._epilogue(padded, width)),
                "}",
            ]

        def fetch(step: int, behind: str) -> list[str]:
            """What is behind in memory is fetched by all tiles together."""
            if not self.ahead:
                return []
            return [
                f"const long stride = ({step * self.bytes} + {last} - {first} - 1) / ({last} - {first});",
                f"const char *ahead = (const char *)({behind}) + (t - {first}) * stride * steps;",
            ]

        reads = ", ahead, stride" if self.ahead else ""

        def whole(vectors: int, width: int) -> list[str]:
            """All of k at once: the tile stays in registers."""
            padded = vectors * self.isa.lanes
            step = self.depth // self.steps * padded
            # A matrix unit is set up for one size of tiles; the row too much that it may compute is there, and not stored.
            counts = {self.most} if isinstance(self.operand, Tiles) else {p.m // tiles, self.most} - {0}
            calls = {rows: f"{self._micro(rows, vectors, lda)}(steps, {a}, columns, tile{reads});" for rows in counts}
            call = calls.pop(self.most)
            for rows, other in calls.items():
                call = f"if (count == {rows}) {other} else {call}"
            return [
                over,
                f"  {where}",
                f"  const long steps = {self.steps};",
                f"  float tile[{self.most * padded}] __attribute__((aligned(64)));",
                *indented(fetch(step, f"columns + {step * self.steps}")),
                f"  {call}",
                *indented(finish(padded, width)),
                "}",
            ]

        def piecewise(vectors: int, width: int) -> list[str]:
            """k in pieces: sums stay in memory meanwhile."""
            padded = vectors * self.isa.lanes
            step = self.depth // self.steps * padded
            micro = self._micro(self.most, vectors, lda)
            tile = f"sums + (t - {first}) * {self.most * padded}"
            return [
                f"for (long piece = 0; piece < {self.pieces}; piece++) {{",
                f"  const long since = {self.steps}L * piece / {self.pieces};",
                f"  const long steps = {self.steps}L * (piece + 1) / {self.pieces} - since;",
                f"  {over}",
                f"    const long row = {p.m}L * t / {tiles};",
                *indented(fetch(step, f"columns + (since + steps) * {step}"), 2),
                f"    {micro}(steps, {a} + since * {self.operand.step}, columns + since * {step}, {tile}{reads}, piece == 0);",
                "  }",
                "}",
                over,
                f"  {where}",
                f"  const float *restrict tile = {tile};",
                *indented(finish(padded, width)),
                "}",
            ]

        return piecewise if self.pieces > 1 else whole

    def _epilogue(self, padded: int, width: int) -> list[str]:
        """From a row of the tile to the result in memory."""
        p = self.p
        wide = 2 * self.isa.lanes
        j, panel = variable("j", width), variable("panel", -(-p.n // wide))
        place = p.root_place(variable("b", p.batch), variable("m", p.m), panel * wide + j)
        lines = epilogue(self.kernel, self.plan, self.weights, place, f"tile[r * {padded} + j]")
        if width == 1:
            return ["{", *indented(["const long j = 0;", *lines]), "}"]
        return ["#pragma GCC ivdep", f"for (long j = 0; j < {width}; j++) {{", *indented(lines), "}"]

    def _micro(self, rows: int, vectors: int, lda: int) -> str:
        name, text = self.operand.micro_kernel(
            rows, vectors, lda, self.isa.lanes, ahead=self.ahead, adds=self.pieces > 1
        )
        self.helpers[name] = text
        return name
