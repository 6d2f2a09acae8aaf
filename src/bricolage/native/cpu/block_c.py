"""C for products with weights of 4 and 8 bits (`block_products`): what packs rows, and the words of micro-kernels."""

from __future__ import annotations

from bricolage.native.cpu.isa import ByteDot

_INTRINSICS = """#if defined(__x86_64__)
#include <immintrin.h>
#endif
"""

INTS = _INTRINSICS + "typedef int32_t block_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));"

NUMBERS = r"""
#if defined(__AVX512F__) && LANES == 16
/* The integer of 4 bits from bit `shift` on, less 8: a table has them all, and the instruction takes no more bits than that. */
static inline vec block_number4(block_ints w, int shift) {
  const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm512_permutexvar_ps((__m512i)(w >> shift), table);
}
#else
static inline vec block_number4(block_ints w, int shift) { return __builtin_convertvector(((w >> shift) & 15) - 8, vec); }
#endif
static inline vec block_number8(block_ints w, int shift) { return __builtin_convertvector(((w >> shift) & 255) - 128, vec); }
""".strip()

PACK_FLOATS = r"""
/* k numbers in blocks, filled up with zeros; behind each block a word, and its sum. */
static __attribute__((noinline)) void pack_block_floats(const float *restrict x, uint8_t *restrict to, long k, long block) {
  for (long from = 0; from < k; from += block, to += 4 * block + 16) {
    const long some = k - from < block ? k - from : block;
    float *restrict own = (float *)to;
    float sum = 0;
    __builtin_memcpy(own, x + from, 4 * some);
    for (long i = some; i < block; i++) own[i] = 0;
    for (long i = 0; i < some; i++) sum += own[i];
    own[block + 1] = sum;
  }
}
""".strip()

PACK_BYTES = r"""
/* k numbers as bytes with a sign in blocks, filled up with zeros. Behind each block lie its scale, that times the sum of its
   bytes, and that sum times -middle. A number that is not finite makes the scale NaN, and so all that is computed of the row. */
static __attribute__((noinline)) void pack_block_bytes(const float *restrict x, uint8_t *restrict to, long k, long block,
                                                       int middle) {
  for (long from = 0; from < k; from += block, to += block + 16) {
    const long some = k - from < block ? k - from : block;
    const float *restrict own = x + from;
    int8_t *restrict made = (int8_t *)to;
    int32_t most = 0, sum = 0;  /* sizes of floats are in the order of their bits */
    for (long i = 0; i < some; i++) {
      int32_t bits;
      __builtin_memcpy(&bits, own + i, 4);
      bits &= 0x7fffffff;
      most = bits > most ? bits : most;
    }
    float largest;
    __builtin_memcpy(&largest, &most, 4);
    float scale = largest / 127;
    if (scale < 1.17549435e-38f) scale = 0;
    const float inverse = most < 0x7f800000 && scale > 0 ? 1 / scale : 0;
    if (inverse > 0)
      for (long i = 0; i < some; i++) {
        const float rounded = own[i] * inverse + 12582912.0f;  /* to the nearest, to the even one between two */
        const int32_t q = (int32_t)(rounded - 12582912.0f);
        made[i] = (int8_t)q;
        sum += q;
      }
    else
      for (long i = 0; i < some; i++) made[i] = 0;
    for (long i = some; i < block; i++) made[i] = 0;
    if (most >= 0x7f800000) scale = __builtin_nanf("");
    const float scaled = scale * (float)sum;
    const int32_t start = -middle * sum;
    __builtin_memcpy(made + block, &scale, 4);
    __builtin_memcpy(made + block + 4, &scaled, 4);
    __builtin_memcpy(made + block + 8, &start, 4);
  }
}
""".strip()

PLAIN = r"""
typedef block_ints block_bytes, block_sums;
typedef const int8_t *block_four;
#define BLOCK_START(n) ((n) - (block_ints){0})
#define BLOCK_LOAD(p) (*(const block_ints *)(p))
#define BLOCK_FOUR(p) ((const int8_t *)(p))
#define BLOCK_LOW(v) ((v) & 0x0f0f0f0f)
#define BLOCK_HIGH(v) (((v) >> 4) & 0x0f0f0f0f)
#define BLOCK_BYTE(u, i) (((u) >> 8 * (i)) & 255)
#define BLOCK_DOT(c, u, s) \
  c += BLOCK_BYTE(u, 0) * (s)[0] + BLOCK_BYTE(u, 1) * (s)[1] + BLOCK_BYTE(u, 2) * (s)[2] + BLOCK_BYTE(u, 3) * (s)[3]
""".strip()


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
