/* k numbers in blocks, filled up with zeros; behind each block a word, and the sum of the numbers. Four numbers are multiplied by one
   power of two, the next four by the other. */
static __attribute__((noinline)) void pack_block_floats(const float *restrict x, uint8_t *restrict to, long k, long block,
                                                        float first, float second) {
  for (long from = 0; from < k; from += block, to += 4 * block + 16) {
    const long some = k - from < block ? k - from : block;
    float *restrict own = (float *)to;
    float sums[4] = {0}; /* of every fourth: in one, each would wait for the last */
    __builtin_memcpy(own, x + from, 4 * some);
    for (long i = some; i < block; i++) own[i] = 0;
    for (long i = 0; i < block; i += 4)
      for (long lane = 0; lane < 4; lane++) sums[lane] += own[i + lane];
    for (long i = 0; i < block; i++) own[i] *= i & 4 ? second : first;
    own[block + 1] = (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }
}
