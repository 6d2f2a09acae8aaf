"""Products where an instruction multiplies two rows by two columns: `usmmla` and `bfmmla` of 64-bit Arm.

A vector holds eight bytes of each of two rows, or of two columns of a panel; a vector of sums holds two of each row. Rows of bytes
are packed in pairs, eight bytes of each in turn. Rows of bfloat16, which attention and Winograd's transformation keep one after
another, are put together as they are read: two halves of vectors for each two rows, once for four products. Sums are taken apart
when all of a tile is summed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bricolage.native.cpu.by_lane import KEEP_ORDER
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import SPLIT_NARROW, MicroTile, ProductOperand

_CHAINS = 16
"""Sums that are under way at a time, if a row has enough: a multiplication takes four cycles, of which up to four begin in each."""


@dataclass(frozen=True)
class PairProducts(ProductOperand):
    """Operands of 8 bytes, `k_pack` elements, of two rows and of two columns. A step is one of those."""

    row_kind: str = ""
    """What intrinsics call the elements of a row."""
    row_vector: str = ""
    """C type of a vector of them."""
    column_kind: str = ""
    multiply: str = ""
    """C that adds to the sums {0} the products of the rows {1} and the columns {2}."""

    def rows(self, isa: Isa) -> int:
        """As many as with products by lane: four pairs of rows times four of columns are 16 vectors of sums."""
        return isa.rows

    def sets(self, row_counts: Collection[int], vectors: int) -> int:
        """See `ProductOperand.sets`: two where the largest tile leaves room for them."""
        return min(2, max(1, _CHAINS // (-(-max(row_counts) // 2) * 2 * vectors)))

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """The vectors."""
        return ("#include <arm_neon.h>", SPLIT_NARROW)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`: a row without another one is multiplied twice, or with what lies in its place."""
        assert not tile.adds, "vectors keep a tile in registers for all of k"
        pairs, columns = range(-(-tile.rows // 2)), range(2 * tile.vectors)
        sets = tile.sets
        kind, more = self.element, ", const char *ahead, long stride" if tile.prefetch else ""
        name = f"pairs_of_{self.dtype}_{tile.rows}x{tile.vectors}_{tile.lda}{'_ahead' if tile.prefetch else ''}"
        name += f"_in{sets}" if sets > 1 else ""
        name += f"_by{tile.unroll}" if tile.unroll > 1 else ""
        lines = [
            f"static __attribute__((noinline, noipa, {KEEP_ORDER})) void {name}"
            f"(long depth, const {kind} *a, const {kind} *b, {self.sums} *tile{more}) {{",
            f"  {self.sum_vector} {', '.join(f'c{s}_{p}_{q} = {{0}}' for s in range(sets) for p in pairs for q in columns)};",
            "  long k = 0;",
            *([f"#pragma GCC unroll {tile.unroll}"] if tile.unroll > 1 else []),
        ]
        for count in (2, 1):
            lines += [f"  for (; k + {count} <= depth; k += {count}) {{", *self._steps(count, sets, tile), "  }"]
        for p in pairs:
            for v in range(tile.vectors):
                first, second = (" + ".join(f"c{s}_{p}_{q}" for s in range(sets)) for q in (2 * v, 2 * v + 1))
                for number, row in enumerate(range(2 * p, min(2 * p + 2, tile.rows)), 1):
                    at = f"tile + {(row * tile.vectors + v) * tile.lanes}"
                    joined = f"vzip{number}q_u64((uint64x2_t)({first}), (uint64x2_t)({second}))"
                    lines.append(f"  *({self.sum_vector} *)({at}) = ({self.sum_vector}){joined};")
        return name, "\n".join([*lines, "}"])

    def _read_pairs(self, count: int, tile: MicroTile) -> list[str]:
        """Declares the vectors of each pair of rows for one step along k, or two, which a vector holds of a row."""
        pairs = range(-(-tile.rows // 2))
        if self.row_group == 2:
            return [
                f"    const {self.row_vector} r{p}_{i} = ({self.row_vector})vld1q_u8("
                f"(const uint8_t *)(a + {2 * p * tile.lda + 2 * i * self.k_pack}));"
                for p in pairs
                for i in range(count)
            ]
        lines: list[str] = []
        load = "vreinterpretq_u64_u8(vld1q_u8((const uint8_t *)(a + {0})))"
        if count == 1:
            load = "vreinterpretq_u64_u8(vcombine_u8(vld1_u8((const uint8_t *)(a + {0})), vdup_n_u8(0)))"
        for p in pairs:
            second = min(2 * p + 1, tile.rows - 1)
            read = f"x = {load.format(2 * p * tile.lda)}, y = {load.format(second * tile.lda)}"
            rows = [f"r{p}_{i} = vreinterpretq_{self.row_kind}_u64(vzip{i + 1}q_u64(x, y))" for i in range(count)]
            lines.append(f"    {self.row_vector} {', '.join(f'r{p}_{i}' for i in range(count))};")
            lines.append(f"    {{ const uint64x2_t {read}; {', '.join(rows)}; }}")
        return lines

    def _steps(self, count: int, sets: int, tile: MicroTile) -> list[str]:
        """One step along k, or two."""
        pairs, columns = range(-(-tile.rows // 2)), range(2 * tile.vectors)
        lines = ["    __builtin_prefetch(ahead, 0, 2); ahead += stride;"] * (count if tile.prefetch else 0)
        lines += self._read_pairs(count, tile)
        for i in range(count):
            lines.append("    {")
            for q in columns:
                at = (i * len(columns) + q) * 2 * self.k_pack
                loaded = f"vreinterpretq_{self.column_kind}_u8(vld1q_u8((const uint8_t *)(b + {at})))"
                lines.append(f"      {{ const __typeof__({loaded}) w = {loaded};")
                lines += [f"        {self.multiply.format(f'c{i % sets}_{p}_{q}', f'r{p}_{i}', 'w')}" for p in pairs]
                lines.append("      }")
            lines.append("    }")
        return [
            *lines,
            f"    a += {count * self.k_pack * self.row_group}; b += {count * len(columns) * 2 * self.k_pack};",
        ]


BFLOAT16_PAIRS = PairProducts(
    "bfloat16",
    4,
    4,
    5 / 16,
    row_kind="bf16",
    row_vector="bfloat16x8_t",
    column_kind="bf16",
    multiply="{0} = (vec)vbfmmlaq_f32((float32x4_t){0}, {1}, {2});",
)
"""Of a product of 8 rows and two vectors, 32 multiplications and 8 instructions that put rows together, where float32 has 128."""
