"""The tiles of a product, given where its rows are: what is multiplied in one piece, and what becomes of the sums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from functools import partial

from bricolage.native.cpu.block_floats import BlockFloats
from bricolage.native.cpu.emit import VECTORISED, ByteRuns, epilogue, indent_lines
from bricolage.native.cpu.gemm_blocks import TileRows, own_steps
from bricolage.native.cpu.packing import constant_identity
from bricolage.native.cpu.panels import START_BYTES, MicroTile
from bricolage.native.cpu.phase import FunctionMemory
from bricolage.native.cpu.tile_plan import TilePlan
from bricolage.native.ir.index_expressions import variable


@dataclass(frozen=True)
class ConstantRight:
    """Packed weights."""

    lines: list[str]
    """Declare where those of a batch are."""
    backwards: bool
    """Whether panels are gone through from the last one: what the step before has read last is then still in the cache. Read
    always forwards, weights that are a little larger than a cache are never in it."""


@dataclass(frozen=True)
class TileCodegen:
    """C of the tiles of one product."""

    tiling: TilePlan
    memory: FunctionMemory
    written: dict[str, str] = field(default_factory=dict)
    """Functions and tables that lines call so far, by name."""

    @property
    def helpers(self) -> dict[str, str]:
        """All functions and tables that they need."""
        return {**self.tiling.operand.helpers(self.tiling.target.isa), **self.written}

    def constant_right(self) -> ConstantRight:
        """The packed weights of a batch, which it puts into the region's constants."""
        tiling, packing, weights = self.tiling, self.tiling.packing, self.memory.weights
        p, lanes, operand = tiling.p, tiling.target.lanes, tiling.operand
        key = (operand, constant_identity(tiling.kernel.root), p.batch, p.k, p.n)
        offset = weights.add(("panels", *key), lambda: operand.panels_of(p, lanes))
        backwards = weights.asked[offset] % 2 == 0 and tiling.repeats_large
        kind = f"const {packing.element} *"
        if operand.uneven:
            starts = weights.add(("starts", *key), lambda: operand.panel_starts(p, lanes))
            table = f"{self.memory.constant(starts)}) + b * {len(packing.columns)}L;"
            lines = [
                f"{kind}restrict right = ({kind})({self.memory.constant(offset)});",
                f"const int32_t *restrict starts = (const int32_t *)({table}",
            ]
        else:
            per_batch = packing.column * (sum(packing.vectors) * lanes) * packing.bytes
            lines = [f"{kind}restrict right = ({kind})({self.memory.constant(offset)} + b * {per_batch}L);"]
        if operand.ordered:
            orders = weights.add(
                ("orders", *key),
                lambda: operand.orders(p.right(), lanes),  # type: ignore[operator]
            )
            at = f"{self.memory.constant(orders)}) + b * {len(packing.columns) * (1 + packing.steps)}L;"
            lines.append(f"const int32_t *restrict orders = (const int32_t *)({at}")
        return ConstantRight(lines, backwards)

    def over_panels(self, first: str, last: str, left: str, lda: int, origin: str) -> list[str]:
        """Multiplies the tiles from `first` to `last` with all panels, and stores what becomes of them. The rows of `left` are
        `lda` apart; its first is row `origin`."""
        return [
            f"for (long panel = 0; panel < {len(self.tiling.packing.columns)}; panel++) {{",
            *indent_lines(self._panel(TileRows(first, last, left, lda, origin))),
            "}",
        ]

    def _panel(self, rows: TileRows) -> list[str]:
        """The work on one panel, whose format may be one of two."""
        packing, formats = self.tiling.packing, self.tiling.operand.formats
        kind = f"const {packing.element} *restrict columns"
        if len(formats) == 1:
            return [f"{kind} = right + panel * {packing.wide * packing.column};", *self._panel_of_one_format(rows)]
        first, second = (replace(self, tiling=replace(self.tiling, operand=operand)) for operand in formats)
        return [
            f"{kind} = right + (starts[panel] >> 1) * {START_BYTES}L;",
            "if (starts[panel] & 1) {",
            *indent_lines(second._panel_of_one_format(rows)),
            "} else {",
            *indent_lines(first._panel_of_one_format(rows)),
            "}",
        ]

    def _panel_of_one_format(self, rows: TileRows) -> list[str]:
        """All panels but the last have the full width."""
        tiles = partial(self._piecewise if self.tiling.in_pieces else self._whole, rows)
        p, packing = self.tiling.p, self.tiling.packing
        vectors, count, wide = packing.vectors, len(packing.columns), packing.wide
        last = p.n - (count - 1) * wide
        narrow = last < wide
        full = count - 1 if narrow else count
        if full and narrow:
            return [
                f"if (panel < {full}) {{",
                *indent_lines(tiles(vectors[0], wide)),
                "} else {",
                *indent_lines(tiles(vectors[-1], last)),
                "}",
            ]
        return tiles(vectors[0], wide) if full else tiles(vectors[-1], last)

    def _whole(self, rows: TileRows, vectors: int, width: int) -> list[str]:
        """The loop over the tiles of a panel, given its vectors and the columns that count. All of k at once: the tile stays in
        registers."""
        tiling, operand, all_steps = self.tiling, self.tiling.operand, self.tiling.packing.steps
        padded = vectors * tiling.target.lanes
        step = operand.k_step * operand.right_splits * padded
        ahead = rows.fetch(step * tiling.packing.bytes, f"columns + {step * all_steps}", str(all_steps))
        # A matrix unit is set up for one size of tiles; the row too much that it may compute is there, and not stored.
        counts = tiling.row_counts
        steps_table, a = self._own_steps(), rows.address
        row_step = operand.row_group * operand.k_step
        begins = (f"{a} + since * {row_step}", f"columns + since * {step}") if steps_table else (a, "columns")
        operands = f"(steps, {begins[0]}, {begins[1]}, tile{self._reads}{self._hops()});"
        calls = {count: f"{self._micro(count, vectors, rows.lda)}{operands}" for count in counts}
        call = calls.pop(tiling.tile_rows)
        for count, other in calls.items():
            call = f"if (count == {count}) {other} else {call}"
        return [
            rows.loop,
            f"  {self._where}",
            f"  const long since = {steps_table}[t][0], steps = {steps_table}[t][1];"
            if steps_table
            else f"  const long steps = {tiling.pieces};",
            f"  {operand.sums} tile[{operand.planes * tiling.tile_rows * padded}] __attribute__((aligned(64)));",
            *(indent_lines(ahead) if tiling.prefetch else []),
            f"  {call}",
            *indent_lines(self._finish(rows, padded, width)),
            "}",
        ]

    def _piecewise(self, rows: TileRows, vectors: int, width: int) -> list[str]:
        """As `_whole`, with k in pieces: sums stay in memory meanwhile."""
        tiling, operand, in_windows = self.tiling, self.tiling.operand, self.tiling.windows
        padded = vectors * tiling.target.lanes
        step = operand.k_step * operand.right_splits * padded
        micro = self._micro(tiling.tile_rows, vectors, rows.lda)
        tile = f"sums + (t - {rows.first}) * {operand.planes * tiling.tile_rows * padded}"
        run = in_windows.run if in_windows else 1
        begins = rows.address if in_windows else f"{rows.address} + since * {operand.row_step}"
        right = f"columns + since * {run * step}"
        unpacking = self._unpack(vectors, right)
        operands = f"(steps, {begins}, {'unpacked' if unpacking else right}, {tile}"
        behind, fetched = f"columns + (since + steps) * {run * step}", f"(steps * {run})" if in_windows else "steps"
        ahead = rows.fetch(step * tiling.packing.bytes, behind, fetched)
        return [
            f"for (long piece = 0; piece < {tiling.k_blocks}; piece++) {{",
            f"  const long since = {tiling.pieces}L * piece / {tiling.k_blocks};",
            f"  const long steps = {tiling.pieces}L * (piece + 1) / {tiling.k_blocks} - since;",
            *unpacking,
            f"  {rows.loop}",
            f"    const long row = {tiling.m}L * t / {tiling.tiles};",
            *(indent_lines(ahead, 2) if tiling.prefetch else []),
            f"    {micro}{operands}{self._reads}, piece == 0{self._hops(' + since')});",
            "  }",
            "}",
            rows.loop,
            f"  {self._where}",
            f"  const {operand.sums} *restrict tile = {tile};",
            *indent_lines(self._finish(rows, padded, width)),
            "}",
        ]

    def _unpack(self, vectors: int, right: str) -> list[str]:
        """C that makes a piece of a panel ready for all rows, where that is done."""
        tiling, operand = self.tiling, self.tiling.operand
        if not tiling.unpacked:
            return []
        assert isinstance(operand, BlockFloats)
        name, self.written[name] = operand.unpacking(vectors, tiling.target.lanes)
        return [f"  {name}(steps, {right}, unpacked);"]

    @property
    def _where(self) -> str:
        first_row = self.tiling.first_row
        return f"const long row = {first_row('t')}, count = {first_row('(t + 1)')} - row;"

    def _hops(self, since: str = "") -> str:
        """The last argument of a micro-kernel: where taps begin."""
        if not self.tiling.windows:
            return ""
        name, self.written[name] = self.tiling.windows.hops(self.tiling.left.pitch)
        return f", {name}{since}"

    @property
    def _reads(self) -> str:
        order = f", orders + panel * {1 + self.tiling.packing.steps}" if self.tiling.operand.ordered else ""
        return (", ahead, stride" if self.tiling.prefetch else "") + order

    def _finish(self, rows: TileRows, padded: int, width: int) -> list[str]:
        operand, k = self.tiling.operand, self.tiling.left.p.k
        return [
            *operand.declare_column_scales(self.tiling.p.k, padded),
            "for (long r = 0; r < count; r++) {",
            *([] if self.tiling.p.m == 1 else indent_lines(self._stored_row())),
            *indent_lines(operand.declare_row_scale(f"{rows.address} + {operand.row_at('r', rows.lda)}", k)),
            *indent_lines(self._epilogue(padded, width)),
            "}",
        ]

    def _stored_row(self) -> list[str]:
        """Declares the row of the product that row `r` of a tile is; goes on with the next where it is none."""
        return self.tiling.windows.row("row + r") if self.tiling.windows else ["const long m = row + r;"]

    def _own_steps(self) -> str:
        """Name of a table of each tile's `own_steps`; none in rows of bytes with own zero points, where padding is no zero."""
        tiling, packing, operand = self.tiling, self.tiling.packing, self.tiling.operand
        apart = tiling.windows or packing.direct is not None or operand.scaled or operand.ordered or operand.shifted
        table = (
            []
            if apart
            else own_steps(tiling.p, tiling.first_rows, packing.steps, operand.k_step, operand.turn(tiling.sets))
        )
        if not table:
            return ""
        rows = ", ".join(f"{{{since}, {count}}}" for since, count in table)
        name = f"steps_{hashlib.sha256(rows.encode()).hexdigest()[:12]}"
        self.written[name] = f"static const int {name}[{tiling.tiles}][2] = {{{rows}}};"
        return name

    def _epilogue(self, padded: int, width: int) -> list[str]:
        """From a row of the tile to the result in memory."""
        tiling, p, target = self.tiling, self.tiling.p, self.tiling.target
        nr = tiling.packing.wide
        j, panel = variable("j", width), variable("panel", -(-p.n // nr))
        coords = p.root_coords(variable("b", p.batch), variable("m", p.m), panel * nr + j)
        element = tiling.operand.sum_of(f"r * {padded} + j", tiling.tile_rows * padded)
        runs = ByteRuns(j, width, looks_up=target.isa.looks_up)
        lines = epilogue(tiling.kernel, tiling.plan, self.memory, coords, element, runs)
        self.written.update(runs.tables)
        if width == 1:
            return ["{", *indent_lines(["const long j = 0;", *lines]), "}"]
        return runs.around([VECTORISED, f"for (long j = 0; j < {width}; j++) {{", *indent_lines(lines), "}"])

    def _micro(self, rows: int, vectors: int, lda: int) -> str:
        tiling = self.tiling
        tile = MicroTile(
            rows,
            vectors,
            lda,
            tiling.target.lanes,
            part=tiling.left.part,
            prefetch=tiling.prefetch,
            adds=tiling.in_pieces,
            unroll=tiling.unroll,
            sets=tiling.sets,
            run=tiling.windows.run if tiling.windows else 0,
        )
        name, text = tiling.operand.micro_kernel(tile)
        self.written[name] = text
        return name
