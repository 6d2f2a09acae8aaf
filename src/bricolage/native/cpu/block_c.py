"""C for products with weights of 4 and 8 bits (`block_products`): what packs rows, and the words of micro-kernels."""

from __future__ import annotations

from collections.abc import Mapping

from bricolage.native.c import read_header
from bricolage.native.cpu.isa import ByteDot

_INTRINSICS = """#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
"""

INTS = _INTRINSICS + "typedef int32_t block_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));"

NUMBERS = read_header("block_numbers")

PACK_FLOATS = read_header("pack_block_floats")

PACK_BYTES = read_header("pack_block_bytes")

PLAIN = read_header("block_plain")

TARGETS: Mapping[tuple[ByteDot, int], str] = {
    ("vpdpbusd", 16): "avx512vnni",
    ("vpdpbusd", 8): "avxvnni",
    ("sdot", 4): "arch=armv8.2-a+dotprod",
    ("usdot", 4): "arch=armv8.2-a+i8mm",
}
"""What micro-kernels are compiled for, in a file that may be for less."""


def intrinsics(dot: ByteDot, lanes: int) -> str:
    """The words of micro-kernels in an instruction set's vectors of `lanes` times 32 bits."""
    mm, si, load = ("_mm512", "si512", "p") if lanes == 16 else ("_mm256", "si256", "(const __m256i *)(p)")
    vector = "__m512i" if lanes == 16 else "__m256i"
    lines = [
        f"typedef {vector} block_bytes, block_four, block_narrow;",
        "typedef block_ints block_sums;",
        f"#define BLOCK_START(n) ((block_sums){mm}_set1_epi32(n))",
        f"#define BLOCK_NONE {mm}_setzero_{si}()",
        f"#define BLOCK_LOAD(p) {mm}_loadu_{si}({load})",
        f"#define BLOCK_FOUR(p) {mm}_set1_epi32(*(const int *)(p))",
        f"#define BLOCK_LOW(v) {mm}_and_{si}(v, {mm}_set1_epi8(15))",
    ]
    if dot == "vpdpbusd":
        name = "_mm512_dpbusd_epi32" if lanes == 16 else "_mm256_dpbusd_avx_epi32"
        lines += [
            "/* As they lie, 16 times as large. */",
            f"#define BLOCK_HIGH(v) {mm}_and_{si}(v, {mm}_set1_epi8(-16))",
            f"#define BLOCK_DOT(c, u, s) c = (block_sums){name}(({vector})c, u, s)",
        ]
    else:
        lines += [
            f"#define BLOCK_HIGH(v) {mm}_and_{si}({mm}_srli_epi16(v, 4), {mm}_set1_epi8(15))",
            "/* The empty instruction keeps sums apart: compilers make all products first, in more registers than there are. */",
            f'#define BLOCK_DOT(c, u, s) c = {mm}_add_epi16(c, {mm}_maddubs_epi16(u, s)); __asm__("" : "+v"(c))',
            f"#define BLOCK_WIDEN(c, s, n) c += (block_sums){mm}_slli_epi32({mm}_madd_epi16(s, {mm}_set1_epi16(1)), n)",
        ]
    return "\n".join(lines)


def neon_intrinsics(dot: ByteDot) -> str:
    """The same on 64-bit Arm, where four bytes of a row are a lane of sixteen. What `smull` sums in int16, it sums in two vectors,
    one for each half of the columns."""
    lines = [
        "typedef uint8x16_t block_bytes;",
        "typedef int8x16_t block_four;",
        "typedef block_ints block_sums;",
        "typedef struct { int16x8_t low, high; } block_narrow;",
        "#define BLOCK_START(n) ((block_sums)vdupq_n_s32(n))",
        "#define BLOCK_NONE ((block_narrow){vdupq_n_s16(0), vdupq_n_s16(0)})",
        "#define BLOCK_LOAD(p) vld1q_u8(p)",
        "#define BLOCK_FOURS(p) vld1q_s8((const int8_t *)(p))",
        "#define BLOCK_FOUR(p) vreinterpretq_s8_s32(vdupq_n_s32(*(const int *)(p)))",
        "#define BLOCK_LOW(v) vandq_u8(v, vdupq_n_u8(15))",
        "#define BLOCK_HIGH(v) vshrq_n_u8(v, 4)",
    ]
    if dot == "smull":
        lines += [
            "static inline block_narrow block_products(block_narrow c, int8x16_t w, int8x16_t x) {",
            "  c.low = vmlal_s8(c.low, vget_low_s8(w), vget_low_s8(x));",
            "  c.high = vmlal_high_s8(c.high, w, x);",
            "  return c;",
            "}",
            "#define BLOCK_LANE(s, n) vreinterpretq_s8_s32(vdupq_laneq_s32(vreinterpretq_s32_s8(s), n))",
            "#define BLOCK_NARROW_LANE(c, u, s, n) c = block_products(c, vreinterpretq_s8_u8(u), BLOCK_LANE(s, n))",
            "/* A sum of two products is smaller than 2^15: no byte of a row is -128. */",
            "static inline block_sums block_sum(block_sums c, int8x16_t w, int8x16_t x) {",
            "  const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x));",
            "  return (block_sums)vpadalq_s16((int32x4_t)c, vpaddq_s16(low, vmull_high_s8(w, x)));",
            "}",
            "#define BLOCK_DOT_LANE(c, u, s, n) c = block_sum(c, vreinterpretq_s8_u8(u), BLOCK_LANE(s, n))",
            "#define BLOCK_WIDEN(c, s, n) c += (block_sums)vshlq_n_s32(vpaddlq_s16(vpaddq_s16(s.low, s.high)), n)",
        ]
    elif dot == "sdot":
        lines.append(
            "#define BLOCK_DOT_LANE(c, u, s, n) c = (block_sums)vdotq_laneq_s32((int32x4_t)c, vreinterpretq_s8_u8(u), s, n)"
        )
    else:
        lines.append("#define BLOCK_DOT_LANE(c, u, s, n) c = (block_sums)vusdotq_laneq_s32((int32x4_t)c, u, s, n)")
    return "\n".join(lines)
