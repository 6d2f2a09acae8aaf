"""Rows of float32 times weights of 4 and 8 bits in blocks, whose integers become float32 in registers (`block_products`)."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.native.cpu.block_c import INTS, NUMBERS, PACK_FLOATS
from bricolage.native.cpu.block_format import BlockOperand, emit_prefetches
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import MicroTile
from bricolage.native.fuse.slice_pairs import FEW_ROWS

_SETS = 2
"""Sums of float32 that are under way of each row and vector: a multiply-add takes four cycles, of which two begin in each. As many
in tiles of many rows, so that a row has the same bits however many are multiplied with it."""
_UNROLLED = 4
"""Numbers along k that are written out where integers are float32 already: blocks are a multiple of it."""
_PASSED_ROWS = 4
"""Rows that are multiplied at a time, by even numbers along k and then by odd ones: one sum of each row and vector is under way."""
_KEPT = '__asm__ volatile("" : : "r"({}) : "memory");'
"""Compilers would keep what is stored here in registers, of which there are too few."""


@dataclass(frozen=True)
class BlockFloats(BlockOperand):
    """Rows of float32. The middle is taken off each integer, so that nothing large cancels."""

    prefix = "few_bits"
    element_bytes = 4

    def rows(self, isa: Isa) -> int:
        """Each row takes two vectors of sums and two of a block's."""
        return {16: 6, 8: 3}.get(isa.lanes, 3 if self.by_lane else 2)

    def few_rows(self, isa: Isa) -> int:
        """See `BlockOperand.few_rows`: all of them, see `_emit_passes`."""
        return FEW_ROWS if self.raised else self.rows(isa)

    def helpers(self, _isa: Isa) -> dict[str, str]:
        """What packs rows and makes numbers of integers."""
        return {"block_ints": INTS, "block_numbers": NUMBERS, "pack_block_floats": PACK_FLOATS}

    def pack_row(self, x: str, to: str, k: int, _part: int, _peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        low, high = ("0x1p-24f", f"0x1p-{32 - self.bits}f") if self.raised else ("1.0f", "1.0f")
        return f"pack_block_floats({x}, {to}, {k}, {self.block}, {low}, {high});"

    @property
    def signed(self) -> bool:
        """See `BlockOperand.signed`."""
        return self.raised

    def unpacked_bytes(self, columns: int) -> int:
        """See `BlockOperand.unpacked_bytes`: scales, what zero points add, and float32 of the integers. Making them takes as many
        instructions as multiplying three rows."""
        return 4 * columns * (1 + self.offsets + self.block)

    def unpacking(self, vectors: int, lanes: int) -> tuple[str, str]:
        """Name and C of a function `(blocks, b, to)` that makes blocks of a panel ready for many rows."""
        name, wide = f"unpack_{self.prefix}{self.kind}_{vectors}", 4 * lanes
        tile = MicroTile(1, vectors, 0, lanes)
        head, size = self.head_bytes(tile), self.unpacked_bytes(vectors * lanes)
        heads = ["scale", *(["offset"] if self.offsets else [])]
        numbers = 4 * vectors * lanes * len(heads)
        lines = [
            *emit_prefetches("b", head + self.block * self.bits // 8 * vectors * lanes),
            *self.declare_scales(tile),
        ]
        for i, each in enumerate(heads):
            lines += [f"*(vec *)(to + {(i * vectors + v) * wide}) = {each}_{v};" for v in range(vectors)]
        lines += [
            f"for (long g = 0; g < {self.block // self.group}; g++) {{",
            f"  const uint8_t *w = b + {head} + g * {vectors * wide};",
            f"  uint8_t *restrict n = to + {numbers} + g * {self.group * vectors * wide};",
        ]
        for v in range(vectors):
            lines += [f"  {line}" for line in self._words(f"w + {v * wide}", v)]
            lines += [
                f"  *(vec *)(n + {(i * vectors + v) * wide}) = {self._number(f'w + {v * wide}', v, i)};"
                for i in range(self.group)
            ]
        lines += ["}", f"b += {head + self.block * self.bits // 8 * vectors * lanes}; to += {size};"]
        return name, "\n".join(
            [
                f"static __attribute__(({', '.join(['noinline', *self.attributes(lanes)])})) void {name}"
                "(long blocks, const uint8_t *restrict b, uint8_t *restrict to) {",
                "  for (long block = 0; block < blocks; block++) {",
                *(f"    {line}" for line in lines),
                "  }",
                "}",
            ]
        )

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`; one that adds to a tile reads what `unpacking` has made. Its products and sums are the
        same, in the same order."""
        if not tile.adds:
            return self._emit_passes(tile) if self.raised and tile.rows >= _PASSED_ROWS else super().micro_kernel(tile)
        name = f"{self.prefix}{self.kind}_floats_{tile.rows}x{tile.vectors}_{tile.lda}"
        wide, vectors = 4 * tile.lanes, range(tile.vectors)
        spots = [(r, v, (r * tile.vectors + v) * tile.lanes) for r in range(tile.rows) for v in vectors]
        lines = [f"const vec scale_{v} = *(const vec *)(b + {v * wide});" for v in vectors]
        if self.offsets:
            lines += [f"const vec offset_{v} = *(const vec *)(b + {(tile.vectors + v) * wide});" for v in vectors]
        lines += [
            *self.begin(tile),
            f"const uint8_t *x = a, *w = b + {tile.vectors * wide * (1 + self.offsets)};",
        ]
        lines += [f"for (long i = 0; i < {self.block}; i += {_UNROLLED}) {{"]
        for i in range(_UNROLLED):
            lines += [
                f"  {{ const vec n_{v} = *(const vec *)(w + {(i * tile.vectors + v) * wide});" for v in vectors[:1]
            ]
            lines += [
                f"    const vec n_{v} = *(const vec *)(w + {(i * tile.vectors + v) * wide});" for v in vectors[1:]
            ]
            lines += [f"    {line}" for line in self._products(i, i, tile, range(tile.rows))]
            lines += ["  }"]
        lines += [f"  x += {4 * _UNROLLED}; w += {_UNROLLED * tile.vectors * wide};", "}", *self.end(tile)]
        lines += [f"a += {self.row_step}; b += {self.unpacked_bytes(tile.vectors * tile.lanes)};"]
        return name, "\n".join(
            [
                f"static __attribute__(({', '.join(['noinline', 'noipa', *self.attributes(tile.lanes)])})) void {name}"
                "(long blocks, const uint8_t *restrict a, const uint8_t *restrict b, float *restrict tile, int starts) {",
                f"  vec {', '.join(f't_{r}_{v} = {{0}}' for r, v, _ in spots)};",
                "  if (!starts) {",
                *(f"    t_{r}_{v} = *(const vec *)(tile + {at});" for r, v, at in spots),
                "  }",
                "  for (long block = 0; block < blocks; block++) {",
                *(f"    {line}" for line in lines),
                "  }",
                *(f"  *(vec *)(tile + {at}) = t_{r}_{v};" for r, v, at in spots),
                "}",
            ]
        )

    def _emit_passes(self, tile: MicroTile) -> tuple[str, str]:
        """Name and C of a micro-kernel for several rows where there are 16 registers. Even numbers along k of a block come first,
        and odd ones then. So the sums of two vectors of columns for four rows fit, and half as many numbers of rows are loaded as
        for one vector. The first four rows make float32 of integers; others read that in the first-level cache. Products and sums
        are those of one row, in the same order."""
        name = f"{self.prefix}{self.kind}_passes_{tile.rows}x{tile.vectors}_{tile.lda}"
        head, wide, vectors = self.head_bytes(tile), tile.vectors * tile.lanes, range(tile.vectors)
        size, count = head + self.block * self.bits // 8 * wide, tile.rows * tile.vectors
        lines = emit_prefetches("b", size)
        for first in range(0, tile.rows, _PASSED_ROWS):
            rows = range(first, min(first + _PASSED_ROWS, tile.rows))
            spots = [(r, v) for r in rows for v in vectors]
            last = rows.stop == tile.rows
            lines += ["{"]
            for s in range(_SETS):
                lines += [f"  vec {', '.join(f'p{s}_{r}_{v} = {{0}}' for r, v in spots)};"]
                lines += [f"  {line}" for line in self._emit_pass(s, rows, tile, stores=not (first or last))]
                if s + 1 < _SETS:
                    lines += [f"  even[{i}] = p{s}_{r}_{v};" for i, (r, v) in enumerate(spots)]
                    lines += [f"  {_KEPT.format('even')}"]
            lines += [f"  {line}" for line in self.declare_scales(tile)]
            for i, (r, v) in enumerate(spots):
                sums = " + ".join([f"even[{i}]", *(f"p{s}_{r}_{v}" for s in range(1, _SETS))])
                lines += [f"  vec t_{r}_{v} = sums[{r * tile.vectors + v}];"]
                lines += [f"  t_{r}_{v} += ({sums}) * scale_{v};"]
                lines += [f"  {line}" for line in self._of_zero_points(r, v, tile.lda)]
                lines += [f"  sums[{r * tile.vectors + v}] = t_{r}_{v};"]
            lines += [f"  {_KEPT.format('sums')}", "}"]
        lines += [f"a += {self.row_step}; b += {size};"]
        arrays = [f"even[{_PASSED_ROWS * tile.vectors}]"]
        arrays += [f"numbers[{self.block * tile.vectors}]"] if tile.rows > _PASSED_ROWS else []
        return name, "\n".join(
            [
                f"static __attribute__(({', '.join(['noinline', 'noipa', *self.attributes(tile.lanes)])})) void {name}"
                "(long blocks, const uint8_t *restrict a, const uint8_t *restrict b, float *restrict tile) {",
                *(f"  vec {array} __attribute__((aligned(64)));" for array in arrays),
                "  vec *restrict sums = (vec *)tile;",
                f"  for (long i = 0; i < {count}; i++) sums[i] = (vec){{0}};",
                "  for (long block = 0; block < blocks; block++) {",
                *(f"    {line}" for line in lines),
                "  }",
                "}",
            ]
        )

    def _emit_pass(self, remainder: int, rows: range, tile: MicroTile, *, stores: bool) -> list[str]:
        """C that multiplies some rows by every second number of a block. The first rows of a tile read integers, and store float32
        if others follow."""
        wide, vectors, reads = 4 * tile.lanes, range(tile.vectors), rows.start > 0
        each = self.group // _SETS * tile.vectors
        lines = ["const uint8_t *x = a;"]
        lines += [] if reads else [f"const uint8_t *w = b + {self.head_bytes(tile)};"]
        lines += [f"vec *n = numbers + {remainder * self.block // _SETS * tile.vectors};"] if reads or stores else []
        lines += [f"for (long g = 0; g < {self.block // self.group}; g++) {{"]
        for i in range(remainder, self.group, _SETS):
            lines += ["  {"]
            for v in vectors:
                kept = f"n[{i // _SETS * tile.vectors + v}]"
                number = kept if reads else self._number(f"w + {v * wide}", v, i)
                lines += [f"    const vec n_{v} = {number};", *([f"    {kept} = n_{v};"] if stores else [])]
            lines += [f"    {line}" for line in self._products(i, i, tile, rows)]
            lines += ["  }"]
        lines += [f"  x += {4 * self.group};{'' if reads else f' w += {tile.vectors * wide};'}"]
        lines += [f"  n += {each};"] if reads or stores else []
        return ["{", *(f"  {line}" for line in lines), "  }", "}"]

    def begin(self, tile: MicroTile) -> list[str]:
        """Sums of a block."""
        names = (f"p{s}_{r}_{v} = {{0}}" for s in range(_SETS) for r in range(tile.rows) for v in range(tile.vectors))
        return [f"vec {', '.join(names)};"]

    def groups(self, count: int, tile: MicroTile) -> list[str]:
        """Integer after integer along k."""
        wide, vectors = 4 * tile.lanes, range(tile.vectors)
        lines: list[str] = []
        for g in range(count):
            at = [f"w + {(g * tile.vectors + v) * wide}" for v in vectors]
            lines += ["{", *(f"  {line}" for v in vectors for line in self._words(at[v], v))]
            for i in range(self.group):
                lines += ["  {"]
                lines += [f"    const vec n_{v} = {self._number(at[v], v, i)};" for v in vectors]
                lines += [f"    {line}" for line in self._products(i, g * self.group + i, tile, range(tile.rows))]
                lines += ["  }"]
            lines += ["}"]
        return lines

    def _words(self, at: str, v: int) -> list[str]:
        """C that reads the integers of a vector; nothing where each number reads them at a place of its own."""
        return [] if self.raised else [f"const block_ints w_{v} = *(const block_ints *)({at});"]

    def _number(self, at: str, v: int, i: int) -> str:
        """C of neighbour `i` of the vector whose integers are at an address, as float32."""
        return f"block_number{self.bits}({at if self.raised else f'w_{v}'}, {8 * (i % 4) + 4 * (i // 4)})"

    def _products(self, i: int, at: int, tile: MicroTile, rows: range) -> list[str]:
        """C that adds to the sums the products of the numbers n_vector with rows, `at` numbers from `x` on."""
        return [
            f"p{i % _SETS}_{r}_{v} += *(const float *)(x + {r * tile.lda + 4 * at}) * n_{v};"
            for r in rows
            for v in range(tile.vectors)
        ]

    def end(self, tile: MicroTile) -> list[str]:
        """Scaled."""
        lines: list[str] = []
        for r in range(tile.rows):
            for v in range(tile.vectors):
                total = " + ".join(f"p{s}_{r}_{v}" for s in range(_SETS))
                lines += [f"t_{r}_{v} += ({total}) * scale_{v};", *self._of_zero_points(r, v, tile.lda)]
        return lines
