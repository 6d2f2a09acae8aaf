"""Matrix products and convolutions as products of panels.

Both become C[m, n] = Σ A[m, k] · B[k, n]: for convolutions m counts output pixels, n output channels, and k kernel taps and
input channels (channels last, so that a tap is a run of memory). B is cut into panels of one or two vectors; weights are packed
when the region is compiled. A tile of the product stays in registers for all of k; then the kernel's epilogue computes on it and
stores. In bfloat16 both operands are rounded where they are packed; sums, and everything behind them, stay float32.

A matrix unit is as fast as what feeds it: threads share rows or columns, whichever makes each read less from beyond its
second-level cache. A tuner may cut k for it into pieces of a panel that stay in the first-level cache; sums are in memory then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from bricolage.backends.native.cpu.block_products import FEW_ROWS, BlockOperand
from bricolage.backends.native.cpu.emit import VECTORISED, ByteRuns, epilogue, indented
from bricolage.backends.native.cpu.gemm_blocks import (
    BYTES_IN_FOURS,
    CHEAP_PANEL_TILES,
    FEW_TILES,
    PACKING_COST,
    ComputedRows,
    GemmBlocks,
    TileRows,
    TileSharing,
    column_scales,
    own_steps,
)
from bricolage.backends.native.cpu.implicit_gemm import Product, product
from bricolage.backends.native.cpu.kernel_choice import MOST_BYTES, GemmConfig
from bricolage.backends.native.cpu.matrix_unit import Tiles
from bricolage.backends.native.cpu.packing import Packing, constant_of
from bricolage.backends.native.cpu.panels import MicroTile, ProductOperand
from bricolage.backends.native.cpu.phase import ConstantBlock, FunctionMemory, Phase, local
from bricolage.backends.native.cpu.sharing import ParallelRange
from bricolage.backends.native.cpu.target import CpuTarget
from bricolage.backends.native.cpu.windows import Windows, windows
from bricolage.backends.native.fuse.plan import FusionPlan, PlannedKernel
from bricolage.backends.native.ir.indexing import variable
from bricolage.backends.native.ir.tensors import STORED_BYTES, STORED_TYPES, Conv, MatMul

_FEW_PACKED = 2048
"""Elements that each thread packs for itself: even where they are computed, that takes about as long as a meeting."""


def contraction(
    kernel: PlannedKernel,
    plan: FusionPlan,
    weights: ConstantBlock,
    target: CpuTarget,
    operand: ProductOperand,
    config: GemmConfig,
) -> list[Phase]:
    """The phases of a matrix product or convolution with its epilogue."""
    root = kernel.root
    assert isinstance(root, (MatMul, Conv))
    memory = FunctionMemory(weights)
    return GemmCodegen(kernel, plan, memory, target, product(root, target.lanes), operand, config).phases()


@dataclass
class GemmCodegen:
    """C of one product."""

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

    def phases(self) -> list[Phase]:
        """Work is shared by columns where there are more of them than rows: each thread then reads its own weights only."""
        p = self.p
        many = self.packing.reads_less_by_columns(self.target) if self.operand.in_tiles else p.n > p.m
        many = many and len(self.packing.columns) >= 2 * self.target.threads
        wanted = many if self.config.parallel is None else self.config.parallel == "n"
        if callable(p.right) and p.batch == 1 and wanted:
            return self._by_columns()
        if self.made is None and self.config.pack is None and (found := windows(self.kernel.root, p, self.operand)):  # type: ignore[arg-type]
            return [replace(self, windows=found)._by_rows()]
        return [self._by_rows()]

    def constant_right(self) -> list[str]:
        """Where the packed weights of a batch are, as declarations."""
        p, lanes = self.p, self.target.lanes
        key = (self.operand, constant_of(self.kernel.root), p.batch, p.k, p.n)
        offset = self.memory.weights.add(("panels", *key), lambda: self.operand.panels_of(p, lanes))
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

    def _by_columns(self) -> list[Phase]:
        """Rows are packed together first, where they must be; then each thread multiplies all of them with its panels."""
        p, packing = self.p, self.packing
        few = p.m <= FEW_ROWS if isinstance(self.operand, BlockOperand) else p.m * p.k <= _FEW_PACKED
        if packing.direct is not None or few:
            return [self.columns()]
        packed = FunctionMemory(self.memory.weights)
        pack = [
            "const long b = 0;",
            f"{packing.element} *restrict block = ({packing.element} *)shared;",
            *packing.row_of_numbers(0),
            *packing.rows("begin", "end", "0", packed),
        ]
        share = ParallelRange(p.m, PACKING_COST * packing.depth)
        shared = p.m * packing.pitch * packing.bytes
        left = f"(const {packing.element} *)shared"
        return [
            Phase(pack, share, packed.operands, thread_scratch=packing.row_bytes, shared_scratch=shared),
            self._multiplied(left, packing.pitch, [], 0),
        ]

    def columns(self, parts: int = 1) -> Phase:
        """Each thread packs all rows for itself, where they must be, and multiplies them with its panels: threads meet once less.
        With `parts` the loop is over the panels of a part, and goes through those at the same place in all parts."""
        p, packing, setup = self.p, self.packing, list[str]()
        if packing.direct is not None:
            return self._multiplied(packing.direct.pointer(self.memory), packing.direct.lda, setup, 0, parts)
        own = -(-p.m * packing.pitch * packing.bytes // 64) * 64
        setup += [f"{packing.element} *restrict block = ({packing.element} *)own;", *packing.row_of_numbers(own)]
        setup += packing.rows("0", str(p.m), "0", self.memory)
        return self._multiplied("block", packing.pitch, setup, own + packing.row_bytes, parts)

    def _multiplied(self, left: str, lda: int, setup: Sequence[str], own: int, parts: int = 1) -> Phase:
        """The phase that multiplies all rows in `left` with panels; a thread has used `own` bytes of its memory before."""
        count = len(self.packing.columns) // parts
        begin, end = ("begin", "end") if parts == 1 else (f"part * {count} + {each}" for each in ("begin", "end"))
        loop = [
            f"for (long panel = {begin}; panel < {end}; panel++) {{",
            *indented(self._panel(TileRows("0", str(self.tiles), left, lda, "0"))),
            "}",
        ]
        if parts > 1:
            loop = [f"for (long part = 0; part < {parts}; part++) {{", *indented(loop), "}"]
        right = self.constant_right()
        loop = self.operand.with_tile_config(self.tile_rows, loop)
        return Phase(
            ["const long b = 0;", *setup, *right, *self._sums(own), *loop],
            ParallelRange(count, parts * self.p.m * self.packing.depth * 2 * self.target.lanes),
            self.memory.operands,
            thread_scratch=own + self._sums_bytes(self.tiles),
            helpers=self.helpers,
        )

    def _sums_bytes(self, tiles: int) -> int:
        return tiles * self.tile_rows * 2 * self.target.lanes * 4 if self.k_blocks > 1 else 0

    def _sums(self, offset: int) -> list[str]:
        """Where the sums of a block of rows are, where they are in memory."""
        kind = self.operand.sums
        return [f"{kind} *restrict sums = ({kind} *)(own + {offset});"] if self.k_blocks > 1 else []

    def _by_rows(self) -> Phase:
        """Each thread takes batches, or rows, and goes through all panels with one block of rows after another."""
        p, tiles = self.p, self.tiles
        own = 0
        pack_right: list[str] = []
        if callable(p.right):
            right = self.constant_right()
        else:
            own, right, pack_right = (
                self.packing.right_bytes,
                [self.packing.packed_right(0)],
                self.packing.right(self.memory),
            )
        lines: list[str] = []
        block_tiles = tiles
        if self.packing.direct is None or self.made is not None:
            mc = max(self.mr, self.mc_bytes // (self.packing.bytes * self.left.depth))
            block_tiles = -(-tiles // -(-self.m // mc))
        block_tiles = min(block_tiles, max(1, self.mc_rows // self.mr))
        if self.made is not None:
            made, kind = self.made, STORED_TYPES[self.made.buffer.dtype]
            lines.append(f"{kind} *const made = ({kind} *)(own + {own}) + {made.around * made.pitch};")
            elements = ((block_tiles + 1) * self.mr + 2 * made.around) * made.pitch
            own += -(-elements * STORED_BYTES[made.buffer.dtype] // 64) * 64
        if self.packing.direct is None:
            left, lda, origin = "block", self.left.pitch, "start"
            lines.append(f"{self.packing.element} *restrict block = ({self.packing.element} *)(own + {own});")
            own += ((block_tiles + 1) * self.mr + self._beyond) * self.left.pitch * self.packing.bytes
            if self.packing.row_bytes:
                own = -(-own // 64) * 64
                lines += self.packing.row_of_numbers(own)
                own += self.packing.row_bytes
        else:
            left, lda, origin = self.packing.direct.pointer(self.memory), self.packing.direct.lda, "0"
        if self.k_blocks > 1:
            block_tiles = min(block_tiles, -(-GemmBlocks(self.target.l2_bytes).sums // self._sums_bytes(1)))
            lines += self._sums(own)
            own += self._sums_bytes(block_tiles)
        work = [
            f"for (long first = low; first < high; first += {block_tiles}) {{",
            f"  const long last = first + {block_tiles} < high ? first + {block_tiles} : high;",
        ]
        if self.packing.direct is None or self.made is not None:
            work.append(f"  const long start = {self.m}L * first / {tiles}, stop = {self.m}L * last / {tiles};")
        if self.made is not None:
            kind, name = STORED_TYPES[self.made.buffer.dtype], local(self.made.buffer)
            work += [f"  {kind} *const {name} = made - start * {self.made.pitch};", *indented(self.made.lines)]
        if self.packing.direct is None:
            stop = f"stop + {self._beyond}" if self._beyond else "stop"
            work += indented(self.left.rows("start", stop, "start", self.memory))
        work += [*indented(self.over_panels("first", "last", left, lda, origin)), "}"]
        lines += self.sharing.over_batches([*right, *pack_right], work)
        return Phase(
            self.operand.with_tile_config(self.tile_rows, lines),
            self.sharing.range(block_tiles if block_tiles < tiles else self._few(bool(pack_right))),
            self.memory.operands,
            thread_scratch=own,
            helpers=self.helpers,
        )

    @property
    def _beyond(self) -> int:
        """Rows behind those of a block that it reads."""
        return self.windows.beyond if self.windows else 0

    def _few(self, packs: bool) -> int:
        """Tiles that a thread should do together, where they need not be for the sake of a cache: each piece reads all of the right
        side, and packs it where it must be."""
        return self.tiles if packs or self.prefetch else CHEAP_PANEL_TILES

    def over_panels(self, first: str, last: str, left: str, lda: int, origin: str) -> list[str]:
        """Multiplies the tiles from `first` to `last` with all panels, and stores what becomes of them. The rows of `left` are
        `lda` apart; its first is row `origin`."""
        return [
            f"for (long panel = 0; panel < {len(self.packing.columns)}; panel++) {{",
            *indented(self._panel(TileRows(first, last, left, lda, origin))),
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
                *indented(tiles(2, 2 * lanes)),
                "} else {",
                *indented(tiles(vectors[-1], last)),
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
        own, a = self._own_steps(), rows.address
        begins = (f"{a} + since * {self.operand.k_step}", f"columns + since * {step}") if own else (a, "columns")
        operands = f"(steps, {begins[0]}, {begins[1]}, tile{self._reads}{self._hops()});"
        calls = {count: f"{self._micro(count, vectors, rows.lda)}{operands}" for count in counts}
        call = calls.pop(self.tile_rows)
        for count, other in calls.items():
            call = f"if (count == {count}) {other} else {call}"
        return [
            rows.loop,
            f"  {self._where}",
            f"  const long since = {own}[t][0], steps = {own}[t][1];"
            if own
            else f"  const long steps = {self._pieces};",
            f"  {self.operand.sums} tile[{self.tile_rows * padded}] __attribute__((aligned(64)));",
            *(indented(ahead) if self.prefetch else []),
            f"  {call}",
            *indented(self._finish(rows, padded, width)),
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
            *(indented(rows.fetch(bytes_, behind, fetched), 2) if self.prefetch else []),
            f"    {micro}{operands}{self._reads}, piece == 0{self._hops(' + since')});",
            "  }",
            "}",
            rows.loop,
            f"  {self._where}",
            f"  const {self.operand.sums} *restrict tile = {tile};",
            *indented(self._finish(rows, padded, width)),
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
            *([] if self.p.m == 1 else indented(self._stored_row())),
            *(indented(rows.scale(self.packing.part)) if self.operand.scaled else []),
            *indented(self._epilogue(padded, width)),
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
        found = f"tile[r * {padded} + j]"
        if self.operand.scaled:
            found = f"((float)({found} - zero * totals[j]) * (scale * scales[j]))"
        runs = ByteRuns(j, width)
        lines = epilogue(self.kernel, self.plan, self.memory, coords, found, runs)
        if width == 1:
            return ["{", *indented(["const long j = 0;", *lines]), "}"]
        return runs.around([VECTORISED, f"for (long j = 0; j < {width}; j++) {{", *indented(lines), "}"])

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
