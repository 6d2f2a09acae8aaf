#include <immintrin.h>
#include <stdint.h>
static inline __m512 load_narrow(const uint16_t *p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline void store_narrow(uint16_t *p, __m512 v) { _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v)); }
/* n numbers as sums of `parts` ones each, which lie `part` apart. */
static inline void split_narrow(const float *numbers, uint16_t *to, long part, long parts, long n) {
  for (long i = 0; i < n; i += 16) {
    const __mmask16 some = n - i < 16 ? (1 << (n - i)) - 1 : 0xffff;
    __m512 rest = _mm512_maskz_loadu_ps(some, numbers + i);
    for (long p = 0; p < parts; p++) {
      const __m256i narrow = (__m256i)_mm512_cvtneps_pbh(rest);
      _mm256_mask_storeu_epi16(to + i + p * part, some, narrow);
      rest -= _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    }
  }
}
