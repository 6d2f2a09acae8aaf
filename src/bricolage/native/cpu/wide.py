"""C of elements that are neither float32 nor signed integers: functions of float64, unsigned quotients, half-precision numbers.

Functions of float64 are those of the C library, which no compiler vectorises: float64 is for the little that networks compute
in it, and for being right.
"""

from __future__ import annotations

from collections.abc import Mapping

_UNARY = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh")
_LIBRARY = (*_UNARY, "erf", "exp", "expm1", "log", "sqrt", "floor", "ceil")

WIDE: Mapping[str, str] = {
    **{name: f"__builtin_{name}({{0}})" for name in _LIBRARY},
    **{name: f"__builtin_{name}({{0}}, {{1}})" for name in ("fmod", "pow")},
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "div": "({0} / {1})",
    "maximum": "({1} <= {0} || {0} != {0} ? {0} : {1})",
    "minimum": "({0} <= {1} || {0} != {0} ? {0} : {1})",
    "neg": "(-{0})",
    "abs": "__builtin_fabs({0})",
    "square": "({0} * {0})",
    "cube": "({0} * {0} * {0})",
    "relu": "({0} < 0 ? 0 : {0})",
    "leaky": "({0} < 0 ? {0} * {p0} : {0})",
    "prelu": "({0} < 0 ? {0} * {1} : {0})",
    "elu": "({0} < 0 ? {p0} * __builtin_expm1({0}) : {0})",
    "clip": "wide_clip({0}, {p0}, {p1})",
    "hardsigmoid": "wide_clamp({p0} * {0} + {p1}, 0.0, 1.0)",
    "hardswish": "({0} * wide_clamp({0} / 6.0 + 0.5, 0.0, 1.0))",
    "reciprocal": "(1.0 / {0})",
    "sigmoid": "(1.0 / (1.0 + __builtin_exp(-{0})))",
    "silu": "({0} / (1.0 + __builtin_exp(-{0})))",
    "softplus": "(({0} < 0 ? 0.0 : {0}) + __builtin_log1p(__builtin_exp(-__builtin_fabs({0}))))",
    "gelu": "(0.5 * {0} * (1.0 + __builtin_erf({0} * 0.70710678118654752)))",
    "gelu_tanh": "(0.5 * {0} * (1.0 + __builtin_tanh(0.79788456080286536 * ({0} + 0.044715 * {0} * {0} * {0}))))",
    "sign": "({0} < 0 ? -1 : {0} > 0 ? 1 : {0})",
    "round": "__builtin_rint({0})",
    "where": "({0} ? {1} : {2})",
    "equal": "({0} == {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
    "narrow_float32": "(float){0}",
    "narrow_float16": "wide_from_half(wide_to_half(wide_to_odd((double){0})))",
    "narrow_bfloat16": "nat_widen(nat_narrow(wide_to_odd((double){0})))",
    **{f"cast_{name}": "({type})wide_int64({0})" for name in ("int8", "int16", "uint8", "uint16", "uint32", "int64")},
    "cast_int32": "wide_int32({0})",
    "cast_uint64": "wide_uint64({0})",
    "to_bool": "({0} != 0)",
    "identity": "{0}",
}
"""Functions of float64 inputs, as in `functions.FUNCTIONS`, and roundings of integers that a float32 does not hold."""

UNSIGNED: Mapping[str, str] = {
    "quotient": "({1} ? {0} / {1} : 0)",
    "remainder": "({1} ? {0} % {1} : 0)",
    "modulo": "({1} ? {0} % {1} : 0)",
    "shift_right": "({1} < 8 * sizeof({type}) ? {0} >> {1} : 0)",
}
"""Functions of unsigned integers that those of signed ones would not give."""

PREFIX = "wide_"
"""Of the functions of `HELPERS`, which are written only into libraries that call them."""

HELPERS = r"""
INLINE double wide_clip(double x, double low, double high) { x = x < low ? low : x; return x > high ? high : x; }
INLINE double wide_clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
INLINE int32_t wide_int32(double x) { return x > -2147483649.0 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }
INLINE int64_t wide_int64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
INLINE uint64_t wide_uint64(double x) {
  return x >= 0x1p63 && x < 0x1p64 ? (uint64_t)(x - 0x1p63) + 0x8000000000000000ULL : (uint64_t)wide_int64(x);
}

/* The float next to zero of the two beside a double, with its last bit set where it is not the double: what is then rounded to
   fewer bits is rounded as if at once (Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). */
INLINE float wide_to_odd(double x) {
  union { float f; uint32_t i; } u = { .f = (float)x };
  const uint32_t below = (__builtin_fabs((double)u.f) > __builtin_fabs(x) ? u.i - 1 : u.i) | 1;
  u.i = (double)u.f != x && x == x ? below : u.i;
  return u.f;
}

/* float16: a sign, 5 bits of exponent, 10 of mantissa. Rounded to the nearest, to the even one between two; from 65520 on infinite.
   What is subnormal is rounded by a sum with 1/2, whose last bit counts as much as theirs. */
INLINE uint16_t wide_to_half(float x) {
  union { float f; uint32_t i; } u = { .f = x }, tiny;
  const uint32_t sign = u.i >> 16 & 0x8000, size = u.i & 0x7fffffff;
  tiny.i = size;
  tiny.f += 0.5f;
  const uint32_t normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13, subnormal = tiny.i - 0x3f000000;
  const uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
  return sign | (size < 0x38800000 ? subnormal : size >= 0x47800000 ? large : normal);
}
INLINE float wide_from_half(uint16_t h) {
  const uint32_t size = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
  union { float f; uint32_t i; } normal, subnormal;
  normal.i = (size << 13) + ((size < 0x7c00 ? 112u : 224u) << 23);
  subnormal.f = (float)(int32_t)size * 0x1p-24f;
  normal.i = sign | (size < 0x400 ? subnormal.i : normal.i);
  return normal.f;
}
"""

RUNS_SUFFIX = "_bytes("
"""Of the calls of the functions of `BYTE_RUNS`, which are written only into libraries that call them: their header takes long."""

BYTE_RUNS = r"""
#if defined(__x86_64__)
#include <immintrin.h>
#endif
/* Runs of bytes as numbers, and back. GCC 12 makes such conversions of vectors one element at a time. */
INLINE void widen_bytes(const uint8_t *restrict from, int32_t *restrict to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm512_storeu_si512(to + i, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + i))));
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_si256((__m256i *)(to + i), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + i))));
#endif
  for (; i < n; i++) to[i] = from[i];
}
INLINE void narrow_bytes(const int32_t *restrict from, uint8_t *restrict to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16)
    _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(_mm512_loadu_si512(from + i)));
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    const __m256i v = _mm256_loadu_si256((const __m256i *)(from + i));
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)(to + i), _mm_packus_epi16(half, half));
  }
#endif
  for (; i < n; i++) to[i] = from[i];
}
/* The same through a table of bytes. */
INLINE void looked_up_bytes(const int32_t *table, const int32_t *restrict from, uint8_t *restrict to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) {
    const __m512i at = _mm512_and_si512(_mm512_loadu_si512(from + i), _mm512_set1_epi32(255));
    _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(_mm512_i32gather_epi32(at, table, 4)));
  }
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8) {
    const __m256i at = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(from + i)), _mm256_set1_epi32(255));
    const __m256i v = _mm256_i32gather_epi32(table, at, 4);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_storel_epi64((__m128i *)(to + i), _mm_packus_epi16(half, half));
  }
#endif
  for (; i < n; i++) to[i] = table[from[i] & 255];
}
/* Floats rounded to the nearest integers, plus a zero point, from 0 to 255. A float that no int32 holds becomes the smallest one,
   hence the bound above, which none of those that are `near` needs. */
#define ROUND_WIDE(p) \
  _mm512_cvtps_epi32(near ? _mm512_loadu_ps(p) : _mm512_min_ps(_mm512_loadu_ps(p), _mm512_set1_ps(512.0f)))
#define ROUND_NARROW(p) \
  _mm256_cvtps_epi32(near ? _mm256_loadu_ps(p) : _mm256_min_ps(_mm256_loadu_ps(p), _mm256_set1_ps(512.0f)))
INLINE void round_bytes(const float *restrict from, uint8_t *restrict to, long n, int zero, int near) {
  long i = 0;
#if defined(__AVX512BW__)
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
  for (; i + 32 <= n; i += 32) {
    const __m512i a = ROUND_WIDE(from + i);
    const __m512i b = ROUND_WIDE(from + i + 16);
    const __m512i words = _mm512_packs_epi32(a, b);
    const __m512i both = zero ? _mm512_adds_epi16(words, _mm512_set1_epi16((short)zero)) : words;
    const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(both, both));
    _mm256_storeu_si256((__m256i *)(to + i), _mm512_castsi512_si256(bytes));
  }
  for (; i + 16 <= n; i += 16) {
    const __m512i a = ROUND_WIDE(from + i);
    const __m512i up = _mm512_max_epi32(_mm512_add_epi32(a, _mm512_set1_epi32(zero)), _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtusepi32_epi8(up));
  }
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
  for (; i + 16 <= n; i += 16) {
    const __m256i a = ROUND_NARROW(from + i);
    const __m256i b = ROUND_NARROW(from + i + 8);
    const __m256i words = _mm256_packs_epi32(a, b);
    const __m256i both = zero ? _mm256_adds_epi16(words, _mm256_set1_epi16((short)zero)) : words;
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(both, both), order);
    _mm_storeu_si128((__m128i *)(to + i), _mm256_castsi256_si128(bytes));
  }
  for (; i + 8 <= n; i += 8) {
    const __m256i a = ROUND_NARROW(from + i);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i up = _mm_adds_epi16(half, _mm_set1_epi16((short)zero));
    _mm_storel_epi64((__m128i *)(to + i), _mm_packus_epi16(up, up));
  }
#endif
  for (; i < n; i++) to[i] = nat_saturate(from[i], zero, 0.0f, 255.0f);
}
#if defined(__AVX512F__) && LANES == 16
INLINE vec load_bytes(const uint8_t *p) {
  return (vec)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
#elif defined(__AVX2__) && LANES == 8
INLINE vec load_bytes(const uint8_t *p) {
  return (vec)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
#else
typedef uint8_t few_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
INLINE vec load_bytes(const uint8_t *p) { return (vec)__builtin_convertvector(*(const few_bytes *)p, vec); }
#endif
"""
