/* k numbers as bytes with a sign in blocks, filled up with zeros. Behind each block lie its scale, that times the sum of its
   bytes, and that sum times -middle. A number that is not finite makes the scale NaN, and so all that is computed of the row. */
static __attribute__((noinline)) void pack_block_bytes(const float *restrict x, uint8_t *restrict to, long k, long block,
                                                       int middle) {
  for (long from = 0; from < k; from += block, to += block + 16) {
    const long some = k - from < block ? k - from : block;
    const float *restrict own = x + from;
    int8_t *restrict made = (int8_t *)to;
    int32_t most = 0, sum = 0; /* sizes of floats are in the order of their bits */
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
        const float rounded = own[i] * inverse + 12582912.0f; /* to the nearest, to the even one between two */
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
