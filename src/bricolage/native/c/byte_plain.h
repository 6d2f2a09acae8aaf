typedef const uint8_t *byte_pointer;
static inline byte_sums plain_dot(byte_sums c, const uint8_t *a, const uint8_t *b) {
  const int8_t *w = (const int8_t *)b;
  for (long i = 0; i < (long)(sizeof c / 4); i++)
    c[i] += a[0] * w[4 * i] + a[1] * w[4 * i + 1] + a[2] * w[4 * i + 2] + a[3] * w[4 * i + 3];
  return c;
}
