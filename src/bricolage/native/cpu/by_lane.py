"""Products where an instruction multiplies a vector by one lane of another: 64-bit Arm.

A row of the left side is read four lanes at a time, of 32 bits each: a float32, two bfloat16, or four bytes. So a number of a row
costs no instruction that repeats it, which would take the place of a multiply-add on most cores. Four lanes of each row and the
sums of all rows must fit into 32 registers, with vectors of the panel: 8 rows times two vectors take 16 + 8. Of 12 rows times two
vectors, GCC 12 keeps a third of the sums of a step in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.native.cpu.panels import SINGLES, MicroTile, Vectors

LANES = 4
"""Of a vector."""
KEEP_ORDER = 'optimize("no-schedule-insns")'
"""Attribute of a micro-kernel. GCC 12 otherwise reads operands so early that sums go to memory, before it knows how many registers
there are."""
_CHAINS = 16
"""Sums that are under way at a time, if a row has enough: a multiply-add takes four cycles, of which four begin in each."""


@dataclass(frozen=True)
class LaneVectors(Vectors):
    """Operands in vectors, of which the left side's are multiplied lane by lane."""

    row_vector: str = ""
    """C type of four lanes of a row."""
    lane: str = ""
    """C of such a vector whose first lane is what lies at {0}."""
    chains: int = _CHAINS

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`. `broadcast` is C of four lanes, and `multiply` is given the number of one as {3}."""
        assert not tile.adds, "vectors keep a tile in registers for all of k"
        rows, vectors = tile.rows, tile.vectors
        sets = min(LANES, max(1, self.chains // (rows * vectors)))
        name = f"{self.name}_by_lane_{rows}x{vectors}_{tile.lda}{'_ahead' if tile.prefetch else ''}"
        name += f"_by{tile.unroll}" if tile.unroll > 1 else ""
        kind, more = self.element, ", const char *ahead, long stride" if tile.prefetch else ""
        lines = [
            f"static __attribute__((noinline, noipa, {KEEP_ORDER})) void {name}"
            f"(long depth, const {kind} *a, const {kind} *b, {self.sums} *tile{more}) {{",
        ]
        for s in range(sets):
            sums = (
                f"c{s}_{r}_{v} = {self.first_sum(v, tile) if s == 0 else '{0}'}"
                for r in range(rows)
                for v in range(vectors)
            )
            lines.append(f"  {self.sum_vector} {', '.join(sums)};")
        lines += ["  long k = 0;", *([f"#pragma GCC unroll {tile.unroll}"] if tile.unroll > 1 else [])]
        for count, read in ((LANES, self.broadcast), (1, self.lane)):
            lines += [f"  for (; k + {count} <= depth; k += {count}) {{", *self._steps(count, read, sets, tile), "  }"]
        lines += [
            f"  *({self.sum_vector} *)(tile + {(r * vectors + v) * tile.lanes}) = "
            f"{' + '.join(f'c{s}_{r}_{v}' for s in range(sets))};"
            for r in range(rows)
            for v in range(vectors)
        ]
        return name, "\n".join([*lines, "}"])

    def first_sum(self, _vector: int, _tile: MicroTile) -> str:
        """C of what the sums of a vector of columns start from."""
        return "{0}"

    def _steps(self, count: int, read: str, sets: int, tile: MicroTile) -> list[str]:
        """Some steps along k, whose elements of a row are the lanes of what `read` gives."""
        wide, rows, vectors = tile.lanes * self.k_pack, range(tile.rows), range(tile.vectors)
        lines = ["    __builtin_prefetch(ahead, 0, 2); ahead += stride;"] * (count if tile.prefetch else 0)
        lines += [f"    const {self.row_vector} x{r} = {read.format(r * tile.lda)};" for r in rows]
        for i in range(count):
            at = (f"(b + {(i * tile.vectors + v) * wide})" for v in vectors)
            lines += [
                "    {",
                *(f"      const {self.vector} b{v} = {self.load.format(each)};" for v, each in enumerate(at)),
            ]
            lines += [
                f"      {self.multiply.format(f'c{i % sets}_{r}_{v}', f'x{r}', f'b{v}', i)}"
                for r in rows
                for v in vectors
            ]
            lines += ["    }"]
        return [*lines, f"    a += {count * self.k_pack}; b += {count * tile.vectors * wide};"]


SINGLES_BY_LANE = LaneVectors(
    SINGLES.dtype,
    SINGLES.k_pack,
    SINGLES.k_step,
    SINGLES.cost,
    vector=SINGLES.vector,
    row_vector=SINGLES.vector,
    broadcast="*(const vec *)(a + {0})",
    lane="a[{0}] - (vec){{0}}",
    load="*(const vec *){0}",
    multiply="{0} += {1}[{3}] * {2};",
)
