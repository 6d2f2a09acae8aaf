"""Products with weights of 4 and 8 bits in blocks (`graph.quantised_blocks`), whose integers stay as they are in memory.

Reading the weights is what a product of few rows takes: a row of a language model's next token. So a panel is one stream of
memory. Block after block along k, it holds the scales of its columns, what zero points other than the middle add, and the integers:
columns side by side in vectors, four neighbours along k of each. Of 4 bits, a byte holds an integer of one four in its low half and
of the next four in its high half, so that a mask and a shift make whole operands of both, without a shuffle.

Rows are either float32, and integers become float32 in registers; or bytes with a sign, each block with a scale of its own
(symmetric: the largest of it is 127), and sums over a block are exact integers:

    Σ a·w = Σ over blocks: scale_a · scale_w · (Σ A·W - middle · ΣA) + offset_w · scale_a · ΣA

with offset_w = scale_w · (middle - zero point).

`vpdpbusd` sums in int32. `vpmaddubsw` sums pairs in int16; integers of 4 bits are at most 15, so that the sums of eight of its
results, 16 · 15 · 127 = 30,480, fit there before they must be widened. Integers of 8 bits go through it as two halves of 4 bits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.cpu.block_c import INTS, NUMBERS, PACK_BYTES, PACK_FLOATS, PLAIN, intrinsics
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.isa import ByteDot, Isa
from bricolage.native.cpu.panels import MicroTile, ProductOperand
from bricolage.native.ir.tensors import BlockConstant, MatMul, Node

FEW_ROWS = 8
"""Rows up to which each thread packs all of them for itself: that takes less than a meeting."""
LONGEST_BLOCK = 1 << 16
"""Integers of a block: 240 · 127 · 65,536 fits into int32."""
BEHIND = 16
"""Bytes behind each block of a packed row: its scale, its scale times its sum, and where the sums of its products start."""
_AHEAD, _LINE = 4096, 64
"""Bytes of a panel that are fetched ahead, and of a cache line. A processor's own prefetching ends with a page: without this, one
thread read at three quarters of what memory gives it."""
_STEPS = 8
"""Products in int16 that are summed before they are widened."""
_SETS = 2
"""Sums of float32 that are under way of each row and vector: a multiply-add takes four cycles, of which two begin in each. As many
in tiles of many rows, so that a row has the same bits however many are multiplied with it."""


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
    per_column = blocks.block * blocks.bits // 8 + (2 if halves else 4) + (0 if blocks.zeros is None else 4)
    return kind(
        "uint8",
        4,
        per_column,
        1.0,
        whole_rows=True,
        bits=blocks.bits,
        block=blocks.block,
        offsets=blocks.zeros is not None,
        halves=halves,
        dot=isa.vector_dot,
    )


@dataclass(frozen=True)
class BlockOperand(ProductOperand):
    """What both have in common. A step of a micro-kernel is a block; elements are bytes."""

    bits: int = 4
    block: int = 32
    offsets: bool = False
    """Whether there are zero points other than the middle."""
    halves: bool = False
    """Whether scales are float16, which then loses nothing and takes less to read."""
    dot: ByteDot = "plain"

    def steps(self, k: int) -> int:
        """Blocks."""
        return -(-k // self.block)

    @property
    def group(self) -> int:
        """Neighbours along k of which a vector holds the integers."""
        return 32 // self.bits

    def panels_of(self, p: Product, lanes: int) -> np.ndarray:
        """See `ProductOperand.panels_of`: float32 is not made on the way."""
        assert p.blocks is not None
        return self.block_panels(p.blocks, lanes)

    def block_panels(self, blocks: QuantisedBlocks, lanes: int) -> np.ndarray:
        """Panels of two vectors of columns, one after another, the last one of one or two; see the head of this file."""
        n, count = blocks.scales.shape
        wide = -(-n // lanes) * lanes
        integers = np.full((wide, count * blocks.block), blocks.middle, np.uint8)
        integers[:n] = blocks.integers()
        grouped = integers.reshape(wide, count, -1, self.group)
        if self.bits == 4:
            grouped = grouped[..., :4] | grouped[..., 4:] << 4
        scales = np.zeros((wide, count), np.float16 if self.halves else np.float32)
        scales[:n] = blocks.scales
        heads = [scales]
        if blocks.zeros is not None:
            offsets = np.zeros((wide, count), np.float32)
            offsets[:n] = blocks.scales * (np.float32(self.middle) - blocks.zeros)
            heads.append(offsets)
        parts: list[np.ndarray] = []
        for start in range(0, wide, 2 * lanes):
            columns = slice(start, min(start + 2 * lanes, wide))
            # [column, block] to [block, column]; [column, block, group, byte] to [block, group, column, byte].
            first = [np.ascontiguousarray(each[columns].T).view(np.uint8) for each in heads]
            body = np.ascontiguousarray(grouped[columns].transpose(1, 2, 0, 3)).reshape(count, -1)
            parts.append(np.concatenate([*first, body], axis=1).reshape(-1))
        return np.concatenate(parts)

    @property
    def middle(self) -> int:
        """Of the integers."""
        return 1 << (self.bits - 1)

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """Nothing: what it needs are `helpers`."""
        return ()

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`."""
        assert not tile.adds and not tile.prefetch, "a panel is read once, and as a stream"
        kind = f"{self.bits}x{self.block}{'z' * self.offsets}{'h' * self.halves}"
        name = f"{self.prefix}{kind}_{tile.rows}x{tile.vectors}_{tile.lda}"
        rows, vectors, lanes = range(tile.rows), range(tile.vectors), tile.lanes
        wide = 4 * lanes
        scales = (wide // 2 if self.halves else wide) * tile.vectors
        head = scales + wide * tile.vectors * self.offsets
        groups = self.block // self.group
        step = self.widened_after
        size = head + groups * tile.vectors * wide
        lines = _emit_prefetches("b", head)
        lines += [f"const vec scale_{v} = {self._scale(v, lanes)};" for v in vectors]
        if self.offsets:
            lines += [f"const vec offset_{v} = *(const vec *)(b + {scales + v * wide});" for v in vectors]
        lines += self.begin(tile)
        lines += [f"const uint8_t *x = a, *w = b + {head};"]
        whole, rest = divmod(groups, step)
        for count, times in ((step, whole), (rest, 1)):
            if not count or not times:
                continue
            ahead = f"x += {count * self.group * self.element_bytes}; w += {count * tile.vectors * wide};"
            body = [*_emit_prefetches("w", count * tile.vectors * wide), *self.groups(count, tile), ahead]
            lines += (
                ["{", *(f"  {line}" for line in body), "}"]
                if times == 1
                else [f"for (long g = 0; g < {times}; g++) {{", *(f"  {line}" for line in body), "}"]
            )
        lines += self.end(tile)
        block_bytes = self.block * self.element_bytes
        lines += [f"a += {block_bytes + BEHIND}; b += {size};"]
        return name, "\n".join(
            [
                f"static __attribute__(({', '.join(['noinline', 'noipa', *self.attributes(lanes)])})) void {name}"
                "(long blocks, const uint8_t *restrict a, const uint8_t *restrict b, float *restrict tile) {",
                f"  vec {', '.join(f't_{r}_{v} = {{0}}' for r in rows for v in vectors)};",
                "  for (long block = 0; block < blocks; block++) {",
                *(f"    {line}" for line in lines),
                "  }",
                *(f"  *(vec *)(tile + {(r * tile.vectors + v) * lanes}) = t_{r}_{v};" for r in rows for v in vectors),
                "}",
            ]
        )

    def _scale(self, v: int, lanes: int) -> str:
        """C of a vector of scales."""
        if not self.halves:
            return f"*(const vec *)(b + {4 * lanes * v})"
        at = f"b + {2 * lanes * v}"
        if lanes == 16:
            return f"(vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)({at})))"
        return f"(vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)({at})))"

    def attributes(self, lanes: int) -> list[str]:
        """Of a micro-kernel, in C: instructions that other code of the file is not compiled for."""
        return ['target("f16c")'] if self.halves and lanes == 8 else []

    prefix = ""
    element_bytes = 1
    """Of a number in a packed row."""
    widened_after = 4
    """Groups that are written out one after another."""

    def pitch(self, k: int) -> int:
        """Bytes from one packed row to the next."""
        return self.steps(k) * (self.block * self.element_bytes + BEHIND)

    @abstractmethod
    def begin(self, tile: MicroTile) -> list[str]:
        """C before the groups of a block."""

    @abstractmethod
    def groups(self, count: int, tile: MicroTile) -> list[str]:
        """C of some groups: `x` is where their rows are, `w` where their integers."""

    @abstractmethod
    def end(self, tile: MicroTile) -> list[str]:
        """C behind the groups of a block, which adds to the sums t_row_vector."""

    def _of_zero_points(self, r: int, v: int, lda: int) -> list[str]:
        """What zero points add, if there are any."""
        at = f"a + {r * lda + self.block * self.element_bytes + 4}"
        return [f"t_{r}_{v} += *(const float *)({at}) * offset_{v};"] if self.offsets else []


def _emit_prefetches(at: str, size: int) -> list[str]:
    """C that brings near what will be read in place of `size` bytes from here."""
    return [f"__builtin_prefetch({at} + {_AHEAD + line});" for line in range(0, size, _LINE)]


@dataclass(frozen=True)
class BlockFloats(BlockOperand):
    """Rows of float32. The middle is taken off each integer, so that nothing large cancels."""

    prefix = "few_bits"
    element_bytes = 4

    def rows(self, isa: Isa) -> int:
        """Each row takes two vectors of sums and two of a block's."""
        return {16: 6, 8: 3}.get(isa.lanes, 2)

    def helpers(self, _isa: Isa) -> dict[str, str]:
        """What packs rows and makes numbers of integers."""
        return {"block_ints": INTS, "block_numbers": NUMBERS, "pack_block_floats": PACK_FLOATS}

    def pack_row(self, x: str, to: str, k: int, _part: int, _peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        return f"pack_block_floats({x}, {to}, {k}, {self.block});"

    def begin(self, tile: MicroTile) -> list[str]:
        """Sums of a block."""
        names = (f"p{s}_{r}_{v} = {{0}}" for s in range(_SETS) for r in range(tile.rows) for v in range(tile.vectors))
        return [f"vec {', '.join(names)};"]

    def groups(self, count: int, tile: MicroTile) -> list[str]:
        """Integer after integer along k."""
        wide = 4 * tile.lanes
        lines: list[str] = []
        for g in range(count):
            lines += ["{"]
            lines += [
                f"  const block_ints w_{v} = *(const block_ints *)(w + {(g * tile.vectors + v) * wide});"
                for v in range(tile.vectors)
            ]
            for i in range(self.group):
                shift = 8 * (i % 4) + 4 * (i // 4)
                lines += ["  {"]
                lines += [
                    f"    const vec n_{v} = block_number{self.bits}(w_{v}, {shift});" for v in range(tile.vectors)
                ]
                for r in range(tile.rows):
                    at = f"*(const float *)(x + {r * tile.lda + 4 * (g * self.group + i)})"
                    lines += [f"    p{i % _SETS}_{r}_{v} += {at} * n_{v};" for v in range(tile.vectors)]
                lines += ["  }"]
            lines += ["}"]
        return lines

    def end(self, tile: MicroTile) -> list[str]:
        """Scaled."""
        lines: list[str] = []
        for r in range(tile.rows):
            for v in range(tile.vectors):
                total = " + ".join(f"p{s}_{r}_{v}" for s in range(_SETS))
                lines += [f"t_{r}_{v} += ({total}) * scale_{v};", *self._of_zero_points(r, v, tile.lda)]
        return lines


@dataclass(frozen=True)
class BlockBytes(BlockOperand):
    """Rows of bytes."""

    prefix = "few_bits_bytes"

    @property
    def _vnni(self) -> bool:
        return self.dot == "vpdpbusd"

    def attributes(self, lanes: int) -> list[str]:
        """See `BlockOperand.attributes`."""
        vnni_target = [f'target("{"avx512vnni" if lanes == 16 else "avxvnni"}")'] if self._vnni else []
        return [*super().attributes(lanes), *vnni_target]

    @property
    def _halves(self) -> bool:
        """Whether integers of 8 bits are multiplied as two of 4 bits."""
        return self.dot == "vpmaddubsw" and self.bits == 8

    @property
    def widened_after(self) -> int:  # type: ignore[override]
        """Products whose sum int16 holds."""
        return _STEPS if self._halves else _STEPS * self.bits // 8

    def rows(self, isa: Isa) -> int:
        """Each row takes two vectors of sums, and two or four of a block's."""
        return {16: 4, 8: 2}.get(isa.lanes, 2)

    def helpers(self, isa: Isa) -> dict[str, str]:
        """What packs rows and multiplies."""
        name = f"block_dot_{self.dot}"
        text = PLAIN if self.dot == "plain" else intrinsics(self.dot, isa.lanes)
        return {"block_ints": INTS, name: text, "pack_block_bytes": PACK_BYTES}

    def pack_row(self, x: str, to: str, k: int, _part: int, _peak: str = "") -> str:
        """See `ProductOperand.pack_row`."""
        return f"pack_block_bytes({x}, {to}, {k}, {self.block}, {self.middle});"

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
        wide, every = 4 * tile.lanes, [(r, v) for r in range(tile.rows) for v in range(tile.vectors)]
        narrow = self.dot == "vpmaddubsw"
        lines: list[str] = []
        if narrow:
            lines += [f"block_bytes s_{r}_{v} = BLOCK_NONE;" for r, v in every]
            lines += [f"block_bytes u_{r}_{v} = BLOCK_NONE;" for r, v in every] if self._halves else []
        for g in range(count):
            lines += ["{"]
            for v in range(tile.vectors):
                lines += [f"  const block_bytes w_{v} = BLOCK_LOAD(w + {(g * tile.vectors + v) * wide});"]
            for upper in (False, True) if self.bits == 4 or self._halves else (None,):
                at = g * self.group + (4 if upper and self.bits == 4 else 0)
                taken = {None: "{}", False: "BLOCK_LOW({})", True: "BLOCK_HIGH({})"}[upper]
                lines += ["  {"]
                lines += [f"    const block_bytes n_{v} = {taken.format(f'w_{v}')};" for v in range(tile.vectors)]
                sums = "s" if narrow else "i"
                if upper and (self._halves or self._upper):
                    sums = "u" if self._halves else "j"
                for r in range(tile.rows):
                    lines += [f"    {{ const block_four four = BLOCK_FOUR(x + {r * tile.lda + at});"]
                    lines += [f"      BLOCK_DOT({sums}_{r}_{v}, n_{v}, four);" for v in range(tile.vectors)]
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
