#if LANES == 8
/* The integer of some bits from bit `shift` on, which lies less its middle: as the highest bits, where it has its sign, it is
   2^(32 - bits) times as large. Rows are as much smaller. All integers take the same mask, which stays in a register: masks of
   their own, and a float's exponent to be taken off again, were loaded for each. */
static inline vec block_number4(block_ints w, int shift) {
  return __builtin_convertvector((w << (28 - shift)) & (int32_t)0xf0000000, vec);
}
static inline vec block_number8(block_ints w, int shift) {
  return __builtin_convertvector((w << (24 - shift)) & (int32_t)0xff000000, vec);
}
#else
/* The integer of some bits from bit `shift` on, less `middle`. Within the bits of a float whose last place is worth 2^-at, it is added
   to 2^(23 - at), which a subtraction takes off with the middle: exact, and a step less than a shift and a conversion. */
static inline vec block_number(block_ints w, int shift, int mask, float middle) {
  const int at = shift & 15;
  const block_ints bits = ((w >> (shift & 16)) & (mask << at)) | ((150 - at) << 23);
  return (vec)bits - ((float)(1 << (23 - at)) + middle);
}
#if defined(__AVX512F__) && LANES == 16
/* A table has all integers of 4 bits, less 8, and the instruction takes no more bits than that. */
static inline vec block_number4(block_ints w, int shift) {
  const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm512_permutexvar_ps((__m512i)(w >> shift), table);
}
#else
static inline vec block_number4(block_ints w, int shift) { return block_number(w, shift, 15, 8.0f); }
#endif
static inline vec block_number8(block_ints w, int shift) { return block_number(w, shift, 255, 128.0f); }
#endif
