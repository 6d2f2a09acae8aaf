"""Matrix products and convolutions as products of panels.

Both become C[m, n] = Σ A[m, k] · B[k, n]: for convolutions m counts output pixels, n output channels, and k kernel taps and
input channels (channels last, so that a tap is a run of memory). B is cut into panels of one or two vectors; weights are packed
when the region is compiled. Rows of A are read where they lie if they can be, otherwise a block of them is packed first, which
is where padding, strides and foreign layouts are dealt with. A tile of the product stays in registers for all of k; then the
kernel's epilogue computes on it and stores.

In bfloat16 both operands are rounded where they are packed, and neighbours along k are multiplied in pairs; sums, and everything
behind them, stay float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bricolage.backends.native.body import (
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
    trace,
    weights_at,
)
from bricolage.backends.native.fusion import Kernel, Plan
from bricolage.backends.native.indexing import ZERO, Index, constant, flatten, variable
from bricolage.backends.native.isa import Isa
from bricolage.backends.native.panels import Operand, micro_kernel, panels
from bricolage.backends.native.products import Product, product
from bricolage.backends.native.tensors import Conv, MatMul, Node, Place

_STREAMED_BYTES = 64 * 1024
"""Weights from this size on are fetched ahead: those of a whole network do not stay in the second-level cache."""
_FEW_TILES = 64
"""Tiles of a thread up to which waiting for a panel shows (3 % of ResNet-50)."""
_BLOCK_BYTES = 192 * 1024
"""Packed rows that are multiplied before the next are packed: a part of the second-level cache."""


def contraction(kernel: Kernel, plan: Plan, weights: Weights, isa: Isa, threads: int, operand: Operand) -> list[Phase]:
    """The phases of a matrix product or convolution with its epilogue."""
    root = kernel.root
    assert isinstance(root, (MatMul, Conv))
    return _Writer(kernel, plan, weights, isa, threads, product(root, isa.lanes), operand).phases()


@dataclass
class _Writer:
    kernel: Kernel
    plan: Plan
    weights: Weights
    isa: Isa
    threads: int
    p: Product
    operand: Operand

    def __post_init__(self) -> None:
        p, lanes = self.p, self.isa.lanes
        self.helpers: dict[str, str] = {}
        self.element, self.bytes = self.operand.element, self.operand.bytes
        self.steps = self.operand.steps(p.k)
        self.depth = self.steps * self.operand.together
        self.direct = self._direct(variable("b", p.batch), variable("m", p.m), variable("k", p.k))
        self.tiles = -(-p.m // self.isa.rows)
        wide = 2 * lanes
        self.columns = [(start, min(wide, p.n - start)) for start in range(0, p.n, wide)]
        self.vectors = [2 if width > lanes else 1 for _, width in self.columns]
        right_bytes = self.depth * self.bytes * p.n
        self.ahead = callable(p.right) and right_bytes > _STREAMED_BYTES and self.tiles <= _FEW_TILES * self.threads
        """Whether the next panel is fetched while one is multiplied."""

    def phases(self) -> list[Phase]:
        """Work is shared by columns where there are more of them than rows: each thread then reads its own weights only."""
        p = self.p
        many = p.n > p.m and len(self.columns) >= 2 * self.threads
        return self._by_columns() if callable(p.right) and p.batch == 1 and many else [self._by_rows()]

    def _constant_right(self) -> str:
        """Where the packed weights of a batch are, as a declaration."""
        p, lanes = self.p, self.isa.lanes
        offset = self.weights.add(
            ("panels", id(self.kernel.root)),
            lambda: panels(self.operand, p.right(), lanes),  # type: ignore[operator]
        )
        per_batch = self.depth * (sum(self.vectors) * lanes) * self.bytes
        kind = f"const {self.element} *"
        return f"{kind}restrict right = ({kind})({weights_at(offset)} + b * {per_batch}L);"

    def _by_columns(self) -> list[Phase]:
        """Rows are packed together first, where they must be; then each thread multiplies all of them with its panels."""
        p = self.p
        phases: list[Phase] = []
        right = self._constant_right()
        if self.direct is None:
            pack = [
                *shares(p.m),
                "const long b = 0;",
                f"{self.element} *restrict block = ({self.element} *)shared;",
                *self._pack_rows("begin", "end", "0"),
            ]
            phases.append(Phase(pack, shared=p.m * self.depth * self.bytes))
        left, lda = self.direct if self.direct is not None else (f"(const {self.element} *)shared", self.depth)
        body = [
            "const long b = 0;",
            right,
            *shares(len(self.columns)),
            "for (long panel = begin; panel < end; panel++) {",
            *indented(self._panel(self._tiles("0", str(self.tiles), left, lda, "0"))),
            "}",
        ]
        return [*phases, Phase(body, helpers=self.helpers)]

    def _by_rows(self) -> Phase:
        """Each thread takes batches, or rows, and goes through all panels with one block of rows after another."""
        p, tiles = self.p, self.tiles
        own = 0
        pack_right: list[str] = []
        if callable(p.right):
            right = self._constant_right()
        else:
            own = -(-sum(self.vectors) * self.isa.lanes * self.depth * self.bytes // 64) * 64
            right = f"{self.element} *restrict right = ({self.element} *)own;"
            pack_right = self._pack_right()
        lines: list[str] = []
        if self.direct is None:
            left, lda, origin = "block", self.depth, "start"
            rows_in_block = max(self.isa.rows, _BLOCK_BYTES // (self.bytes * self.depth))
            block_tiles = -(-tiles // -(-p.m // rows_in_block))
            lines.append(f"{self.element} *restrict block = ({self.element} *)(own + {own});")
            own += (block_tiles + 1) * self.isa.rows * self.depth * self.bytes
        else:
            (left, lda), origin = self.direct, "0"
            block_tiles = tiles
        over_columns = [
            f"for (long panel = 0; panel < {len(self.columns)}; panel++) {{",
            *indented(self._panel(self._tiles("first", "last", left, lda, origin))),
            "}",
        ]
        work = [
            f"for (long first = low; first < high; first += {block_tiles}) {{",
            f"  const long last = first + {block_tiles} < high ? first + {block_tiles} : high;",
        ]
        if self.direct is None:
            work += [
                f"  const long start = {p.m}L * first / {tiles}, stop = {p.m}L * last / {tiles};",
                *indented(self._pack_rows("start", "stop", "start")),
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
        return Phase(lines, own=own, helpers=self.helpers)

    def _direct(self, b: Index, i: Index, kk: Index) -> tuple[str, int] | None:
        """Pointer to row 0 of A as C, and the distance of its rows, if its elements lie in memory as rows."""
        node, place, guards = self.p.left(b, i, kk)
        if guards:
            return None
        found = trace(node, place, self.plan)
        if found is None:
            return None
        buffer, index = found
        if buffer.dtype != self.operand.dtype or self.depth != self.p.k:
            return None
        m_step, k_step = (step_of(index, v) for v in (i, kk))
        if m_step is None or k_step != (1 if self.p.k > 1 else 0) or (self.p.m > 1 and m_step < 1):
            return None
        origin = index.substitute(dict.fromkeys((*i.variables, *kk.variables), ZERO))
        return f"({pointer(buffer)} + {origin.c()})", m_step

    def _pack_rows(self, start: str, stop: str, origin: str) -> list[str]:
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
            *indented(self._moved(body, node, place, "to[c]")),
            "}",
        ]
        tests = [t for index, extent in guards for t in tests_of(index, extent)]
        inner = [f"{self.element} *restrict to = {run};"]
        if tests:
            zero = f"for (long c = 0; c < {p.runs[-1]}; c++) to[c] = 0;"
            inner += [f"if ({' && '.join(tests)}) {{", *indented(copy), f"}} else {zero}"]
        else:
            inner += copy
        lines = nested("t", p.runs[:-1], inner)
        if self.depth > p.k:
            lines.append(f"block[(m - {origin}) * {self.depth} + {p.k}] = 0;")
        if p.m == 1:
            return ["{", *indented(["const long m = 0; (void)m;", *lines]), "}"]
        return [f"for (long m = {start}; m < {stop}; m++) {{", *indented(lines), "}"]

    def _moved(self, body: Body, node: Node, place: Place, to: str) -> list[str]:
        """Statements that pack one element. What is stored in bfloat16 already is moved as it is."""
        narrow = self.operand.dtype == "bfloat16"
        found = trace(node, place, self.plan) if narrow else None
        if found is not None and found[0].dtype == "bfloat16":
            return [f"{to} = {pointer(found[0])}[{found[1].c()}];"]
        value = body.value(node, place)
        return [*body.lines, f"{to} = nat_narrow({value});" if narrow else f"{to} = {value};"]

    def _pack_right(self) -> list[str]:
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
        """One panel, `q`, of `count` alike: rows of k, or of pairs of k."""
        p, together = self.p, self.operand.together
        assert not callable(p.right)
        node, place_of = p.right
        panel, j = variable("q", count), variable("j", width)

        def row(first: Index, real: int) -> list[str]:
            column = panel * (2 * self.isa.lanes) + j + start
            moves: list[str] = []
            for part in range(together):
                to = f"to[j * {together} + {part}]" if together > 1 else "to[j]"
                body = Body(self.plan, self.weights)
                place = place_of(variable("b", p.batch), first + part, column)
                moves += ["{", *indented(self._moved(body, node, place, to)), "}"] if part < real else [f"{to} = 0;"]
            lines = [
                f"{self.element} *restrict to = {at} + k * {padded * together};",
                "#pragma GCC ivdep",
                f"for (long j = 0; j < {width}; j++) {{",
                *indented(moves),
                "}",
            ]
            if width < padded:
                lines.append(f"for (long j = {width * together}; j < {padded * together}; j++) to[j] = 0;")
            return lines

        whole, rest = divmod(p.k, together)
        lines: list[str] = []
        if whole:
            k = variable("k", whole)
            lines += [f"for (long k = 0; k < {whole}; k++) {{", *indented(row(k * together, together)), "}"]
        if rest:
            lines += ["{", f"  const long k = {whole};", *indented(row(constant(whole * together), rest)), "}"]
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
        p, lanes, tiles = self.p, self.isa.lanes, self.tiles

        def write(vectors: int, width: int) -> list[str]:
            small, large = p.m // tiles, -(-p.m // tiles)
            names = {rows: self._micro(rows, vectors, lda) for rows in (small, large) if rows}
            reads = "columns, tile"
            fetch: list[str] = []
            if self.ahead:
                row_bytes = vectors * lanes * self.operand.together * self.bytes
                reads += ", ahead, stride"
                fetch = [
                    f"  const long stride = ({row_bytes} + {last} - {first} - 1) / ({last} - {first});",
                    f"  const char *ahead = (const char *)(columns + {vectors * lanes * self.depth})"
                    f" + (t - {first}) * stride * {self.steps};",
                ]
            a = f"{left} + (row - {origin}) * {lda}" if origin != "0" else f"{left} + row * {lda}"
            call = f"{names[large]}({self.steps}, {a}, {reads});"
            if small != large and small:
                call = f"if (count == {large}) {call} else {names[small]}({self.steps}, {a}, {reads});"
            return [
                f"for (long t = {first}; t < {last}; t++) {{",
                f"  const long row = {p.m}L * t / {tiles}, count = {p.m}L * (t + 1) / {tiles} - row;",
                f"  float tile[{large * vectors * lanes}] __attribute__((aligned(64)));",
                *fetch,
                f"  {call}",
                "  for (long r = 0; r < count; r++) {",
                *([] if p.m == 1 else ["    const long m = row + r;"]),
                *indented(self._epilogue(vectors * lanes, width), 2),
                "  }",
                "}",
            ]

        return write

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
        name, text = micro_kernel(self.operand, rows, vectors, lda, self.isa.lanes, ahead=self.ahead)
        self.helpers[name] = text
        return name
