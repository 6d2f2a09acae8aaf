"""Winograd's transformation in integers: the same sums as the direct convolution of bytes, bit for bit.

Polynomials of whole numbers have whole values at whole points. Data of bytes without a sign become at most 1,020 (tiles of 2×2) or
17,340 (4×4) in size, filters of bytes with a sign at most 1,152 or 6,272. So both fit int16, which vpmaddwd or vpdpwssd multiplies
and sums in int32. The rational factors of Toom and Cook's construction are left out of the filters, and their common multiple is
put into the output's transformation: what comes out is 4 or 576 times the convolution.

Sums and the output's transformation wrap around: they are exact modulo 2^32. 4 is 2², and 576 is 2⁶ · 9, where 9 has an inverse
modulo 2^32. So 2² or 2⁶ times each sum is known modulo 2^32, and a shift gives the sum itself if it is smaller than 2^29 or 2^25.
Bytes without a sign reach 255 and weights are constant, so that compiling proves that (`fits_wrapping`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from bricolage.native.cpu.by_lane import KEEP_ORDER
from bricolage.native.cpu.isa import ByteDot, Isa
from bricolage.native.cpu.panels import Vectors, cut_panels
from bricolage.native.ir.tensors import Constant, Conv

_LARGEST_BYTE = 255
_MODULUS = 2**32
SUMS, SIGNED_SUMS = "winograd_sums", "winograd_signed"
"""C types of a vector of 32-bit sums, which wrap around, and of the numbers that they are then taken for."""


@dataclass(frozen=True)
class ShortPairs(Vectors):
    """Pairs of int16, whose products are summed in 32 bits that wrap around."""

    dot: ByteDot = "plain"

    @property
    def name(self) -> str:
        """Of micro-kernels."""
        return "winograd_pairs"

    def helpers(self, _isa: Isa) -> dict[str, str]:
        """Vectors of integers, known by how all their names begin."""
        return {"winograd_": _TYPES + ("" if self.dot != "plain" else _PLAIN)}

    def panels(self, right: np.ndarray, lanes: int) -> np.ndarray:
        """[points, k, n] integers as int16 panels of neighbours along k, see `ProductOperand.panels`."""
        points, k, n = right.shape
        pairs = right.astype(np.int16).reshape(points, k // 2, 2, n).swapaxes(2, 3)
        return cut_panels(pairs.reshape(points, k // 2, 2 * n), 2 * lanes)


def short_pairs(isa: Isa) -> ShortPairs:
    """How transformed bytes are multiplied with an instruction set."""
    dot = isa.vector_dot
    vector, broadcast, load, multiply = _INSTRUCTIONS[dot, isa.lanes if dot != "plain" else 0]
    return ShortPairs(
        "int16",
        2,
        2,
        _COSTS[dot],
        sums="uint32_t",
        sum_vector=SUMS,
        vector=vector,
        broadcast=broadcast,
        load=load,
        multiply=multiply,
        attributes=(KEEP_ORDER,) if isa.by_lane else (),
        dot=dot,
    )


def fits_wrapping(root: Conv, multiple: int) -> bool:
    """Whether the sums of a convolution of bytes are known from `multiple` times them modulo 2^32."""
    if root not in _LARGEST:
        assert isinstance(root.weight, Constant)
        weights = root.weight.array.astype(np.int64).reshape(root.weight.shape[0], -1)
        one_signed = np.maximum(np.maximum(weights, 0).sum(axis=1), np.maximum(-weights, 0).sum(axis=1))
        _LARGEST[root] = _LARGEST_BYTE * int(one_signed.max(initial=0))
    return _LARGEST[root] * _power_of_two(multiple) < _MODULUS // 2


_LARGEST: WeakKeyDictionary[Conv, int] = WeakKeyDictionary()
"""By convolution, what no sum of its products with bytes goes beyond."""


def divide_exactly(sums: str, multiple: int) -> str:
    """C of the signed vector that `sums` is `multiple` times of, modulo 2^32."""
    power = _power_of_two(multiple)
    odd = pow(multiple // power, -1, _MODULUS)
    times = f"({sums}) * {odd}u" if odd != 1 else sums
    return f"({SIGNED_SUMS})({times}) >> {power.bit_length() - 1}"


def _power_of_two(number: int) -> int:
    """The largest that divides it."""
    return number & -number


_COSTS: Mapping[ByteDot, float] = {
    "vpdpbusd": 1 / 2,
    "vpmaddubsw": 2 / 3,
    **dict.fromkeys(("usdot", "sdot", "smull"), 2.0),
    "plain": 1.0,
}
"""Time of a product, that of a float32 being 1, by how bytes are multiplied: of vpmaddwd and an addition the processor begins two
instructions for 16 products where three of vpmaddubsw are 32."""

_WIDE = ("__m512i", "_mm512_set1_epi32(*(const int *)(a + {0}))", "_mm512_loadu_si512(b + {0})")
_NARROW = ("__m256i", "_mm256_set1_epi32(*(const int *)(a + {0}))", "_mm256_loadu_si256((const __m256i *)(b + {0}))")
_INSTRUCTIONS: Mapping[tuple[ByteDot, int], tuple[str, str, str, str]] = {
    ("vpdpbusd", 16): (*_WIDE, "{0} = (winograd_sums)_mm512_dpwssd_epi32((__m512i){0}, {1}, {2});"),
    ("vpdpbusd", 8): (*_NARROW, "{0} = (winograd_sums)_mm256_dpwssd_avx_epi32((__m256i){0}, {1}, {2});"),
    ("vpmaddubsw", 16): (*_WIDE, "{0} += (winograd_sums)_mm512_madd_epi16({1}, {2});"),
    ("vpmaddubsw", 8): (*_NARROW, "{0} += (winograd_sums)_mm256_madd_epi16({1}, {2});"),
    **{
        (dot, 4): (
            "int16x8_t",
            "vreinterpretq_s16_s32(vdupq_n_s32(*(const int *)(a + {0})))",
            "vld1q_s16(b + {0})",
            "{0} += (winograd_sums)vpaddq_s32("
            "vmull_s16(vget_low_s16({1}), vget_low_s16({2})), vmull_high_s16({1}, {2}));",
        )
        for dot in ("usdot", "sdot", "smull")
    },
    ("plain", 0): ("winograd_two", "(a + {0})", "(b + {0})", "{0} = winograd_plain({0}, {1}, {2});"),
}
"""By how bytes are multiplied and lanes of 32 bits, as in `byte_products`: where there is vpdpbusd, there is vpdpwssd."""

_TYPES = r"""
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
typedef uint32_t winograd_sums __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t winograd_signed __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int16_t winograd_half __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint8_t winograd_half_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef int16_t winograd_whole __attribute__((vector_size(4 * LANES), aligned(2), may_alias));
typedef uint8_t winograd_whole_bytes __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
static inline winograd_half winograd_half_load(const uint8_t *p) {
  return __builtin_convertvector(*(const winograd_half_bytes *)p, winograd_half);
}
static inline winograd_whole winograd_whole_load(const uint8_t *p) {
  return __builtin_convertvector(*(const winograd_whole_bytes *)p, winograd_whole);
}
""".strip()
_PLAIN = r"""
typedef const int16_t *winograd_two;
static inline winograd_sums winograd_plain(winograd_sums c, const int16_t *a, const int16_t *b) {
  for (long i = 0; i < LANES; i++) c[i] += a[0] * b[2 * i] + a[1] * b[2 * i + 1];
  return c;
}
"""
