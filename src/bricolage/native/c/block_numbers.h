#if LANES == 8
/* The integer of some bits from bit `shift` on of each word at `w`, less its middle. Words are read where its byte is their highest
   one: a mask of the upper half leaves a number with a sign, one of the lower half a number whose middle a subtraction takes off.
   Rows are as much smaller as they are larger. A shift would take what begins multiply-adds, and a mask of its own for each integer
   would be loaded. What lies in front of a panel's integers are its scales, so that it may be read. */
static inline vec block_number4(const uint8_t *w, int shift) {
  const block_ints bits = *(const block_ints *)(w + shift / 8 - 3);
  if (shift & 4) return __builtin_convertvector(bits & (int32_t)0xf0000000, vec);
  return __builtin_convertvector(bits & 0x0f000000, vec) - 0x1p27f;
}
static inline vec block_number8(const uint8_t *w, int shift) {
  return __builtin_convertvector(*(const block_ints *)(w + shift / 8 - 3) & (int32_t)0xff000000, vec);
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
