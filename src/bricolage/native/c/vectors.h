#include <stdint.h>
#include <stddef.h>
/* LANES: float32 elements of a vector. */
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define nat_shuffle(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
typedef int32_t nat_lanes __attribute__((vector_size(4 * LANES)));
#define nat_shuffle(v, ...) __builtin_shuffle(v, (nat_lanes){__VA_ARGS__})
#endif
/* Out of line, the vectors of a loop would end at the call; large libraries exhaust what GCC inlines by itself. */
#define INLINE static inline __attribute__((always_inline))
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE float nat_widen(uint16_t h) {
  union {
    uint32_t i;
    float f;
  } u = {.i = (uint32_t)h << 16};
  return u.f;
}
INLINE uint16_t nat_narrow(float x) { /* to the nearest, to the even one between two; a NaN stays one */
  union {
    float f;
    uint32_t i;
  } u = {.f = x};
  const uint32_t nearest = (u.i + 0x7fff + ((u.i >> 16) & 1)) >> 16, quiet = (u.i >> 16) | 0x40;
  return x != x ? quiet : nearest;
}
INLINE int64_t nat_wrap(int64_t i, int64_t n) {
  i = i < 0 ? i + n : i;
  return i < 0 ? 0 : i >= n ? n - 1 : i;
}
