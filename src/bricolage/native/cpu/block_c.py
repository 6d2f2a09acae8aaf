"""C for products with weights of 4 and 8 bits (`block_products`): what packs rows, and the words of micro-kernels."""

from __future__ import annotations

from bricolage.native.c import read_header
from bricolage.native.cpu.isa import ByteDot

_INTRINSICS = """#if defined(__x86_64__)
#include <immintrin.h>
#endif
"""

INTS = _INTRINSICS + "typedef int32_t block_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));"

NUMBERS = read_header("block_numbers")

PACK_FLOATS = read_header("pack_block_floats")

PACK_BYTES = read_header("pack_block_bytes")

PLAIN = read_header("block_plain")


def intrinsics(dot: ByteDot, lanes: int) -> str:
    """The words of micro-kernels in an instruction set's vectors of `lanes` times 32 bits."""
    mm, si, load = ("_mm512", "si512", "p") if lanes == 16 else ("_mm256", "si256", "(const __m256i *)(p)")
    vector = "__m512i" if lanes == 16 else "__m256i"
    lines = [
        f"typedef {vector} block_bytes, block_four;",
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
            f"#define BLOCK_DOT(c, u, s) c = {mm}_add_epi16(c, {mm}_maddubs_epi16(u, s))",
            f"#define BLOCK_WIDEN(c, s, n) c += (block_sums){mm}_slli_epi32({mm}_madd_epi16(s, {mm}_set1_epi16(1)), n)",
        ]
    return "\n".join(lines)
