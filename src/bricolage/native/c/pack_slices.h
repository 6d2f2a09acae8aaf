/* A row of float32 as slices of 8 bits: integers of 24 or 32 bits in balanced digits of base 256, so that each slice is a byte with
   a sign. The slices lie `part` bytes apart, the most significant one first; behind them is the row's scale. */
#include <stdint.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif
typedef float slice_floats __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t slice_bits __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint8_t slice_bytes __attribute__((vector_size(64), aligned(1), may_alias));

/* To the nearest integer, to the even one between two. */
static inline slice_bits slice_nearest(slice_floats x) {
#if defined(__AVX512F__)
  return (slice_bits)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  union {
    slice_floats x;
    __m256 half[2];
  } from = {.x = x};
  union {
    __m256i half[2];
    slice_bits q;
  } to;
  to.half[0] = _mm256_cvtps_epi32(from.half[0]);
  to.half[1] = _mm256_cvtps_epi32(from.half[1]);
  return to.q;
#else
  slice_bits q;
  for (long i = 0; i < 16; i++) q[i] = (uint32_t)(int32_t)__builtin_rintf(x[i]);
  return q;
#endif
}

/* The largest magnitude of k numbers, as its bits: NaN is larger than infinity, and infinity than any number. */
static inline uint32_t slice_peak(const float *x, long k) {
  uint32_t peak = 0;
  for (long i = 0; i < k; i++) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    bits &= 0x7fffffff;
    peak = bits > peak ? bits : peak;
  }
  return peak;
}

static inline float slice_power(int exponent) {
  const uint32_t bits = (uint32_t)(exponent + 127) << 23;
  float power;
  __builtin_memcpy(&power, &bits, 4);
  return power;
}

/* Numbers of a row times `by` times `more` are its integers. */
struct slice_scale {
  float by, more, back;
};

/* `back` times the most significant slice is about the number. With four slices `by` times `more` is a power of two, which is exact,
   and as accurate as any factor; three slices have no bit to waste, unless so small that the factor would be infinite. The largest
   balanced integers are 127 in each digit; one less is asked for where the product is rounded. */
static inline struct slice_scale slice_scale_of(uint32_t peak, int slices) {
  if (peak >= 0x7f800000) return (struct slice_scale){0, 0, __builtin_nanf("")};
  if (slices == 3 && peak >= 0x0d800000) {
    float largest;
    __builtin_memcpy(&largest, &peak, 4);
    return (struct slice_scale){8355710.0f / largest, 1, largest * (65536.0f / 8355710.0f)};
  }
  int exponent = (int)((peak + 0x010101) >> 23) - 127;
  if (peak < 0x00800000) exponent = peak > 64 ? -117 - __builtin_clz(peak) : -143; /* less, and `back` would be zero */
  const int shift = (slices == 4 ? 30 : 22) - exponent;
  const int back = 8 * (slices - 1) - shift; /* perhaps that of a subnormal */
  return (struct slice_scale){slice_power(shift / 2), slice_power(shift - shift / 2),
                              slice_power(back / 2) * slice_power(back - back / 2)};
}

/* 64 numbers. Bytes of one significance come together in each quarter of a vector, then quarters of one significance in a vector. */
static inline void pack_slices_64(const float *x, int8_t *to, long part, int slices, struct slice_scale scale) {
  const slice_bytes in_quarters = {3,  7,  11, 15, 2,  6,  10, 14, 1,  5,  9,  13, 0,  4,  8,  12, 19, 23, 27, 31, 18, 22,
                                   26, 30, 17, 21, 25, 29, 16, 20, 24, 28, 35, 39, 43, 47, 34, 38, 42, 46, 33, 37, 41, 45,
                                   32, 36, 40, 44, 51, 55, 59, 63, 50, 54, 58, 62, 49, 53, 57, 61, 48, 52, 56, 60};
  const slice_bits upper = {0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29}, lower = upper + 2;
  const slice_bits first = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, second = first + 8;
  const uint32_t half = slices == 4 ? 0x808080 : 0x8080;
  slice_bits v[4];
  for (int n = 0; n < 4; n++) {
    const slice_bits q = slice_nearest(*(const slice_floats *)(x + 16 * n) * scale.by * scale.more);
    const slice_bits digits = ((q + half) ^ half) << (slices == 4 ? 0 : 8);
    v[n] = (slice_bits)__builtin_shuffle((slice_bytes)digits, in_quarters);
  }
  const slice_bits above[2] = {__builtin_shuffle(v[0], v[1], upper), __builtin_shuffle(v[2], v[3], upper)};
  const slice_bits below[2] = {__builtin_shuffle(v[0], v[1], lower), __builtin_shuffle(v[2], v[3], lower)};
  *(slice_bits *)to = __builtin_shuffle(above[0], above[1], first);
  *(slice_bits *)(to + part) = __builtin_shuffle(above[0], above[1], second);
  *(slice_bits *)(to + 2 * part) = __builtin_shuffle(below[0], below[1], first);
  if (slices == 4) *(slice_bits *)(to + 3 * part) = __builtin_shuffle(below[0], below[1], second);
}

/* k numbers with the scale that their largest gives, filled up with zeros. */
static inline void pack_scaled_slices(const float *x, int8_t *to, long k, long part, int slices, struct slice_scale scale) {
  long i = 0;
  for (; i + 64 <= k; i += 64) pack_slices_64(x + i, to + i, part, slices, scale);
  if (i < k) {
    float rest[64] = {0};
    __builtin_memcpy(rest, x + i, 4 * (k - i));
    pack_slices_64(rest, to + i, part, slices, scale);
  }
}

/* A row with the scale of a peak, which is its own or that of more rows. */
static __attribute__((noinline)) void pack_slices4(const float *restrict x, int8_t *restrict to, long k, long part,
                                                   uint32_t peak) {
  const struct slice_scale scale = slice_scale_of(peak, 4);
  pack_scaled_slices(x, to, k, part, 4, scale);
  __builtin_memcpy(to + 4 * part, &scale.back, 4);
}

static __attribute__((noinline)) void pack_slices3(const float *restrict x, int8_t *restrict to, long k, long part,
                                                   uint32_t peak) {
  const struct slice_scale scale = slice_scale_of(peak, 3);
  pack_scaled_slices(x, to, k, part, 3, scale);
  __builtin_memcpy(to + 3 * part, &scale.back, 4);
}
