"""Products with weights of 4 and 8 bits in blocks (`graph.quantised_blocks`), whose integers stay as they are in memory.

Reading the weights is what a product of few rows takes: a row of a language model's next token. So a panel is one stream of
memory. Block after block along k, it holds the scales of its columns, what zero points other than the middle add, and the integers:
columns side by side in vectors, four neighbours along k of each. Of 4 bits, a byte holds an integer of one four in its low half and
of the next four in its high half, so that a mask and a shift make whole operands of both, without a shuffle.

Rows are either float32, and integers become float32 in registers; or bytes with a sign, each block with a scale of its own
(symmetric: the largest of it is 127), and sums over a block are exact integers:

    Σ a·w = Σ over blocks: scale_a · scale_w · (Σ A·W - middle · ΣA) + offset_w · scale_a · ΣA

with offset_w = scale_w · (middle - zero point) = scale_w · middle + minimum_w, made of the minimum where float16 holds it.

`vpdpbusd` sums in int32. `vpmaddubsw` sums pairs in int16; integers of 4 bits are at most 15, so that the sums of eight of its
results, 16 · 15 · 127 = 30,480, fit there before they must be widened. Integers of 8 bits go through it as two halves of 4 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.cpu.block_c import (
    INTS,
    PACK_BYTES,
    PLAIN,
    TARGETS,
    intrinsics,
    neon_intrinsics,
)
from bricolage.native.cpu.block_floats import BlockFloats
from bricolage.native.cpu.block_format import BlockOperand
from bricolage.native.cpu.isa import Isa
from bricolage.native.cpu.panels import MicroTile
from bricolage.native.ir.tensors import BlockConstant, MatMul, Node

LONGEST_BLOCK = 1 << 16
"""Integers of a block: 240 · 127 · 65,536 fits into int32."""
_STEPS = 8
"""Products in int16 that are summed before they are widened."""
_RAISED_LANES = 8
"""Numbers of the vectors in which integers become float32 as the highest bits of a word. Vectors of 16 take them from a table."""
_SIXTEEN = 16
"""Bytes of a vector whose lanes are multiplied."""


def multiplies_blocks(root: Node | None) -> BlockConstant | None:
    """The weights of a product that multiplies by blocks along k; None where it does not, or where vectors of four neighbours do
    not fill a block."""
    if not isinstance(root, MatMul) or not isinstance(root.right, BlockConstant) or root.right.turned:
        return None
    blocks = root.right.blocks
    return root.right if blocks.block % (32 // blocks.bits) == 0 and blocks.block <= LONGEST_BLOCK else None


def block_operand(isa: Isa, blocks: QuantisedBlocks, *, in_bytes: bool) -> BlockOperand:
    """How rows are multiplied with such weights: as bytes or as float32."""
    kind = BlockBytes if in_bytes else BlockFloats
    halves = isa.reads_halves and blocks.in_halves
    offsets = blocks.zeros is not None
    minima = halves and offsets and blocks.minima is not None
    per_column = blocks.block * blocks.bits // 8 + (2 if halves else 4) + (2 if minima else 4) * offsets
    return kind(
        "uint8",
        4,
        per_column,
        1.0,
        whole_rows=True,
        bits=blocks.bits,
        block=blocks.block,
        offsets=offsets,
        halves=halves,
        minima=minima,
        dot=isa.vector_dot,
        by_lane=isa.by_lane,
        raised=isa.lanes == _RAISED_LANES,
    )


@dataclass(frozen=True)
class BlockBytes(BlockOperand):
    """Rows of bytes."""

    prefix = "few_bits_bytes"

    @property
    def _vnni(self) -> bool:
        return self.dot == "vpdpbusd"

    def attributes(self, lanes: int) -> list[str]:
        """See `BlockOperand.attributes`."""
        target = TARGETS.get((self.dot, lanes), "")
        return [*super().attributes(lanes), *([f'target("{target}")'] if target else [])]

    @property
    def signed(self) -> bool:
        """See `BlockOperand.signed`: as `sdot` and `smull` take them."""
        return self.dot in ("sdot", "smull") and self.bits == 8

    @property
    def _halves(self) -> bool:
        """Whether integers of 8 bits are multiplied as two of 4 bits."""
        return self.dot == "vpmaddubsw" and self.bits == 8

    @property
    def _narrow(self) -> bool:
        """Whether products are summed in int16 first."""
        return self.dot == "vpmaddubsw" or (self.dot == "smull" and self.bits == 4)

    @property
    def widened_after(self) -> int:  # type: ignore[override]
        """Products whose sum int16 holds."""
        return _STEPS if self._halves else _STEPS * self.bits // 8

    def rows(self, isa: Isa) -> int:
        """Each row takes two vectors of sums, and two to eight of a block's. The former may wait in memory between blocks."""
        if isa.lanes == 8:
            return 4 if self.dot == "vpmaddubsw" and self.bits == 4 else 2
        return 4 if isa.lanes == 16 else 3 if self.by_lane and self.dot != "smull" else 2

    def helpers(self, isa: Isa) -> dict[str, str]:
        """What packs rows and multiplies."""
        name = f"block_dot_{self.dot}"
        text = (
            PLAIN
            if self.dot == "plain"
            else neon_intrinsics(self.dot)
            if self.by_lane
            else intrinsics(self.dot, isa.lanes)
        )
        return {"block_ints": INTS, name: text, "pack_block_bytes": PACK_BYTES}

    def pack_row(self, x: str, to: str, k: int, _part: int, _peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        return f"pack_block_bytes({x}, {to}, {k}, {self.block}, {0 if self.signed else self.middle});"

    def begin(self, tile: MicroTile) -> list[str]:
        """Sums of a block start from what the middle takes off."""
        lines: list[str] = []
        for r in range(tile.rows):
            start = f"*(const int32_t *)(a + {r * tile.lda + self.block + 8})"
            for v in range(tile.vectors):
                lines += [f"block_sums i_{r}_{v} = BLOCK_START({start});"]
                lines += [f"block_sums j_{r}_{v} = BLOCK_START(0);"] if self._upper else []
        return lines

    @property
    def _upper(self) -> bool:
        """Whether products of the upper halves of bytes have sums of their own, 16 times as large."""
        return self._vnni and self.bits == 4

    def groups(self, count: int, tile: MicroTile) -> list[str]:
        """Four neighbours along k after four."""
        wide, vectors = 4 * tile.lanes, range(tile.vectors)
        every = [(r, v) for r in range(tile.rows) for v in vectors]
        narrow = self._narrow
        lines: list[str] = []
        if narrow:
            lines += [f"block_narrow s_{r}_{v} = BLOCK_NONE;" for r, v in every]
            lines += [f"block_narrow u_{r}_{v} = BLOCK_NONE;" for r, v in every] if self._halves else []
        dot = f"BLOCK_{'NARROW' if narrow else 'DOT'}_LANE" if self.by_lane else "BLOCK_DOT"
        whole = count * self.group // _SIXTEEN * _SIXTEEN if self.by_lane else 0
        lines += [
            f"const block_four x_{r}_{at} = BLOCK_FOURS(x + {r * tile.lda + at});"
            for at in range(0, whole, _SIXTEEN)
            for r in range(tile.rows)
        ]
        for g in range(count):
            lines += ["{"]
            for v in vectors:
                lines += [f"  const block_bytes w_{v} = BLOCK_LOAD(w + {(g * tile.vectors + v) * wide});"]
            for upper in (False, True) if self.bits == 4 or self._halves else (None,):
                at = g * self.group + (4 if upper and self.bits == 4 else 0)
                taken = {None: "{}", False: "BLOCK_LOW({})", True: "BLOCK_HIGH({})"}[upper]
                lines += ["  {"]
                lines += [f"    const block_bytes n_{v} = {taken.format(f'w_{v}')};" for v in vectors]
                sums = "s" if narrow else "i"
                if upper and (self._halves or self._upper):
                    sums = "u" if self._halves else "j"
                for r in range(tile.rows):
                    four = f"x_{r}_{at - at % _SIXTEEN}" if at < whole else f"BLOCK_FOUR(x + {r * tile.lda + at})"
                    lane = f", {at % _SIXTEEN // 4 if at < whole else 0}" if self.by_lane else ""
                    lines += [f"    {{ const block_four four = {four};"]
                    lines += [f"      {dot}({sums}_{r}_{v}, n_{v}, four{lane});" for v in vectors]
                    lines += ["    }"]
                lines += ["  }"]
            lines += ["}"]
        if narrow:
            lines += [f"BLOCK_WIDEN(i_{r}_{v}, s_{r}_{v}, 0);" for r, v in every]
            lines += [f"BLOCK_WIDEN(i_{r}_{v}, u_{r}_{v}, 4);" for r, v in every] if self._halves else []
        return lines

    def end(self, tile: MicroTile) -> list[str]:
        """Scaled."""
        lines: list[str] = []
        for r in range(tile.rows):
            lines += [f"const float scale_of_{r} = *(const float *)(a + {r * tile.lda + self.block});"]
            for v in range(tile.vectors):
                total = f"i_{r}_{v} + (j_{r}_{v} >> 4)" if self._upper else f"i_{r}_{v}"
                float_sum = f"__builtin_convertvector((block_ints)({total}), vec)"
                lines += [
                    f"t_{r}_{v} += {float_sum} * (scale_of_{r} * scale_{v});",
                    *self._of_zero_points(r, v, tile.lda),
                ]
        return lines
