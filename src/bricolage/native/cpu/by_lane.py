"""Products where an instruction multiplies a vector by one lane of another: 64-bit Arm.

A row of the left side is read four lanes at a time, of 32 bits each: a float32, two bfloat16, or four bytes. So a number of a row
costs no instruction that repeats it, which would take the place of a multiply-add on most cores. Four lanes of each row and the
sums of all rows must fit into 32 registers, with vectors of the panel: 8 rows times two vectors take 16 + 8. Of 12 rows times two
vectors, GCC 12 keeps a third of the sums of a step in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import SINGLES, MicroTile, Vectors

LANES = 4
"""Of a vector."""
KEEP_ORDER = 'optimize("no-schedule-insns")'
"""Attribute of a micro-kernel. GCC 12 otherwise reads operands so early that sums go to memory, before it knows how many registers
there are."""
_FENCE = '__asm__ volatile("" : : "w"({0}), "w"({1}));'
"""Between what was added to the sum {0} and read to {1}, and what comes behind, compilers exchange nothing."""
_CHAINS = 16
"""Sums that are under way at a time: a multiply-add takes four cycles, of which four begin in each."""
_MOST_SUMS = 20
"""Vectors of sums, of 32 registers."""


@dataclass(frozen=True)
class LaneVectors(Vectors):
    """Operands in vectors, of which the left side's are multiplied lane by lane."""

    row_vector: str = ""
    """C type of four lanes of a row."""
    kept: str = ""
    """C type of a vector of sums as intrinsics have it: GCC 12 copies what is converted between two products."""
    lane: str = ""
    """C of such a vector whose first lane is what lies at {0}."""
    chains: int = _CHAINS
    most_sums: int = _MOST_SUMS

    def sets(self, row_counts: Collection[int], vectors: int) -> int:
        """See `ProductOperand.sets`: a divisor of the lanes, which take turns."""
        return min(LANES, 1 << (super().sets(row_counts, vectors).bit_length() - 1))

    def turn(self, sets: int) -> int:
        """See `ProductOperand.turn`: what is left of four steps is all added to the first sum."""
        return LANES if sets > 1 else 1

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """The vectors."""
        return ("#include <arm_neon.h>",)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`. `broadcast` is C of four lanes, and `multiply` is given the number of one as {3}."""
        assert not tile.adds, "vectors keep a tile in registers for all of k"
        rows, vectors = tile.rows, tile.vectors
        sets = tile.sets
        name = f"{self.name}_by_lane_{rows}x{vectors}_{tile.lda}{'_ahead' if tile.prefetch else ''}"
        name += f"_in{sets}" if sets > 1 else ""
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
            lines.append(f"  {self.kept} {', '.join(sums)};")
        lines += ["  long rest = depth;", *self._in_lanes(sets, tile), "  for (; rest > 0; rest--) {"]
        lines += [f"    const {self.row_vector} x{r} = {self.lane.format(r * tile.lda)};" for r in range(rows)]
        lines += [
            *self._fetch(1, tile),
            *(f"    const {self.vector} b0_{v} = {self._column(0, v, tile)};" for v in range(vectors)),
        ]
        lines += [*self._add_lane(0, 0, tile), f"    {self._advance(1, tile)}", "  }"]
        lines += [
            f"  *({self.sum_vector} *)(tile + {(r * vectors + v) * tile.lanes}) = "
            f"({self.sum_vector})({' + '.join(f'c{s}_{r}_{v}' for s in range(sets))});"
            for r in range(rows)
            for v in range(vectors)
        ]
        return name, "\n".join([*lines, "}"])

    def first_sum(self, _vector: int, _tile: MicroTile) -> str:
        """C of what the sums of a vector of columns start from."""
        return "{0}"

    def _in_lanes(self, sets: int, tile: MicroTile) -> list[str]:
        """Steps by the lanes of vectors of all rows. What the next steps need is read between the products of these, since cores
        that begin instructions in order would wait for it. The last steps read nothing ahead."""
        last = self._steps(sets, tile, goes_on=False)
        columns = (f"b{i}_{v}" for i in range(LANES) for v in range(tile.vectors))
        return [
            f"  if (depth >= {LANES}) {{",
            f"    const {self.element} *const end = a + (depth / {LANES} - 1) * {LANES * self.k_pack};",
            *(f"    {self.row_vector} x{r} = {self.broadcast.format(r * tile.lda)};" for r in range(tile.rows)),
            f"    {self.vector} {', '.join(columns)};",
            *(f"    b0_{v} = {self._column(0, v, tile)};" for v in range(tile.vectors)),
            *([f"#pragma GCC unroll {tile.unroll}"] if tile.unroll > 1 else []),
            "    while (a < end) {",
            *self._steps(sets, tile, goes_on=True),
            "    }",
            *last,
            f"    rest = depth % {LANES};",
            "  }",
        ]

    def _steps(self, sets: int, tile: MicroTile, *, goes_on: bool) -> list[str]:
        """As many steps as there are lanes."""
        lines: list[str] = []
        for i in range(LANES):
            ahead = range(tile.vectors) if goes_on or i + 1 < LANES else ()
            reads = [(f"b{(i + 1) % LANES}_{v}", self._column(i + 1, v, tile)) for v in ahead]
            lines += self._add_lane(i, i % sets, tile, reads, reads_rows=goes_on and i + 1 == LANES)
        return [*lines, *self._fetch(LANES, tile), f"    {self._advance(LANES, tile)}"]

    def _add_lane(
        self,
        lane: int,
        number: int,
        tile: MicroTile,
        reads: Sequence[tuple[str, str]] = (),
        *,
        reads_rows: bool = False,
    ) -> list[str]:
        """Products of a lane of all rows, added to the sums of a set, and between them some `reads`: what is read, and C of it.
        `reads_rows`: the next lanes of a row are read behind its last product."""
        lines: list[str] = []
        for r in range(tile.rows):
            sums = [f"c{number}_{r}_{v}" for v in range(tile.vectors)]
            here = [read for n, read in enumerate(reads) if (2 * n + 1) * tile.rows // (2 * len(reads)) == r]
            if reads_rows:
                here.append((f"x{r}", self.broadcast.format(r * tile.lda + LANES * self.k_pack)))
            for v, sum_ in enumerate(sums):
                lines.append(f"    {self.multiply.format(sum_, f'x{r}', f'b{lane}_{v}', lane)}")
            for name, value in here:
                lines.append(f"    {name} = {value};")
                lines.append(f"    {_FENCE.format(sums[-1], name)}")
        return lines

    def _column(self, step: int, vector: int, tile: MicroTile) -> str:
        """C of a vector of a step's columns."""
        return self.load.format(f"(b + {(step * tile.vectors + vector) * tile.lanes * self.k_pack})")

    def _advance(self, steps: int, tile: MicroTile) -> str:
        ahead = f" ahead += {steps} * stride;" if tile.prefetch else ""
        return f"a += {steps * self.k_pack}; b += {steps * tile.vectors * tile.lanes * self.k_pack};{ahead}"

    def _fetch(self, steps: int, tile: MicroTile) -> list[str]:
        """Brings near what lies `ahead`: of a step at most 32 bytes, so that each second one asks for a cache line."""
        asked = range(0, steps, 2) if tile.prefetch else ()
        return [f"    __builtin_prefetch(ahead{f' + {n} * stride' * (n > 0)}, 0, 2);" for n in asked]


SINGLES_BY_LANE = LaneVectors(
    SINGLES.dtype,
    SINGLES.k_pack,
    SINGLES.k_step,
    SINGLES.cost,
    vector="float32x4_t",
    row_vector="float32x4_t",
    kept="float32x4_t",
    broadcast="vld1q_f32(a + {0})",
    lane="vdupq_n_f32(a[{0}])",
    load="vld1q_f32({0})",
    multiply="{0} = vfmaq_laneq_f32({0}, {2}, {1}, {3});",
)
