"""How weights of 4 and 8 bits in blocks lie in memory, and what micro-kernels for them have in common (`block_products`)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.native.cpu.by_lane import KEEP_ORDER
from bricolage.native.cpu.implicit_gemm import Product
from bricolage.native.cpu.isa import ByteDot, Isa
from bricolage.native.cpu.panels import MicroTile, ProductOperand

BEHIND = 16
"""Bytes behind each block of a packed row: its scale, its scale times its sum, and where the sums of its products start."""
_AHEAD, _LINE = 4096, 64
"""Bytes of a panel that are fetched ahead, and of a cache line. A processor's own prefetching ends with a page: without this, one
thread read at three quarters of what memory gives it."""


@dataclass(frozen=True)
class BlockOperand(ProductOperand):
    """What both have in common. A step of a micro-kernel is a block; elements are bytes."""

    bits: int = 4
    block: int = 32
    offsets: bool = False
    """Whether there are zero points other than the middle."""
    halves: bool = False
    """Whether scales are float16, which then loses nothing and takes less to read."""
    minima: bool = False
    """Whether what zero points add is made of minima in float16, as scales are."""
    dot: ByteDot = "plain"
    by_lane: bool = False
    """Whether four bytes of a row are a lane of a vector of sixteen."""
    raised: bool = False
    """Whether float32 is made of integers as the highest bits of a word."""

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
        if self.signed:
            grouped ^= 0x80
        scales = np.zeros((wide, count), np.float16 if self.halves else np.float32)
        scales[:n] = blocks.scales
        heads = [scales]
        if blocks.zeros is not None:
            offsets = np.zeros((wide, count), np.float16 if self.minima else np.float32)
            minima = blocks.minima if self.minima else None
            offsets[:n] = blocks.scales * (np.float32(self.middle) - blocks.zeros) if minima is None else minima
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

    @property
    def signed(self) -> bool:
        """Whether the highest bit of each byte is a sign: that of an integer of 8 bits, or of the upper one of two of 4 bits, less
        its middle."""
        return False

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """Nothing: what it needs are `helpers`."""
        return ()

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`."""
        assert not tile.adds and not tile.prefetch, "a panel is read once, and as a stream"
        name = f"{self.prefix}{self.kind}_{tile.rows}x{tile.vectors}_{tile.lda}"
        rows, vectors, lanes = range(tile.rows), range(tile.vectors), tile.lanes
        wide = 4 * lanes
        head = self.head_bytes(tile)
        groups = self.block // self.group
        step = self.widened_after
        size = head + groups * tile.vectors * wide
        lines = [*emit_prefetches("b", head), *self.declare_scales(tile), *self.begin(tile)]
        lines += [f"const uint8_t *x = a, *w = b + {head};"]
        whole, rest = divmod(groups, step)
        for count, times in ((step, whole), (rest, 1)):
            if not count or not times:
                continue
            ahead = f"x += {count * self.group * self.element_bytes}; w += {count * tile.vectors * wide};"
            body = [*emit_prefetches("w", count * tile.vectors * wide), *self.groups(count, tile), ahead]
            lines += ["{" if times == 1 else f"for (long g = 0; g < {times}; g++) {{"]
            lines += [*(f"  {line}" for line in body), "}"]
        lines += self.end(tile)
        lines += [f"a += {self.row_step}; b += {size};"]
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

    @property
    def row_step(self) -> int:
        """Bytes from one block of a packed row to the next."""
        return self.block * self.element_bytes + BEHIND

    def unpacked_bytes(self, _columns: int) -> int:
        """Bytes of a block of a panel, made ready for many rows; 0 where each tile reads integers itself."""
        return 0

    @property
    def kind(self) -> str:
        """In names of micro-kernels."""
        return f"{self.bits}x{self.block}{'z' * self.offsets}{'m' * self.minima}{'h' * self.halves}"

    def head_bytes(self, tile: MicroTile) -> int:
        """Bytes in front of a block's integers."""
        offset = (2 if self.minima else 4) * self.offsets
        return tile.vectors * tile.lanes * ((2 if self.halves else 4) + offset)

    def declare_scales(self, tile: MicroTile) -> list[str]:
        """C of the scales of a block at `b`, and of what its zero points add."""
        lanes, vectors = tile.lanes, range(tile.vectors)
        size = 2 if self.halves else 4
        scales = [f"const vec scale_{v} = {_vector(size * lanes * v, lanes, halves=self.halves)};" for v in vectors]
        if not self.offsets:
            return scales
        behind, size = size * lanes * tile.vectors, 2 if self.minima else 4
        stored = [_vector(behind + size * lanes * v, lanes, halves=self.minima) for v in vectors]
        more = [f"{self.middle}.0f * scale_{v} + " if self.minima else "" for v in vectors]
        return [*scales, *(f"const vec offset_{v} = {more[v]}{stored[v]};" for v in vectors)]

    def attributes(self, lanes: int) -> list[str]:
        """Of a micro-kernel, in C: how it is compiled otherwise than other code of the file."""
        if self.by_lane:
            return [KEEP_ORDER]
        return ['target("f16c")'] if self.halves and lanes == 8 else []

    prefix = ""
    element_bytes = 1
    """Of a number in a packed row."""
    widened_after = 4
    """Groups that are written out one after another."""

    def pitch(self, k: int) -> int:
        """Bytes from one packed row to the next."""
        return self.steps(k) * self.row_step

    def few_rows(self, isa: Isa) -> int:
        """Rows of a tile where there are but a few in all, so that a panel is made ready for no more than these."""
        return self.rows(isa)

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


def _vector(at: int, lanes: int, *, halves: bool) -> str:
    """C of a vector of float32, stored as such or as float16."""
    if not halves:
        return f"*(const vec *)(b + {at})"
    if lanes == 4:
        return f"(vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)(b + {at}))))"
    if lanes == 16:
        return f"(vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(b + {at})))"
    return f"(vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(b + {at})))"


def emit_prefetches(at: str, size: int, ahead: int = _AHEAD) -> list[str]:
    """C that brings near `size` bytes that lie `ahead` of an address."""
    return [f"__builtin_prefetch({at} + {ahead + line});" for line in range(0, size, _LINE)]
