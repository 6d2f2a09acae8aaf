"""Products of bytes: float32 in and out, integers in between.

Rows of the left side become bytes without a sign while they are packed, each with a scale and a zero point of its own (asymmetric,
dynamic); columns of constant weights become bytes with a sign when the region is compiled, each with a scale (symmetric). The sums
in int32 are exact, so that

    Σ a·w = scale_a · scale_w · (Σ A·W − zero_a · ΣW)

(Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference", CVPR 2018). A packed
row ends with its scale and zero point, a panel with the scales of its columns and their sums ΣW.

Where the only instruction is vpmaddubsw, which adds two products in int16 and saturates, scales are *pair-safe*
(`bricolage.lowering.byte_columns`).

Where a graph gives bytes on both sides (`ir.lowerings.integers`), the sums in int32 are the result, and nothing lies behind rows
and columns. Where some pair of such weights may saturate, the steps of a panel in which none does come first; in the others even
and odd bytes are widened to int16, whose products vpmaddwd sums in int32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from bricolage.lowering.byte_columns import PAIR, one_signed_pairs
from bricolage.native.c import read_header
from bricolage.native.cpu.byte_c import pack_bytes
from bricolage.native.cpu.byte_formats import BytesInFours
from bricolage.native.cpu.byte_lanes import BYTE_PAIRS, ByteLanes, byte_lanes
from bricolage.native.cpu.implicit_gemm import product
from bricolage.native.cpu.isa import ByteDot, Isa
from bricolage.native.cpu.matrix_unit import BYTE_TILES, EMULATED, TILES, Tiles
from bricolage.native.cpu.panels import MicroTile, ProductOperand, Vectors
from bricolage.native.ir.tensors import Conv, MatMul

LONGEST = (2**31 - 1) // (255 * 127)
"""Products that a sum in int32 holds, whatever they are."""


@dataclass(frozen=True)
class ByteVectors(BytesInFours, Vectors):
    """Bytes in vectors."""

    dot: ByteDot = "plain"
    most_sums: int = 8
    """Products in int16 take registers as well."""

    @property
    def name(self) -> str:
        """Of micro-kernels."""
        return "ordered_fours" if self.ordered else super().name

    def orders(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """[batch, panels, 1 + steps]: in how many steps of a panel no pair can saturate, these steps, and the others."""
        batch, k, n = right.shape
        steps, wide = self.steps(k), 2 * lanes
        full = np.zeros((batch, steps * self.k_pack, -(-n // wide) * wide), np.int16)
        full[:, :k, :n] = right
        pairs = full.reshape(batch, steps, 2, 2, -1, wide)
        sums = np.maximum(np.maximum(pairs, 0).sum(axis=3), np.maximum(-pairs, 0).sum(axis=3))
        unsafe = (sums > PAIR).any(axis=(2, 4)).swapaxes(1, 2)  # [batch, panels, steps]
        order = np.argsort(unsafe, axis=2, kind="stable")
        safe = steps - unsafe.sum(axis=2, keepdims=True)
        return np.ascontiguousarray(np.concatenate([safe, order], axis=2), np.int32)

    def micro_kernel(self, tile: MicroTile) -> tuple[str, str]:
        """See `ProductOperand.micro_kernel`; where steps have an order, a last parameter gives it."""
        if not self.ordered:
            return super().micro_kernel(tile)
        rows, vectors, lda, lanes = tile.rows, tile.vectors, tile.lda, tile.lanes
        wide = lanes * self.k_pack
        name = f"{self.name}_{rows}x{vectors}_{lda}{'_ahead' if tile.prefetch else ''}"
        more = ", const char *ahead, long stride" if tile.prefetch else ""
        ahead = ["    __builtin_prefetch(ahead, 0, 2); ahead += stride;"] if tile.prefetch else []
        sums = [f"c{r}_{v}" for r in range(rows) for v in range(vectors)]
        lines = [
            f"static __attribute__((noinline, noipa)) void {name}(long depth, const uint8_t *left, const uint8_t *b,"
            f" {self.sums} *tile{more}, const int32_t *order) {{",
            f"  {self.sum_vector} {', '.join(f'{sum_} = {{0}}' for sum_ in sums)};",
            "  const long safe = *order++;",
            "  long k = 0;",
        ]
        for until, (vector, four, load, multiply) in (
            ("safe", (self.vector, self.broadcast, self.load, self.multiply)),
            ("depth", _WIDE_INSTRUCTIONS[lanes]),
        ):
            lines += [f"  for (; k < {until}; k++, b += {vectors * wide}) {{", *ahead]
            lines.append(f"    const uint8_t *a = left + {self.k_pack} * order[k];")
            for v in range(vectors):
                lines.append(f"    {{ const {vector} w = {load.format(v * wide)};")
                for r in range(rows):
                    lines.append(f"      {{ const {vector} x = {four.format(r * lda)};")
                    lines.append(f"        {multiply.format(f'c{r}_{v}', 'x', 'w')} }}")
                lines.append("    }")
            lines.append("  }")
        lines += [
            f"  *({self.sum_vector} *)(tile + {(r * vectors + v) * lanes}) = c{r}_{v};"
            for r in range(rows)
            for v in range(vectors)
        ]
        return name, "\n".join([*lines, "}"])

    @property
    def pairs_saturate(self) -> bool:
        """Of vpmaddubsw alone."""
        return self.dot == "vpmaddubsw"

    def preamble(self, isa: Isa) -> Sequence[str]:
        """What packs rows, and products in plain C."""
        more = [_PLAIN_DOT] if self.dot == "plain" else [_WIDENED[isa.lanes]] if self.ordered else []
        return (_HEAD, *more, *([pack_bytes()] if self.scaled else []))


@dataclass(frozen=True)
class ByteTiles(BytesInFours, Tiles):
    """Bytes in the tiles of a matrix unit."""

    def preamble(self, isa: Isa) -> Sequence[str]:
        """The unit's instructions, and what packs rows."""
        unit = (TILES, BYTE_TILES) if isa.matrix_unit == "amx" else (EMULATED,)
        return (*unit, _HEAD, *([pack_bytes()] if self.scaled else []))


def given_bytes(isa: Isa, root: MatMul | Conv) -> ProductOperand:
    """How the bytes that a graph gives are multiplied with an instruction set: exactly, whatever they are."""
    usual = byte_operand(isa)
    if isinstance(usual, ByteLanes):
        wide = usual.dot == "smull" and _has_smallest(root, isa.lanes)
        given = byte_lanes("smull_wide" if wide else usual.dot, shifted=True)
        return replace(given, scaled=False, whole_rows=False)
    if not isinstance(usual, ByteVectors) or usual.dot != "vpmaddubsw" or _never_saturates(root, isa.lanes):
        return replace(usual, scaled=False, whole_rows=False)
    return replace(usual, scaled=False, whole_rows=False, cost=_COSTS["vpmaddwd"], dot="vpmaddwd", ordered=True)


_PROVED: WeakKeyDictionary[MatMul | Conv, dict[tuple[int, str], bool]] = WeakKeyDictionary()
"""What is known of products whose weights have been looked at, by the lanes that groups were joined for."""


def _looks(root: MatMul | Conv, lanes: int, what: str, test: Callable[[np.ndarray], bool]) -> bool:
    """What a test says of the weights of a product."""
    verdicts = _PROVED.setdefault(root, {})
    if (lanes, what) not in verdicts:
        right = product(root, lanes).right
        assert callable(right)
        verdicts[lanes, what] = test(right().astype(np.int16))
    return verdicts[lanes, what]


def _never_saturates(root: MatMul | Conv, lanes: int) -> bool:
    """Whether no two neighbours along k, of one sign, sum to more than 128 anywhere."""
    return _looks(root, lanes, "pairs", lambda weights: bool((one_signed_pairs(weights) <= PAIR).all()))


def _has_smallest(root: MatMul | Conv, lanes: int) -> bool:
    """Whether there is the smallest byte among the weights."""
    return _looks(root, lanes, "smallest", lambda weights: bool((weights == -128).any()))


def byte_operand(isa: Isa) -> ProductOperand:
    """How bytes are multiplied with an instruction set."""
    if isa.byte_dot == "tdpbusd":
        return ByteTiles(
            "uint8",
            4,
            64,
            1 / 32,
            1,
            "int32_t",
            "byte_sums",
            scaled=True,
            whole_rows=True,
            multiply="tile_multiply_bytes",
        )
    if isa.byte_dot == "usmmla":
        return BYTE_PAIRS
    if isa.by_lane:
        return byte_lanes(isa.byte_dot, shifted=False)
    vector, broadcast, load, multiply = _INSTRUCTIONS[isa.byte_dot, isa.lanes if isa.byte_dot != "plain" else 0]
    return ByteVectors(
        "uint8",
        4,
        4,
        _COSTS[isa.byte_dot],
        1,
        "int32_t",
        "byte_sums",
        scaled=True,
        whole_rows=True,
        vector=vector,
        broadcast=broadcast,
        load=load,
        multiply=multiply,
        dot=isa.byte_dot,
    )


_COSTS: Mapping[ByteDot, float] = {"vpdpbusd": 1 / 4, "vpmaddubsw": 1 / 2, "vpmaddwd": 1.0, "plain": 1.0}
"""Time of a product, that of a float32 being 1."""

_WIDE = ("__m512i", "_mm512_set1_epi32(*(const int *)(a + {0}))", "_mm512_loadu_si512(b + {0})")
_NARROW = ("__m256i", "_mm256_set1_epi32(*(const int *)(a + {0}))", "_mm256_loadu_si256((const __m256i *)(b + {0}))")
_INSTRUCTIONS: Mapping[tuple[ByteDot, int], tuple[str, str, str, str]] = {
    ("vpdpbusd", 16): (*_WIDE, "{0} = (byte_sums)_mm512_dpbusd_epi32((__m512i){0}, {1}, {2});"),
    ("vpdpbusd", 8): (*_NARROW, "{0} = (byte_sums)_mm256_dpbusd_avx_epi32((__m256i){0}, {1}, {2});"),
    ("vpmaddubsw", 16): (
        *_WIDE,
        "{0} += (byte_sums)_mm512_madd_epi16(_mm512_maddubs_epi16({1}, {2}), _mm512_set1_epi16(1));",
    ),
    ("vpmaddubsw", 8): (
        *_NARROW,
        "{0} += (byte_sums)_mm256_madd_epi16(_mm256_maddubs_epi16({1}, {2}), _mm256_set1_epi16(1));",
    ),
    ("plain", 0): ("byte_pointer", "(a + {0})", "(b + {0})", "{0} = plain_dot({0}, {1}, {2});"),
}
"""By instruction and lanes of 32 bits: the type of a vector of bytes, how four of the left side are repeated, how a panel's are
read, and how they are multiplied."""

_WIDE_INSTRUCTIONS: Mapping[int, tuple[str, str, str, str]] = {
    lanes: (
        "struct widened",
        f"widen_unsigned({four.format('{0}')})",
        f"widen_signed({panel.format('{0}')})",
        f"{{0}} += (byte_sums)_mm{bits}_add_epi32(_mm{bits}_madd_epi16({{1}}.even, {{2}}.even), "
        f"_mm{bits}_madd_epi16({{1}}.odd, {{2}}.odd));",
    )
    for lanes, bits, (_, four, panel) in ((8, 256, _NARROW), (16, 512, _WIDE))
}
"""By lanes of 32 bits, as in `_INSTRUCTIONS`: a product of int16 is exact, and so is a sum of two in int32."""
_WIDENED = {
    lanes: f"""
struct widened {{ __m{bits}i even, odd; }};
static inline struct widened widen_unsigned(__m{bits}i x) {{
  return (struct widened){{ _mm{bits}_and_si{bits}(x, _mm{bits}_set1_epi16(255)), _mm{bits}_srli_epi16(x, 8) }};
}}
static inline struct widened widen_signed(__m{bits}i x) {{
  return (struct widened){{ _mm{bits}_srai_epi16(_mm{bits}_slli_epi16(x, 8), 8), _mm{bits}_srai_epi16(x, 8) }};
}}
""".strip()
    for lanes, bits in ((8, 256), (16, 512))
}

_HEAD = r"""
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif
typedef int32_t byte_sums __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
"""

_PLAIN_DOT = read_header("byte_plain")
