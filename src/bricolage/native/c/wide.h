INLINE double wide_clip(double x, double low, double high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
INLINE double wide_clamp(double x, double low, double high) { return x < low ? low : x > high ? high : x; }
INLINE int32_t wide_int32(double x) { return x > -2147483649.0 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }
INLINE int64_t wide_int64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
INLINE uint64_t wide_uint64(double x) {
  return x >= 0x1p63 && x < 0x1p64 ? (uint64_t)(x - 0x1p63) + 0x8000000000000000ULL : (uint64_t)wide_int64(x);
}

/* The float next to zero of the two beside a double, with its last bit set where it is not the double: what is then rounded to
   fewer bits is rounded as if at once (Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", 2008). */
INLINE float wide_to_odd(double x) {
  union {
    float f;
    uint32_t i;
  } u = {.f = (float)x};
  const uint32_t below = (__builtin_fabs((double)u.f) > __builtin_fabs(x) ? u.i - 1 : u.i) | 1;
  u.i = (double)u.f != x && x == x ? below : u.i;
  return u.f;
}

/* float16: a sign, 5 bits of exponent, 10 of mantissa. Rounded to the nearest, to the even one between two; from 65520 on infinite.
   What is subnormal is rounded by a sum with 1/2, whose last bit counts as much as theirs. */
INLINE uint16_t wide_to_half(float x) {
  union {
    float f;
    uint32_t i;
  } u = {.f = x}, tiny;
  const uint32_t sign = u.i >> 16 & 0x8000, size = u.i & 0x7fffffff;
  tiny.i = size;
  tiny.f += 0.5f;
  const uint32_t normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13, subnormal = tiny.i - 0x3f000000;
  const uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
  return sign | (size < 0x38800000 ? subnormal : size >= 0x47800000 ? large : normal);
}
INLINE float wide_from_half(uint16_t h) {
  const uint32_t size = h & 0x7fff, sign = (uint32_t)(h & 0x8000) << 16;
  union {
    float f;
    uint32_t i;
  } normal, subnormal;
  normal.i = (size << 13) + ((size < 0x7c00 ? 112u : 224u) << 23);
  subnormal.f = (float)(int32_t)size * 0x1p-24f;
  normal.i = sign | (size < 0x400 ? subnormal.i : normal.i);
  return normal.f;
}
