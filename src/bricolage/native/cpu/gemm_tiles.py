"""The tiles of a product, given where its rows are: what is multiplied in one piece, and what becomes of the sums."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

from bricolage.native.cpu.block_products import BlockOperand
from bricolage.native.cpu.emit import VECTORISED, ByteRuns, epilogue, indent_lines
from bricolage.native.cpu.gemm_blocks import (
    BYTES_IN_FOURS,
    FEW_TILES,
    ComputedRows,
    GemmBlocks,
    TileRows,
    TileSharing,
    column_scales,
    own_steps,
)
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.kernel_choice import MOST_BYTES, GemmConfig
from bricolage.native.cpu.matrix_unit import Tiles
from bricolage.native.cpu.packing import Packing, constant_identity
from bricolage.native.cpu.panels import MicroTile, ProductOperand
from bricolage.native.cpu.phase import FunctionMemory
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.windowed_conv import Windows
from bricolage.native.fuse.kernel_plan import FusionPlan, PlannedKernel
from bricolage.native.ir.index_expressions import variable


@dataclass
class TileCodegen:
    """C of the tiles of one product."""

    kernel: PlannedKernel
    plan: FusionPlan
    memory: FunctionMemory
    target: CpuTarget
    p: Product
    operand: ProductOperand
    config: GemmConfig
    made: ComputedRows | None = None
    windows: Windows | None = None
    """Where rows are pixels of images, which lie once in memory for all taps."""

    def __post_init__(self) -> None:
        p, lanes, config = self.p, self.target.lanes, self.config
        self.helpers: dict[str, str] = self.operand.helpers(self.target.isa)
        self.packing = Packing(self.plan, self.target.isa, p, self.operand, bool(config.pack))
        images = self.windows and Packing(self.plan, self.target.isa, self.windows.images, self.operand, packs=True)
        self.left = images or self.packing
        """Of the rows."""
        self.m = self.windows.m if self.windows else p.m
        registers = self.operand.rows(self.target.isa)
        self.mr = registers if self.operand.in_tiles else min(config.rows or registers, registers)
        self.tiles = -(-self.m // self.mr)
        self.tile_rows = -(-self.m // self.tiles)
        """Rows of the largest tile: all that there are, shared evenly."""
        self.sharing = TileSharing(p.batch, self.tiles, self.target.threads, self.m * self.packing.depth * p.n)
        nr, blocks = 2 * lanes, GemmBlocks(self.target.l2_bytes)
        unit = isinstance(self.operand, Tiles)
        of_bytes = unit and self.operand.k_pack == BYTES_IN_FOURS
        panel = self.packing.depth * nr * self.packing.bytes
        piece = blocks.piece(panel, in_windows=self.windows is not None) if of_bytes and self.tiles > 1 else MOST_BYTES
        k_blocks = -(-panel // (config.kc_bytes or piece)) if unit else 1
        self.k_blocks = min(k_blocks, len(self.windows.taps) if self.windows else self.packing.steps)
        """That k is cut into."""
        right_bytes = self.packing.depth * self.packing.bytes * p.n
        waits = (of_bytes and self.tiles > 1) or not unit
        streamed = right_bytes > blocks.streamed and self.tiles <= FEW_TILES * self.target.threads and waits
        stream = isinstance(self.operand, BlockOperand)  # which the processor fetches ahead by itself
        self.prefetch = callable(p.right) and not stream and (streamed if config.prefetch is None else config.prefetch)
        usual = blocks.made_rows if self.made is not None else blocks.unit_rows if unit else blocks.rows
        self.mc_bytes = config.mc_bytes or usual
        limited = of_bytes and config.mc_bytes is None and self.windows is None
        self.mc_rows = blocks.byte_rows(right_bytes, self.mr, packed=self.packing.direct is None) if limited else self.m
        """Rows that are multiplied with all panels, before the next ones are, at most."""
        self.repeats_large = self.tiles == 1 and right_bytes * 4 > self.target.threads * self.target.l2_bytes * 3
        """Whether a thread's weights fill more than three quarters of its cache, if they are read again for the next step."""
        self.backwards = False
        """Whether panels are gone through from the last one: what the step before has read last is then still in the cache. Read
        always forwards, weights that are a little larger than a cache are never in it."""

    def constant_right(self) -> list[str]:
        """Where the packed weights of a batch are, as declarations."""
        p, lanes = self.p, self.target.lanes
        key = (self.operand, constant_identity(self.kernel.root), p.batch, p.k, p.n)
        weights = self.memory.weights
        offset = weights.add(("panels", *key), lambda: self.operand.panels_of(p, lanes))
        self.backwards = weights.asked[offset] % 2 == 0 and self.repeats_large
        per_batch = self.packing.depth * (sum(self.packing.vectors) * lanes) * self.packing.bytes
        kind = f"const {self.packing.element} *"
        lines = [f"{kind}restrict right = ({kind})({self.memory.constant(offset)} + b * {per_batch}L);"]
        if self.operand.ordered:
            orders = self.memory.weights.add(
                ("orders", *key),
                lambda: self.operand.orders(p.right(), lanes),  # type: ignore[operator]
            )
            at = f"{self.memory.constant(orders)}) + b * {len(self.packing.columns) * (1 + self.packing.steps)}L;"
            lines.append(f"const int32_t *restrict orders = (const int32_t *)({at}")
        return lines

    def over_panels(self, first: str, last: str, left: str, lda: int, origin: str) -> list[str]:
        """Multiplies the tiles from `first` to `last` with all panels, and stores what becomes of them. The rows of `left` are
        `lda` apart; its first is row `origin`."""
        return [
            f"for (long panel = 0; panel < {len(self.packing.columns)}; panel++) {{",
            *indent_lines(self._panel(TileRows(first, last, left, lda, origin))),
            "}",
        ]

    def _panel(self, rows: TileRows) -> list[str]:
        """The work on one panel: all but the last have the full width."""
        tiles = partial(self._piecewise if self.k_blocks > 1 else self._whole, rows)
        p, lanes, vectors, count = self.p, self.target.lanes, self.packing.vectors, len(self.packing.columns)
        last = p.n - (count - 1) * 2 * lanes
        narrow = last < 2 * lanes
        full = count - 1 if narrow else count
        lines = [f"const {self.packing.element} *restrict columns = right + panel * {2 * lanes * self.packing.depth};"]
        if full and narrow:
            return [
                *lines,
                f"if (panel < {full}) {{",
                *indent_lines(tiles(2, 2 * lanes)),
                "} else {",
                *indent_lines(tiles(vectors[-1], last)),
                "}",
            ]
        return [*lines, *(tiles(2, 2 * lanes) if full else tiles(vectors[-1], last))]

    def _whole(self, rows: TileRows, vectors: int, width: int) -> list[str]:
        """The loop over the tiles of a panel, given its vectors and the columns that count. All of k at once: the tile stays in
        registers."""
        m, tiles, padded = self.m, self.tiles, vectors * self.target.lanes
        step = self.operand.k_step * self.operand.splits * padded
        bytes_ = step * self.packing.bytes
        ahead = rows.fetch(bytes_, f"columns + {step * self.packing.steps}", str(self.packing.steps))
        # A matrix unit is set up for one size of tiles; the row too much that it may compute is there, and not stored.
        counts = {self.tile_rows} if self.operand.in_tiles else {m // tiles, self.tile_rows} - {0}
        steps_table, a = self._own_steps(), rows.address
        begins = (
            (f"{a} + since * {self.operand.k_step}", f"columns + since * {step}") if steps_table else (a, "columns")
        )
        operands = f"(steps, {begins[0]}, {begins[1]}, tile{self._reads}{self._hops()});"
        calls = {count: f"{self._micro(count, vectors, rows.lda)}{operands}" for count in counts}
        call = calls.pop(self.tile_rows)
        for count, other in calls.items():
            call = f"if (count == {count}) {other} else {call}"
        return [
            rows.loop,
            f"  {self._where}",
            f"  const long since = {steps_table}[t][0], steps = {steps_table}[t][1];"
            if steps_table
            else f"  const long steps = {self._pieces};",
            f"  {self.operand.sums} tile[{self.tile_rows * padded}] __attribute__((aligned(64)));",
            *(indent_lines(ahead) if self.prefetch else []),
            f"  {call}",
            *indent_lines(self._finish(rows, padded, width)),
            "}",
        ]

    def _piecewise(self, rows: TileRows, vectors: int, width: int) -> list[str]:
        """As `_whole`, with k in pieces: sums stay in memory meanwhile."""
        padded = vectors * self.target.lanes
        step = self.operand.k_step * self.operand.splits * padded
        bytes_ = step * self.packing.bytes
        micro = self._micro(self.tile_rows, vectors, rows.lda)
        tile = f"sums + (t - {rows.first}) * {self.tile_rows * padded}"
        run = self.windows.run if self.windows else 1
        begins = rows.address if self.windows else f"{rows.address} + since * {self.operand.k_step}"
        operands = f"(steps, {begins}, columns + since * {run * step}, {tile}"
        behind, fetched = f"columns + (since + steps) * {run * step}", f"(steps * {run})" if self.windows else "steps"
        return [
            f"for (long piece = 0; piece < {self.k_blocks}; piece++) {{",
            f"  const long since = {self._pieces}L * piece / {self.k_blocks};",
            f"  const long steps = {self._pieces}L * (piece + 1) / {self.k_blocks} - since;",
            f"  {rows.loop}",
            f"    const long row = {self.m}L * t / {self.tiles};",
            *(indent_lines(rows.fetch(bytes_, behind, fetched), 2) if self.prefetch else []),
            f"    {micro}{operands}{self._reads}, piece == 0{self._hops(' + since')});",
            "  }",
            "}",
            rows.loop,
            f"  {self._where}",
            f"  const {self.operand.sums} *restrict tile = {tile};",
            *indent_lines(self._finish(rows, padded, width)),
            "}",
        ]

    @property
    def _where(self) -> str:
        m, tiles = self.m, self.tiles
        return f"const long row = {m}L * t / {tiles}, count = {m}L * (t + 1) / {tiles} - row;"

    @property
    def _pieces(self) -> int:
        """What a micro-kernel counts along k: steps, or taps."""
        return len(self.windows.taps) if self.windows else self.packing.steps

    def _hops(self, since: str = "") -> str:
        """The last argument of a micro-kernel: where taps begin."""
        if not self.windows:
            return ""
        name, self.helpers[name] = self.windows.hops(self.left.pitch)
        return f", {name}{since}"

    @property
    def _reads(self) -> str:
        order = f", orders + panel * {1 + self.packing.steps}" if self.operand.ordered else ""
        return (", ahead, stride" if self.prefetch else "") + order

    def _finish(self, rows: TileRows, padded: int, width: int) -> list[str]:
        return [
            *(column_scales(self.packing.part, padded) if self.operand.scaled else []),
            "for (long r = 0; r < count; r++) {",
            *([] if self.p.m == 1 else indent_lines(self._stored_row())),
            *(indent_lines(rows.scale(self.packing.part)) if self.operand.scaled else []),
            *indent_lines(self._epilogue(padded, width)),
            "}",
        ]

    def _stored_row(self) -> list[str]:
        """Declares the row of the product that row `r` of a tile is; goes on with the next where it is none."""
        return self.windows.row("row + r") if self.windows else ["const long m = row + r;"]

    def _own_steps(self) -> str:
        """Name of a table of each tile's `own_steps`; none in rows of bytes with own zero points, where padding is no zero."""
        apart = self.windows or self.packing.direct is not None or self.operand.scaled or self.operand.ordered
        table = [] if apart else own_steps(self.p, self.tiles, self.packing.steps, self.operand.k_step)
        if not table:
            return ""
        rows = ", ".join(f"{{{since}, {count}}}" for since, count in table)
        name = f"steps_{hashlib.sha256(rows.encode()).hexdigest()[:12]}"
        self.helpers[name] = f"static const int {name}[{self.tiles}][2] = {{{rows}}};"
        return name

    def _epilogue(self, padded: int, width: int) -> list[str]:
        """From a row of the tile to the result in memory."""
        p = self.p
        nr = 2 * self.target.lanes
        j, panel = variable("j", width), variable("panel", -(-p.n // nr))
        coords = p.root_coords(variable("b", p.batch), variable("m", p.m), panel * nr + j)
        element = f"tile[r * {padded} + j]"
        if self.operand.scaled:
            element = f"((float)({element} - zero * totals[j]) * (scale * scales[j]))"
        runs = ByteRuns(j, width, looks_up=self.target.isa.looks_up)
        lines = epilogue(self.kernel, self.plan, self.memory, coords, element, runs)
        self.helpers.update(runs.tables)
        if width == 1:
            return ["{", *indent_lines(["const long j = 0;", *lines]), "}"]
        return runs.around([VECTORISED, f"for (long j = 0; j < {width}; j++) {{", *indent_lines(lines), "}"])

    def _micro(self, rows: int, vectors: int, lda: int) -> str:
        tile = MicroTile(
            rows,
            vectors,
            lda,
            self.target.lanes,
            part=self.packing.part,
            prefetch=self.prefetch,
            adds=self.k_blocks > 1,
            unroll=self.config.unroll or 1,
            run=self.windows.run if self.windows else 0,
        )
        name, text = self.operand.micro_kernel(tile)
        self.helpers[name] = text
        return name
