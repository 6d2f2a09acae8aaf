"""Matrix products and convolutions as products of panels.

Both become C[m, n] = Σ A[m, k] · B[k, n]: for convolutions m counts output pixels, n output channels, and k kernel taps and
input channels (channels last, so that a tap is a run of memory). B is cut into panels of one or two vectors; weights are packed
when the region is compiled. A tile of the product stays in registers for all of k; then the kernel's epilogue computes on it and
stores. In bfloat16 both operands are rounded where they are packed; sums, and everything behind them, stay float32.

A matrix unit is as fast as what feeds it: threads share rows or columns, whichever makes each read less from beyond its
second-level cache. A tuner may cut k for it into pieces of a panel that stay in the first-level cache; sums are in memory then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bricolage.native.cpu.block_format import BlockOperand
from bricolage.native.cpu.emit import indent_lines
from bricolage.native.cpu.gemm_blocks import CHEAP_PANEL_TILES, PACKING_COST, GemmBlocks, TileRows
from bricolage.native.cpu.gemm_tiles import TileCodegen
from bricolage.native.cpu.phase import FunctionMemory, Phase, local
from bricolage.native.cpu.sharing import ParallelRange
from bricolage.native.fuse.slice_pairs import FEW_ROWS
from bricolage.native.ir.tensors import STORED_BYTES, STORED_TYPES

_FEW_PACKED = 2048
"""Elements that each thread packs for itself: even where they are computed, that takes about as long as a meeting."""


@dataclass(frozen=True)
class GemmCodegen(TileCodegen):
    """C of one product."""

    def phases(self) -> list[Phase]:
        """The phases of a matrix product or convolution with its epilogue."""
        if self.tiling.by_columns:
            return self._by_columns()
        return [self._image_peaks(), self._by_rows()] if self.tiling.left.peak else [self._by_rows()]

    def _image_peaks(self) -> Phase:
        """The peak of each pixel, of which that of an image is found."""
        left, memory = self.tiling.left, FunctionMemory(self.memory.weights)
        lines = [
            "const long b = 0;",
            "(void)b;",
            "uint32_t *restrict peaks = (uint32_t *)shared;",
            *left.row_of_numbers(0),
            *left.peaks("begin", "end", "peaks", memory),
        ]
        share = ParallelRange(left.p.m, left.p.k)
        return Phase(lines, share, memory.operands, thread_scratch=left.row_bytes, shared_scratch=4 * left.p.m)

    def _declare_image_peaks(self) -> list[str]:
        """Declares the peak of each image."""
        windows = self.tiling.windows
        if windows is None or not self.tiling.left.peak:
            return []
        images = self.tiling.left.p.m // windows.area
        return [
            f"uint32_t image_peaks[{images}];",
            f"for (long i = 0; i < {images}; i++) {{",
            "  uint32_t peak = 0;",
            f"  const uint32_t *restrict peaks = (const uint32_t *)shared + i * {windows.area};",
            f"  for (long p = 0; p < {windows.area}; p++) peak = peaks[p] > peak ? peaks[p] : peak;",
            "  image_peaks[i] = peak;",
            "}",
        ]

    def _by_columns(self) -> list[Phase]:
        """Rows are packed together first, where they must be; then each thread multiplies all of them with its panels."""
        p, packing = self.tiling.p, self.tiling.packing
        few = p.m <= FEW_ROWS if isinstance(self.tiling.operand, BlockOperand) else p.m * p.k <= _FEW_PACKED
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
        shared = packing.all_rows_bytes
        left = f"(const {packing.element} *)shared"
        return [
            Phase(pack, share, packed.operands, thread_scratch=packing.row_bytes, shared_scratch=shared),
            self._multiply_panels(left, packing.pitch, [], 0),
        ]

    def columns(self, parts: int = 1) -> Phase:
        """Each thread packs all rows for itself, where they must be, and multiplies them with its panels: threads meet once less.
        With `parts` the loop is over the panels of a part, and goes through those at the same place in all parts."""
        p, packing, setup = self.tiling.p, self.tiling.packing, list[str]()
        if packing.direct is not None:
            return self._multiply_panels(packing.direct.pointer(self.memory), packing.direct.lda, setup, 0, parts)
        block_bytes = -(-packing.all_rows_bytes // 64) * 64
        setup += [
            f"{packing.element} *restrict block = ({packing.element} *)own;",
            *packing.row_of_numbers(block_bytes),
        ]
        setup += packing.rows("0", str(p.m), "0", self.memory)
        return self._multiply_panels("block", packing.pitch, setup, block_bytes + packing.row_bytes, parts)

    def _multiply_panels(self, left: str, lda: int, setup: Sequence[str], own: int, parts: int = 1) -> Phase:
        """The phase that multiplies all rows in `left` with panels; a thread has used `own` bytes of its memory before."""
        tiling, packing = self.tiling, self.tiling.packing
        count = len(packing.columns) // parts
        begin, end = ("begin", "end") if parts == 1 else (f"part * {count} + {each}" for each in ("begin", "end"))
        right, codegen = self.constant_right(), self
        over = f"panel = {begin}; panel < {end}; panel++"
        if right.backwards:  # what is fetched ahead lies the other way
            over = f"panel = {end} - 1; panel >= {begin}; panel--"
            codegen = replace(self, tiling=replace(tiling, prefetch=False))
        loop = [
            f"for (long {over}) {{",
            *indent_lines(codegen._panel(TileRows("0", str(tiling.tiles), left, lda, "0"))),
            "}",
        ]
        if parts > 1:
            loop = [f"for (long part = 0; part < {parts}; part++) {{", *indent_lines(loop), "}"]
        loop = tiling.operand.with_tile_config(tiling.tile_rows, loop)
        return Phase(
            ["const long b = 0;", *setup, *right.lines, *self._sums(own), *loop],
            ParallelRange(count, parts * tiling.p.m * packing.depth * packing.wide),
            self.memory.operands,
            thread_scratch=own + self._sums_bytes(tiling.tiles),
            helpers=self.helpers,
        )

    @property
    def _unpacked_bytes(self) -> int:
        """Of a piece of a panel that is made ready for all rows."""
        return -(-self.tiling.unpacked * -(-self.tiling.pieces // self.tiling.k_blocks) // 64) * 64

    @property
    def _tile_bytes(self) -> int:
        return self.tiling.tile_rows * self.tiling.packing.wide * self.tiling.operand.planes * 4

    def _sums_bytes(self, tiles: int) -> int:
        """Of the sums of tiles, where they are in memory, and of what lies in front of them."""
        return self._unpacked_bytes + tiles * self._tile_bytes if self.tiling.in_pieces else 0

    def _sums(self, offset: int) -> list[str]:
        """Where the sums of a block of rows are, where they are in memory, and a piece of a panel that is made ready for them."""
        kind, unpacked = self.tiling.operand.sums, self._unpacked_bytes
        if not self.tiling.in_pieces:
            return []
        lines = [f"{kind} *restrict sums = ({kind} *)(own + {offset + unpacked});"]
        return [f"uint8_t *restrict unpacked = (uint8_t *)(own + {offset});", *lines] if unpacked else lines

    def _by_rows(self) -> Phase:
        """Each thread takes batches, or rows, and goes through all panels with one block of rows after another."""
        tiling, packing, tiles, producer = self.tiling, self.tiling.packing, self.tiling.tiles, self.tiling.made
        scratch_bytes = 0
        pack_right: list[str] = []
        if callable(tiling.p.right):
            right = self.constant_right().lines
        else:
            right, pack_right = [packing.packed_right(0)], packing.right(self.memory)
            scratch_bytes = packing.right_bytes
        lines = self._declare_image_peaks()
        block_tiles = tiles
        if packing.direct is None or producer is not None:
            mc = max(tiling.mr, tiling.mc_bytes // (packing.bytes * tiling.left.depth))
            block_tiles = -(-tiles // -(-tiling.m // mc))
        block_tiles = min(block_tiles, max(1, tiling.mc_rows // tiling.mr))
        if producer is not None:
            kind = STORED_TYPES[producer.buffer.dtype]
            lines.append(
                f"{kind} *const made = ({kind} *)(own + {scratch_bytes}) + {producer.around * producer.pitch};"
            )
            elements = ((block_tiles + 1) * tiling.mr + 2 * producer.around) * producer.pitch
            scratch_bytes += -(-elements * STORED_BYTES[producer.buffer.dtype] // 64) * 64
        if packing.direct is None:
            left, lda, origin = "block", tiling.left.pitch, "start"
            lines.append(f"{packing.element} *restrict block = ({packing.element} *)(own + {scratch_bytes});")
            scratch_bytes += ((block_tiles + 1) * tiling.mr + self._beyond) * tiling.left.pitch * packing.bytes
            if tiling.left.row_bytes:
                scratch_bytes = -(-scratch_bytes // 64) * 64
                lines += tiling.left.row_of_numbers(scratch_bytes)
                scratch_bytes += tiling.left.row_bytes
        else:
            left, lda, origin = packing.direct.pointer(self.memory), packing.direct.lda, "0"
        if tiling.in_pieces:
            block_tiles = min(block_tiles, -(-GemmBlocks(tiling.target.l2_bytes).sums // self._tile_bytes))
            lines += self._sums(scratch_bytes)
            scratch_bytes += self._sums_bytes(block_tiles)
        work = [
            f"for (long first = low; first < high; first += {block_tiles}) {{",
            f"  const long last = first + {block_tiles} < high ? first + {block_tiles} : high;",
        ]
        if packing.direct is None or producer is not None:
            work.append(f"  const long start = {tiling.first_row('first')}, stop = {tiling.first_row('last')};")
        if producer is not None:
            name = local(producer.buffer)
            work += [f"  {kind} *const {name} = made - start * {producer.pitch};", *indent_lines(producer.lines)]
        if packing.direct is None:
            stop = f"stop + {self._beyond}" if self._beyond else "stop"
            work += indent_lines(tiling.left.rows("start", stop, "start", self.memory))
        work += [*indent_lines(self.over_panels("first", "last", left, lda, origin)), "}"]
        lines += tiling.sharing.over_batches([*right, *pack_right], work)
        return Phase(
            tiling.operand.with_tile_config(tiling.tile_rows, lines),
            tiling.sharing.range(block_tiles if block_tiles < tiles else self._few(bool(pack_right))),
            self.memory.operands,
            thread_scratch=scratch_bytes,
            helpers=self.helpers,
        )

    @property
    def _beyond(self) -> int:
        """Rows behind those of a block that it reads."""
        return self.tiling.windows.beyond if self.tiling.windows else 0

    def _few(self, packs: bool) -> int:
        """Tiles that a thread should do together, where they need not be for the sake of a cache: each piece reads all of the right
        side, and packs it where it must be."""
        return self.tiling.tiles if packs or self.tiling.prefetch else CHEAP_PANEL_TILES
