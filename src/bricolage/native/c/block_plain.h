typedef block_ints block_bytes, block_sums;
typedef const int8_t *block_four;
#define BLOCK_START(n) ((n) - (block_ints){0})
#define BLOCK_LOAD(p) (*(const block_ints *)(p))
#define BLOCK_FOUR(p) ((const int8_t *)(p))
#define BLOCK_LOW(v) ((v) & 0x0f0f0f0f)
#define BLOCK_HIGH(v) (((v) >> 4) & 0x0f0f0f0f)
#define BLOCK_BYTE(u, i) (((u) >> 8 * (i)) & 255)
#define BLOCK_DOT(c, u, s)                                                                                                       \
  c += BLOCK_BYTE(u, 0) * (s)[0] + BLOCK_BYTE(u, 1) * (s)[1] + BLOCK_BYTE(u, 2) * (s)[2] + BLOCK_BYTE(u, 3) * (s)[3]
