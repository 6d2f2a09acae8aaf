#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
/* Runs of bytes as numbers, and back. GCC 12 makes such conversions of vectors one element at a time. */
INLINE void widen_bytes(const uint8_t *restrict from, int32_t *restrict to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) _mm512_storeu_si512(to + i, _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(from + i))));
#elif defined(__AVX2__)
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_si256((__m256i *)(to + i), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(from + i))));
#endif
  for (; i < n; i++) to[i] = from[i];
}
INLINE void narrow_bytes(const int32_t *restrict from, uint8_t *restrict to, long n) {
  long i = 0;
#if defined(__AVX512F__)
  for (; i + 16 <= n; i += 16) _mm_storeu_si128((__m128i *)(to + i), _mm512_cvtepi32_epi8(_mm512_loadu_si512(from + i)));
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
#define ROUND_WIDE(p) _mm512_cvtps_epi32(near ? _mm512_loadu_ps(p) : _mm512_min_ps(_mm512_loadu_ps(p), _mm512_set1_ps(512.0f)))
#define ROUND_NARROW(p) _mm256_cvtps_epi32(near ? _mm256_loadu_ps(p) : _mm256_min_ps(_mm256_loadu_ps(p), _mm256_set1_ps(512.0f)))
INLINE void round_bytes(const float *restrict from, uint8_t *restrict to, long n, int zero, int near) {
  (void)near;
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
#elif defined(__aarch64__) && LANES == 4
INLINE vec load_bytes(const uint8_t *p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  const uint16x8_t words = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
  return (vec)vcvtq_f32_u32(vmovl_u16(vget_low_u16(words)));
}
#else
typedef uint8_t few_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
INLINE vec load_bytes(const uint8_t *p) { return (vec) __builtin_convertvector(*(const few_bytes *)p, vec); }
#endif
