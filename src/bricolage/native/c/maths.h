INLINE float nat_bits(int32_t i) {
  union {
    int32_t i;
    float f;
  } u = {.i = i};
  return u.f;
}
INLINE int32_t nat_int(float f) {
  union {
    float f;
    int32_t i;
  } u = {.f = f};
  return u.i;
}
INLINE float nat_abs(float x) { return __builtin_fabsf(x); }
INLINE float nat_sqrt(float x) { return __builtin_sqrtf(x); }
/* Where the bounds cross, the upper one counts. */
INLINE float nat_clip(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
INLINE float nat_clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* Integers divide towards zero. By zero, which C leaves open and processors trap, the quotient and the rest are 0. */
INLINE int64_t nat_quotient(int64_t a, int64_t b) { return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b; }
INLINE int64_t nat_remainder(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
INLINE int64_t nat_modulo(int64_t a, int64_t b) { /* the sign of the divisor */
  int64_t r = nat_remainder(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
/* What no integer holds, NaN too, becomes the smallest one, as the processors' own instruction has it. */
INLINE int32_t nat_int32(float x) { return x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : INT32_MIN; }
INLINE int64_t nat_int64(float x) { return x >= -0x1p63f && x < 0x1p63f ? (int64_t)x : INT64_MIN; }

/* x / scale with the reciprocal of the scale: a quotient within an ulp, then one step of Newton's method in fused multiply-adds,
   whose rest is exact, makes it the nearest (Markstein, "Computation of elementary functions on the IBM RISC System/6000
   processor", 1990). Where the first is infinite, so is the second, or there is none. */
INLINE float nat_finite_steps(float x, float scale, float inverse) {
#if defined(__FMA__) || defined(__aarch64__)
  const float q = x * inverse;
  return __builtin_fmaf(__builtin_fmaf(-q, scale, x), inverse, q);
#else
  (void)inverse;
  return x / scale;
#endif
}
INLINE float nat_steps(float x, float scale, float inverse) {
  const float nearest = nat_finite_steps(x, scale, inverse);
  return nearest == nearest ? nearest : x * inverse;
}
/* The nearest integer, the even one between two, plus `zero`, from `low` to `high`: 3 2^22 leaves no room for a fraction, and the
   bits of its sum with x ascend with x wherever that lies. In integers, for GCC 12 makes jumps of bounds in floats that are
   constant, of which it makes no vectors. */
INLINE int32_t nat_saturate(float x, float zero, float low, float high) {
  const int32_t apart = 0x4b400000 - (int32_t)zero, least = apart + (int32_t)low, most = apart + (int32_t)high;
  int32_t i = nat_int(x + 12582912.0f);
  i = i > least ? i : least;
  i = i < most ? i : most;
  return i - apart;
}
/* The nearest integer, as a float, from `low` to `high`, which are integers of less than 2^22. */
INLINE float nat_whole(float x, float low, float high) {
  const int32_t least = 0x4b400000 + (int32_t)low, most = 0x4b400000 + (int32_t)high;
  int32_t i = nat_int(x + 12582912.0f);
  i = i > least ? i : least;
  i = i < most ? i : most;
  return nat_bits(i) - 12582912.0f;
}

/* exp(x - n ln 2) - 1, by a polynomial of degree 6 on [-ln2/2, ln2/2]. */
INLINE float nat_exp_rest(float x, float n) {
  float r = x - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  float p = 1.393373254e-3f;
  p = p * r + 8.363235385e-3f;
  p = p * r + 4.166646418e-2f;
  p = p * r + 1.666657664e-1f;
  p = p * r + 5.000000014e-1f;
  return p * (r * r) + r;
}

/* exp: 2^n times what is left of it; 1 ulp. The power of two is applied in two steps, so that
   results may be subnormal; outside [-104, 89] it is 0 or infinity. NaN stays NaN. Below, nothing underflows on the way to 0:
   that takes processors some hundred cycles, and masks of attention are full of it. */
INLINE float nat_exp(float x) {
  float c = x < -104.0f ? 0.0f : x > 89.0f ? 89.0f : x;
  float n = __builtin_rintf(c * 1.44269504f);
  float p = nat_exp_rest(c, n) + 1.0f;
  int32_t i = (int32_t)n, half = i >> 1;
  float rest = x < -104.0f ? 0.0f : nat_bits((i - half + 127) << 23);
  return p * nat_bits((half + 127) << 23) * rest;
}

/* exp of what is at most 0, for a softmax: as exp, but 0 where that would be no normal number. Without limits, and with the
   nearest integer by adding a large number, it takes half the instructions. NaN stays NaN. */
INLINE float nat_exp_below(float x) {
  float t = x * 1.44269504f + 12582912.0f, n = t - 12582912.0f;
  float p = nat_exp_rest(x, n) + 1.0f;
  return x < -87.33654f ? 0.0f : p * nat_bits((int32_t)(((uint32_t)nat_int(t) + 127u) << 23));
}

/* exp(x) - 1: as exp, but the one is taken off before the polynomial's sum is rounded; 2 ulp. */
INLINE float nat_expm1(float x) {
  float c = x < -18.0f ? -18.0f : x > 20.0f ? 20.0f : x;
  float n = __builtin_rintf(c * 1.44269504f);
  float p = nat_exp_rest(c, n);
  float s = nat_bits(((int32_t)n + 127) << 23);
  float small = p * s + (s - 1.0f);
  return x > 20.0f ? nat_exp(x) : x != x ? x : small;
}

/* log: exponent and a polynomial on [sqrt(1/2), sqrt(2)] (Cephes logf). Zero gives -infinity, negative NaN. */
INLINE float nat_log(float x) {
  float tiny = x < 1.17549435e-38f ? 8388608.0f : 1.0f;
  int32_t i = nat_int(x * tiny);
  int32_t e = (i - 0x3f3504f3) >> 23; /* so that m lies between the roots of 1/2 and 2 */
  float m = nat_bits(i - (e << 23)) - 1.0f;
  float exponent = (float)e - (x < 1.17549435e-38f ? 23.0f : 0.0f);
  float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z - 2.12194440e-4f * exponent - 0.5f * z;
  float r = m + p + 0.693359375f * exponent;
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x > 3.40282347e38f || x != x ? x : r;
}

INLINE float nat_sigmoid(float x) { return 1.0f / (1.0f + nat_exp(-x)); }

/* tanh: (e - 1) / (e + 1) with e = exp(2x), and an odd polynomial near zero where that would cancel (Cephes tanhf). */
INLINE float nat_tanh(float x) {
  float a = nat_abs(x), z = x * x;
  float e = nat_exp(2.0f * (a > 10.0f ? 10.0f : a));
  float large = 1.0f - 2.0f / (e + 1.0f);
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  float small = x + x * z * p;
  float r = a < 0.625f ? small : x < 0.0f ? -large : large;
  return x != x ? x : r;
}

/* erf: x times a quotient of two polynomials in x^2, fitted for the least relative error (linear programs over Chebyshev nodes,
   with the denominator of the one before as weight); 7 ulp, 1 on average. Beyond 4 it is 1. */
INLINE float nat_erf(float x) {
  float z = x * x;
  float p = 1.915706889121793e-6f;
  p = p * z + 2.7886574389413e-4f;
  p = p * z + 3.8685384206473827e-3f;
  p = p * z + 5.3040578961372375e-2f;
  p = p * z + 1.939690262079239e-1f;
  p = p * z + 1.128379225730896e+0f;
  float q = 3.637734698713757e-5f;
  q = q * z + 1.171833835542202e-3f;
  q = q * z + 1.518273912370205e-2f;
  q = q * z + 1.154191792011261e-1f;
  q = q * z + 5.05233645439148e-1f;
  q = q * z + 1.0f;
  return x > 4.0f ? 1.0f : x < -4.0f ? -1.0f : x * p / q;
}

/* log(1 + exp(x)) without overflow. */
INLINE float nat_softplus(float x) {
  float e = nat_exp(-nat_abs(x));
  float u = 1.0f + e;
  float l = u == 1.0f ? e : nat_log(u) * (e / (u - 1.0f));
  return (x < 0.0f ? 0.0f : x) + l;
}

/* x^y = 2^(y log2 x), in double. log2 is the exponent, and an odd series in (m - 1) / (m + 1); special values as C has them.
   Conditions compare numbers as wide as those that they choose between, so that vectors of them fit. */
INLINE float nat_pow(float x, float y) {
  union {
    double d;
    int64_t i;
  } u = {.d = nat_abs(x)}, v;
  double base = u.d;
  int64_t i = (u.i - 0x3fe6a09e667f3bcdLL) >> 52; /* so that m lies between the roots of 1/2 and 2 */
  u.i -= i << 52;
  v.i = i + 0x4338000000000000LL; /* the exponent as a double */
  double e = v.d - 0x1.8p52;
  double t = (u.d - 1.0) / (u.d + 1.0), z = t * t;
  double l =
      e + 2.8853900817779268 * t *
              (1.0 +
               z * (3.333333333333333e-1 +
                    z * (2e-1 + z * (1.4285714285714285e-1 +
                                     z * (1.1111111111111111e-1 +
                                          z * (9.090909090909091e-2 + z * (7.692307692307693e-2 + z * 6.666666666666667e-2)))))));
  l = base == 0.0 ? -__builtin_inf() : l;
  l = base > 3.4028235e38 ? __builtin_inf() : l;
  double wide = y, w = wide * l;
  w = l == 0.0 ? 0.0 : w;
  w = wide == 0.0 ? 0.0 : w;
  w = w < -160.0 ? -160.0 : w;
  w = w > 130.0 ? 130.0 : w;
  double n = __builtin_rint(w), f = (w - n) * 0.6931471805599453;
  double p =
      1.0 +
      f * (1.0 + f * (0.5 + f * (1.6666666666666666e-1 +
                                 f * (4.1666666666666664e-2 +
                                      f * (8.333333333333333e-3 + f * (1.3888888888888889e-3 +
                                                                       f * (1.984126984126984e-4 + f * 2.48015873015873e-5)))))));
  u.d = n + 0x1.8p52; /* its low bits are n */
  v.i = (u.i + 1023) << 52;
  float r = (float)(p * v.d);
  float half = y * 0.5f, below = __builtin_rintf(half), rest = nat_abs(y) < 16777216.0f ? nat_abs(half - below) : 0.0f;
  r = rest == 0.5f ? __builtin_copysignf(r, x) : r;
  float parts = x > -__builtin_inff() ? nat_abs(y - __builtin_rintf(y)) : 0.0f;
  r = (x < 0.0f ? parts : 0.0f) > 0.0f ? __builtin_nanf("") : r;
  r = x == x ? r : x;
  r = y == y ? r : y;
  r = y == 0.0f ? 1.0f : r;
  return x == 1.0f ? 1.0f : r;
}

/* sin and cos: quarter turns and the rest of one, in double. x is m 2^26j with |m| < 2^49 and, but for j = 0, m a whole number;
   2^26j 2/pi modulo 4 is known in three parts, of which the first two give exact products with m: right for all of float32. */
INLINE double nat_turned(double x, double *quarter) {
  double a = __builtin_fabs(x);
  double scale = 1.0, high = 0x1.45f306p-1, middle = 0x1.b939104p-26, low = 0x1.4a7f09d5f47d4p-54;
  scale = a >= 0x1p49 ? 0x1p-26 : scale, high = a >= 0x1p49 ? 0x1.b9391p+0 : high;
  middle = a >= 0x1p49 ? 0x1.529fc26p-26 : middle, low = a >= 0x1p49 ? 0x1.57d1f534ddc0dp-54 : low;
  scale = a >= 0x1p75 ? 0x1p-52 : scale, high = a >= 0x1p75 ? 0x1.529fc2p+0 : high;
  middle = a >= 0x1p75 ? 0x1.d5f47d4p-26 : middle, low = a >= 0x1p75 ? 0x1.a6ee06db14accp-55 : low;
  scale = a >= 0x1p101 ? 0x1p-78 : scale, high = a >= 0x1p101 ? 0x1.d5f47dp+0 : high;
  middle = a >= 0x1p101 ? 0x1.34ddc0cp-26 : middle, low = a >= 0x1p101 ? 0x1.b6295993c439p-54 : low;
  scale = a >= 0x1p127 ? 0x1p-104 : scale, high = a >= 0x1p127 ? 0x1.34ddcp+0 : high;
  middle = a >= 0x1p127 ? 0x1.b6c52b3p-25 : middle, low = a >= 0x1p127 ? 0x1.3c439041fe514p-56 : low;
  double m = x * scale;
  double whole = m * high, part = m * middle;
  whole = whole - 4.0 * __builtin_rint(whole * 0.25);
  double n = __builtin_rint(whole + part);
  *quarter = n;
  return (((whole - n) + part) + m * low) * 1.5707963267948966;
}

/* A sine of at most an eighth of a turn, or a cosine, by their Taylor series; `quarter` says which, and the sign. */
INLINE double nat_wave(double r, double quarter) {
  double z = r * r;
  double s =
      r + r * z *
              (-1.6666666666666666e-1 +
               z * (8.333333333333333e-3 + z * (-1.984126984126984e-4 + z * (2.7557319223985893e-6 - z * 2.505210838544172e-8))));
  double c = 1.0 + z * (-0.5 + z * (4.1666666666666664e-2 +
                                    z * (-1.3888888888888889e-3 + z * (2.48015873015873e-5 - z * 2.755731922398589e-7))));
  double halves = __builtin_floor(quarter * 0.5);
  double y = quarter - 2.0 * halves == 0.0 ? s : c;
  return halves - 2.0 * __builtin_floor(halves * 0.5) == 0.0 ? y : -y;
}
INLINE float nat_sin(float x) {
  double q, wide = x, r = nat_turned(wide, &q), y = nat_wave(r, q);
  return (float)(__builtin_fabs(wide) < 1e-4 ? wide - wide * wide * wide * 0.16666666666666666 : y);
}
INLINE float nat_cos(float x) {
  double q, r = nat_turned(x, &q);
  return (float)nat_wave(r, q + 1.0);
}
