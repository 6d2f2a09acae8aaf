"""C that makes bytes of rows of float32 (`byte_products`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class _Words:
    """What differs between the vectors of two instruction sets."""

    bits: int
    some: str
    """Type of a set of lanes."""
    none: str
    """No lane, as such a set."""
    unordered: str
    """Lanes in which one of {0} and {1} is NaN."""
    either: str
    """Two such sets together."""
    any_of: str
    """Whether there is a lane in {0}."""
    order: str
    """Where runs of four bytes lie that two rounds of packing have put apart."""
    in_order: str
    """{0} in that order."""
    store: str
    """Stores {1} at {0}."""

    @property
    def lanes(self) -> int:
        return self.bits // 32


_WIDE = _Words(
    512,
    "__mmask16",
    none="0",
    unordered="_mm512_cmp_ps_mask({0}, {1}, _CMP_UNORD_Q)",
    either="{0} | {1}",
    any_of="{0} != 0",
    order="_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15)",
    in_order="_mm512_permutexvar_epi32(order, {0})",
    store="_mm512_storeu_si512({0}, {1})",
)
_NARROW = _Words(
    256,
    "__m256",
    none="_mm256_setzero_ps()",
    unordered="_mm256_cmp_ps({0}, {1}, _CMP_UNORD_Q)",
    either="_mm256_or_ps({0}, {1})",
    any_of="_mm256_movemask_ps({0})",
    order="_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)",
    in_order="_mm256_permutevar8x32_epi32({0}, order)",
    store="_mm256_storeu_si256((__m256i *)({0}), {1})",
)


def _ends(words: _Words) -> str:
    """The ends of a row, four vectors at a time: one after another would wait for the one before, four cycles each."""
    vec, mm, lanes = f"__m{words.bits}", f"_mm{words.bits}", words.lanes
    load = [f"const {vec} v{n} = {mm}_loadu_ps(x + i + {n * lanes});" for n in range(4)]
    take = [f"low{n} = {mm}_min_ps(low{n}, v{n}), high{n} = {mm}_max_ps(high{n}, v{n});" for n in range(4)]
    pairs = words.either.format(*(words.unordered.format(f"v{n}", f"v{n + 1}") for n in (0, 2)))
    start = ", ".join(f"low{n} = none, high{n} = none" for n in range(4))
    low, high = (
        f"{mm}_{kind}_ps({mm}_{kind}_ps({name}0, {name}1), {mm}_{kind}_ps({name}2, {name}3))"
        for kind, name in (("min", "low"), ("max", "high"))
    )
    return f"""
  {{
    const {vec} none = {mm}_setzero_ps();
    {vec} {start};
    {words.some} strange = {words.none};
    for (; i + {4 * lanes} <= k; i += {4 * lanes}) {{
      {" ".join(load)}
      {" ".join(take)}
      strange = {words.either.format("strange", pairs)};
    }}
    for (; i + {lanes} <= k; i += {lanes}) {{
      {load[0]}
      {take[0]}
      strange = {words.either.format("strange", words.unordered.format("v0", "v0"))};
    }}
    float l[{lanes}], h[{lanes}];
    {mm}_storeu_ps(l, {low});
    {mm}_storeu_ps(h, {high});
    for (long j = 0; j < {lanes}; j++) {{ low = l[j] < low ? l[j] : low; high = h[j] > high ? h[j] : high; }}
    odd = {words.any_of.format("strange")};
  }}""".strip("\n")


def _emit_byte_rounding(words: _Words) -> str:
    """Bytes of four vectors, which saturating packing keeps from 0 to 255."""
    integer, mm, lanes = f"__m{words.bits}i", f"_mm{words.bits}", words.lanes
    quotients = [
        f"const {integer} q{n} = {mm}_cvtps_epi32({mm}_mul_ps({mm}_loadu_ps(x + i + {n * lanes}), by));"
        for n in range(4)
    ]
    first, second = (f"{mm}_adds_epi16({mm}_packs_epi32(q{n}, q{n + 1}), up)" for n in (0, 2))
    packed = words.in_order.format(f"{mm}_packus_epi16({first}, {second})")
    return f"""
  {{
    const __m{words.bits} by = {mm}_set1_ps(inverse);
    const {integer} up = {mm}_set1_epi16((short)zero), order = {words.order};
    for (; i + {4 * lanes} <= k; i += {4 * lanes}) {{
      {" ".join(quotients)}
      {words.store.format("to + i", packed)};
    }}
  }}""".strip("\n")


_X86_ENDS = f"""
#if defined(__AVX512BW__)
{_ends(_WIDE)}
#elif defined(__AVX2__)
{_ends(_NARROW)}
#endif
""".strip()
_X86_ROUNDING = f"""
#if defined(__AVX512BW__)
{_emit_byte_rounding(_WIDE)}
#elif defined(__AVX2__)
{_emit_byte_rounding(_NARROW)}
#endif
#if defined(__AVX512F__)
  for (; i + 16 <= k; i += 16) {{
    const __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(inverse)));
    const __m512i up = _mm512_max_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(zero)), _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtusepi32_epi8(up));
  }}
#elif defined(__AVX2__)
  for (; i + 8 <= k; i += 8) {{
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse)));
    const __m256i up = _mm256_add_epi32(q, _mm256_set1_epi32(zero));
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
    _mm_storel_epi64((__m128i *)(to + i), _mm_packus_epi16(half, half));
  }}
#endif
""".strip()
_NEON_ENDS = """
  {
    float32x4_t low0 = vdupq_n_f32(0), high0 = low0, low1 = low0, high1 = low0;
    uint32x4_t numbers = vdupq_n_u32(-1);
    for (; i + 8 <= k; i += 8) {
      const float32x4_t v0 = vld1q_f32(x + i), v1 = vld1q_f32(x + i + 4);
      low0 = vminnmq_f32(low0, v0), high0 = vmaxnmq_f32(high0, v0);
      low1 = vminnmq_f32(low1, v1), high1 = vmaxnmq_f32(high1, v1);
      numbers = vandq_u32(numbers, vandq_u32(vceqq_f32(v0, v0), vceqq_f32(v1, v1)));
    }
    low = vminnmvq_f32(vminnmq_f32(low0, low1));
    high = vmaxnmvq_f32(vmaxnmq_f32(high0, high1));
    odd = !vminvq_u32(numbers);
  }
""".strip("\n")


def _neon_rounding(shift: int, *, in_pairs: bool) -> str:
    """Bytes of four vectors, which saturating packing keeps from 0 to 255; stored less `shift`."""
    quotients = [
        f"const int32x4_t q{n} = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + {4 * n}), inverse));" for n in range(4)
    ]
    first, second = (
        f"vqmovun_s16(vqaddq_s16(vcombine_s16(vqmovn_s32(q{n}), vqmovn_s32(q{n + 1})), up))" for n in (0, 2)
    )
    packed = f"vcombine_u8({first}, {second})"
    store = f"vst1q_u8(to + i, {f'veorq_u8({packed}, vdupq_n_u8({shift}))' if shift else packed});"
    if in_pairs:
        store = f"vst1_u8(to + 2 * i, {first}); vst1_u8(to + 2 * i + 16, {second});"
    return f"""
  {{
    const int16x8_t up = vdupq_n_s16((short)zero);
    for (; i + 16 <= k; i += 16) {{
      {" ".join(quotients)}
      {store}
    }}
  }}""".strip("\n")


SPREAD_BYTES = """
/* k bytes of one row of a pair, whose rows have eight bytes in turn; zeros up to `depth`. */
static __attribute__((noinline)) void spread_bytes(const uint8_t *restrict x, uint8_t *restrict to, long k, long depth) {
  long i = 0;
  for (; i + 8 <= k; i += 8) __builtin_memcpy(to + 2 * i, x + i, 8);
  for (; i < depth; i++) to[2 * i - i % 8] = i < k ? x[i] : 0;
}
""".strip()


def pack_bytes(shift: int = 0, *, neon: bool = False, in_pairs: bool = False) -> str:
    """C of a function that makes bytes of a row of float32; x · (1 / scale) may be a step off x / scale at a tie, which is rounding
    as any other. Bytes and the zero point are stored less `shift`, 0 or 128, modulo 256. Of rows in pairs, `to` is where the row
    has its first eight bytes: those of the other row lie between them and the next eight."""
    assert not (in_pairs and shift), "bytes of pairs have no sign"
    ends, rounding = (_NEON_ENDS, _neon_rounding(shift, in_pairs=in_pairs)) if neon else (_X86_ENDS, _X86_ROUNDING)
    byte = "q < 0 ? 0 : q > 255 ? 255 : q"
    at, behind = ("2 * i - i % 8", "2 * depth") if in_pairs else ("i", "depth")
    return f"""
/* To the nearest, to the even one between two; for numbers below 2^22. */
static inline int32_t nearest(float x) {{ const float rounded = x + 12582912.0f; return (int32_t)(rounded - 12582912.0f); }}
/* k numbers as bytes, filled up to `depth`; behind them their scale and zero point. Zero is a byte exactly, so that padding is
   right. A number that is not finite makes the scale NaN, and with it all that is computed of the row. */
static __attribute__((noinline)) void pack_bytes(const float *restrict x, uint8_t *restrict to, long k, long depth) {{
  float low = 0, high = 0;
  long i = 0, odd = 0;
{ends}
  for (; i < k; i++) {{
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    odd |= x[i] != x[i];
  }}
  float scale = high / 255 - low / 255;  /* the difference of the two may be infinite */
  if (odd || !(scale <= 3.4028235e38f)) scale = __builtin_nanf("");
  else if (scale < 1.17549435e-38f) scale = 0;
  const float inverse = scale > 0 ? 1 / scale : 0;
  const int32_t zero = nearest(-low * inverse), stored = zero - {shift};
  i = 0;
{rounding}
  for (; i < k; i++) {{
    const int32_t q = nearest(x[i] * inverse) + zero;
    to[{at}] = {f"({byte}) ^ {shift}" if shift else byte};
  }}
  for (; i < depth; i++) to[{at}] = 0;  /* times a weight of zero */
  __builtin_memcpy(to + {behind}, &scale, 4);
  __builtin_memcpy(to + {behind} + 4, &stored, 4);
}}
""".strip()
