#include <stdint.h>
typedef uint16_t narrow_numbers __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t wide_bits __attribute__((vector_size(4 * LANES)));
typedef float wide_numbers __attribute__((vector_size(4 * LANES)));
static inline wide_numbers load_narrow(const uint16_t *p) {
  return (wide_numbers)(__builtin_convertvector(*(const narrow_numbers *)p, wide_bits) << 16);
}
static inline void store_narrow(uint16_t *p, wide_numbers v) {
  const wide_bits bits = (wide_bits)v, size = bits & 0x7fffffff;
  const wide_bits nearest = bits + 0x7fff + ((bits >> 16) & 1);
  const wide_bits none = (wide_bits)(size > 0x7f800000), tiny = (wide_bits)(size < 0x00800000);
  const wide_bits found = (none & (bits | 0x00400000)) | (~none & tiny & (bits & 0x80000000)) | (~none & ~tiny & nearest);
  *(narrow_numbers *)p = __builtin_convertvector(found >> 16, narrow_numbers);
}
static inline void split_narrow(const float *numbers, uint16_t *to, long part, long parts, long n) {
  for (long i = 0; i < n; i += LANES) {
    wide_numbers rest = {0};
    uint16_t narrow[LANES];
    const long some = n - i < LANES ? n - i : LANES;
    __builtin_memcpy(&rest, numbers + i, 4 * some);
    for (long p = 0; p < parts; p++) {
      store_narrow(narrow, rest);
      __builtin_memcpy(to + i + p * part, narrow, 2 * some);
      rest -= load_narrow(narrow);
    }
  }
}
