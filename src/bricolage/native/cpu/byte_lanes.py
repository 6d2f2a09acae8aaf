"""Products of bytes on 64-bit Arm, whose instructions multiply bytes of one kind of sign, or have it in an extension.

`usmmla` (i8mm) multiplies bytes without a sign by bytes with one, eight neighbours of two rows by those of two columns (`by_pair`).
`sdot` (dotprod) and `smull` (every processor) multiply bytes with a sign, so that rows are shifted: 128 is taken off
each of their bytes. Where rows are packed here, it is taken off their zero point as well, and nothing changes. Where a graph gives
bytes, it is taken off as they are read, and sums start from 128·ΣW, which lies behind a panel.

`smull` sums pairs of products in int16. Bytes with a sign are at least -128, and so is a product of two of them at most 2^14: two
fill int16 only if both weights are -128. Weights that are made here are at least -127; given ones are looked at.

All sums are exact, and no scale is kept from saturating anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.native.cpu.by_lane import LaneVectors
from bricolage.native.cpu.by_pair import PairProducts
from bricolage.native.cpu.byte_c import SPREAD_BYTES, pack_bytes
from bricolage.native.cpu.byte_formats import BytesInFours
from bricolage.native.cpu.isa import ByteDot, Isa
from bricolage.native.cpu.panels import MicroTile

_VECTOR = 16
"""Bytes of a vector."""
SHIFT = 128
"""What bytes of a row are less where instructions take them for bytes with a sign."""


@dataclass(frozen=True)
class ByteLanes(BytesInFours, LaneVectors):
    """Bytes in vectors, those of a row by lane."""

    dot: ByteDot = "sdot"

    @property
    def name(self) -> str:
        """Of micro-kernels."""
        return f"{self.dot}{'_shifted' * self.shifted}"

    def rows(self, isa: Isa) -> int:
        """Products in int16 take registers as well."""
        return isa.rows if self.dot == "sdot" else isa.rows // 2

    def pitch(self, k: int) -> int:
        """See `ProductOperand.pitch`: whole vectors, so that an instruction holds how far a row lies from the first one."""
        return -(-self.row(k) // _VECTOR) * _VECTOR

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """The vectors, and what packs rows."""
        head = [_HEAD, *([_FOUR_PRODUCTS[self.dot]] if self.dot in _FOUR_PRODUCTS else [])]
        return (*head, *([pack_bytes(SHIFT, neon=True)] if self.scaled else []))

    def first_sum(self, vector: int, tile: MicroTile) -> str:
        """See `LaneVectors.first_sum`: what lies behind all steps of a panel, if rows are shifted as they are read."""
        if not self.shifted:
            return super().first_sum(vector, tile)
        return f"(int32x4_t)*(const byte_sums *)(b + depth * {self.k_pack * tile.vectors * tile.lanes} + {4 * vector * tile.lanes})"


@dataclass(frozen=True)
class BytePairs(BytesInFours, PairProducts):
    """Bytes of pairs of rows and of columns."""

    def preamble(self, _isa: Isa) -> Sequence[str]:
        """The vectors, and what packs rows."""
        return (_HEAD, pack_bytes(neon=True, in_pairs=True) if self.scaled else SPREAD_BYTES)

    def spread_row(self, x: str, to: str, k: int, part: int) -> str:
        """See `ProductOperand.spread_row`."""
        return f"spread_bytes({x}, {to}, {k}, {part});"


BYTE_PAIRS = BytePairs(
    "uint8",
    8,
    8,
    1 / 8,
    1,
    "int32_t",
    "byte_sums",
    scaled=True,
    whole_rows=True,
    row_group=2,
    row_kind="u8",
    row_vector="uint8x16_t",
    column_kind="s8",
    multiply="{0} = (byte_sums)vusmmlaq_s32((int32x4_t){0}, {1}, {2});",
)


def byte_lanes(dot: ByteDot, *, shifted: bool) -> ByteLanes:
    """How bytes are multiplied by one of these instructions. `shifted`: rows are given, and shifted as they are read."""
    words = _WORDS[dot]
    read = "vreinterpretq_s8_u8(veorq_u8({0}, vdupq_n_u8(128)))" if shifted else "vreinterpretq_s8_u8({0})"
    return ByteLanes(
        "uint8",
        4,
        4,
        words.cost,
        1,
        "int32_t",
        "byte_sums",
        scaled=True,
        whole_rows=True,
        shifted=shifted,
        vector="int8x16_t",
        row_vector="int8x16_t",
        kept="int32x4_t",
        broadcast=read.format("vld1q_u8(a + {0})"),
        lane=read.format("byte_four(a + {0})"),
        load="vld1q_s8((const int8_t *){0})",
        multiply=words.multiply,
        dot=dot,
    )


@dataclass(frozen=True)
class _Words:
    cost: float
    """Time of a product, that of a float32 being 1."""
    multiply: str
    """As in `LaneVectors`."""


_FOURS = "({0}, {2}, vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8({1}), {3})));"
_WORDS: Mapping[ByteDot, _Words] = {
    "sdot": _Words(1 / 4, "{0} = vdotq_laneq_s32({0}, {2}, {1}, {3});"),
    "smull": _Words(1.0, "{0} = smull_fours" + _FOURS),
    "smull_wide": _Words(3 / 2, "{0} = smull_wide_fours" + _FOURS),
}

_HEAD = r"""
#include <arm_neon.h>
#include <stdint.h>
typedef int32_t byte_sums __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
static inline uint8x16_t byte_four(const uint8_t *p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vreinterpretq_u8_u32(vdupq_n_u32(four));
}
""".strip()
_PRODUCTS = """
static inline int32x4_t {0}_fours(int32x4_t c, int8x16_t w, int8x16_t x) {{
  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_high_s8(w, x);
  return {1};
}}
""".strip()
_FOUR_PRODUCTS: Mapping[ByteDot, str] = {
    "smull": _PRODUCTS.format("smull", "vpadalq_s16(c, vpaddq_s16(low, high))"),
    "smull_wide": _PRODUCTS.format("smull_wide", "vaddq_s32(c, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)))"),
}
