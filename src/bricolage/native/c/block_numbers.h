#if defined(__AVX512F__) && LANES == 16
/* The integer of 4 bits from bit `shift` on, less 8: a table has them all, and the instruction takes no more bits than that. */
static inline vec block_number4(block_ints w, int shift) {
  const __m512 table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return (vec)_mm512_permutexvar_ps((__m512i)(w >> shift), table);
}
#else
static inline vec block_number4(block_ints w, int shift) { return __builtin_convertvector(((w >> shift) & 15) - 8, vec); }
#endif
static inline vec block_number8(block_ints w, int shift) { return __builtin_convertvector(((w >> shift) & 255) - 128, vec); }
