"""Many rows times weights of 4 and 8 bits in blocks, in the tiles of a matrix unit: prompts of a language model.

Rows and panels lie as they do for a few rows in vectors (`block_products`): one packed layout for prompts and for decoding.
Integers of 8 bits are what a tile of the right side holds; of 4 bits, the low halves of a vector are one row of such a tile, and
the high halves the next. A block's sums leave the unit for memory, where their scales make float32 of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.cpu.block_format import BEHIND
from bricolage.native.cpu.block_products import BlockBytes, block_operand
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.matrix_unit import EMULATED, ROW_BYTES, ROWS, SIGNED_TILES, TILE_ROWS, TILES, with_shapes
from bricolage.native.cpu.panels import MicroTile

MANY_ROWS = 12
"""Of a product, from which on tiles are filled well enough."""

_BARRIER = '__asm__ volatile ("" : : "r"(own), "r"(sums) : "memory");'
"""Compilers do not know that the unit's instructions read and write memory."""


def block_tiles(isa: Isa, blocks: QuantisedBlocks, rows: int) -> BlockTiles | None:
    """How that number of rows of bytes is multiplied in tiles with such weights; None where there is no matrix unit for bytes, or
    too few rows, or blocks that fill no rows of a tile."""
    whole = blocks.block == ROW_BYTES // 2 or blocks.block % ROW_BYTES == 0
    if isa.byte_dot != "tdpbusd" or rows < MANY_ROWS or not whole:
        return None
    usual = block_operand(isa, blocks, in_bytes=True)
    fields = {name: getattr(usual, name) for name in usual.__dataclass_fields__}
    return BlockTiles(**{**fields, "dot": "plain", "cost": 1 / 8})


@dataclass(frozen=True)
class BlockTiles(BlockBytes):
    """Rows of bytes, 32 of them times two vectors of columns in four tiles."""

    prefix = "few_bits_tiles"

    @property
    def in_tiles(self) -> bool:
        """See `ProductOperand.in_tiles`."""
        return True

    @property
    def piece(self) -> int:
        """Integers along k of one multiplication."""
        return min(ROW_BYTES, self.block)

    def rows(self, _isa: Isa) -> int:
        """Two tiles, one above the other."""
        return TILE_ROWS

    def attributes(self, lanes: int) -> list[str]:
        """See `BlockOperand.attributes`."""
        return [*super().attributes(lanes), 'target("amx-tile,amx-int8")']

    def helpers(self, isa: Isa) -> dict[str, str]:
        """The unit's instructions, and what packs rows."""
        unit = TILES + "\n" + SIGNED_TILES if isa.matrix_unit == "amx" else EMULATED
        more = super().helpers(replace(isa, vector_dot="plain"))
        return {"block_ints": more["block_ints"], "tile_unit": unit, "pack_block_bytes": more["pack_block_bytes"]}

    def with_tile_config(self, rows: int, lines: list[str]) -> list[str]:
        """See `ProductOperand.with_tile_config`."""
        return with_shapes(rows, self.piece, lines)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`."""
        assert not tile.adds and not tile.prefetch, "a panel is read once, and as a stream"
        lda, lanes, wide = tile.lda, tile.lanes, tile.vectors * tile.lanes
        name = f"{self.prefix}{self.kind}_{tile.rows}x{tile.vectors}_{lda}"
        head = self.head_bytes(tile)
        size = head + self.block * self.bits // 8 * wide
        halves = range(2 if tile.rows > ROWS else 1)
        vectors = range(tile.vectors)
        spots = [(2 * h + v, f"sums + {ROWS * h * wide + v * lanes}, {4 * wide}") for h in halves for v in vectors]
        lines = [f"tile_zero({t});" for t, _ in spots]
        for at in range(0, self.block, self.piece):
            lines += [*self._emit_unpacking(head + at * self.bits // 8 * wide, tile), _BARRIER]
            panel = f"b + {head + at * wide}" if self.bits == 8 else "own"
            lines += [f"tile_load({4 + h}, a + {at + ROWS * h * lda}, {lda});" for h in halves]
            lines += [f"tile_load({6 + v}, {panel} + {4 * v * lanes}, {4 * wide});" for v in vectors]
            lines += [f"tile_multiply_signed({2 * h + v}, {4 + h}, {6 + v});" for h in halves for v in vectors]
        lines += [*(f"tile_store({t}, {spot});" for t, spot in spots), _BARRIER]
        lines += [
            *self.declare_scales(tile),
            f"for (long r = 0; r < {tile.rows}; r++) {{",
            *(f"  {line}" for line in self._emit_row_scaling(tile)),
            "}",
        ]
        lines += [f"a += {self.block + BEHIND}; b += {size};"]
        return name, "\n".join(
            [
                f"static __attribute__(({', '.join(['noinline', 'noipa', *self.attributes(lanes)])})) void {name}"
                "(long blocks, const uint8_t *a, const uint8_t *b, float *restrict tile) {",
                f"  int32_t sums[{ROWS * len(halves) * wide}] __attribute__((aligned(64)));",
                f"  uint8_t own[{self.piece * wide}] __attribute__((aligned(64)));",
                f"  for (long i = 0; i < {tile.rows * wide}; i++) tile[i] = 0;",
                "  for (long block = 0; block < blocks; block++) {",
                *(f"    {line}" for line in lines),
                "  }",
                "}",
            ]
        )

    def _emit_unpacking(self, at: int, tile: MicroTile) -> list[str]:
        """C that makes rows of bytes of a piece's halves of bytes."""
        if self.bits == 8:
            return []
        wide = 4 * tile.lanes
        every = self.piece // 8 * tile.vectors  # vectors: of each eight along k, of the first columns and of the second
        pair = f"g / {tile.vectors} * {2 * tile.vectors} + g % {tile.vectors}"
        return [
            f"for (long g = 0; g < {every}; g++) {{",
            f"  const block_ints w = *(const block_ints *)(b + {at} + g * {wide});",
            f"  *(block_ints *)(own + ({pair}) * {wide}) = w & 0x0f0f0f0f;",
            f"  *(block_ints *)(own + ({pair} + {tile.vectors}) * {wide}) = (w >> 4) & 0x0f0f0f0f;",
            "}",
        ]

    def _emit_row_scaling(self, tile: MicroTile) -> list[str]:
        """C that adds a row's sums to its numbers."""
        wide = tile.vectors * tile.lanes
        lines = [
            f"const uint8_t *behind = a + r * {tile.lda} + {self.block};",
            "const float own_scale = *(const float *)behind;",
            "const int32_t start = *(const int32_t *)(behind + 8);",
        ]
        for v in range(tile.vectors):
            total = f"*(const block_ints *)(sums + r * {wide} + {v * tile.lanes}) + start"
            more = f" + *(const float *)(behind + 4) * offset_{v}" if self.offsets else ""
            lines.append(
                f"*(vec *)(tile + r * {wide} + {v * tile.lanes}) += "
                f"__builtin_convertvector({total}, vec) * (own_scale * scale_{v}){more};"
            )
        return lines
