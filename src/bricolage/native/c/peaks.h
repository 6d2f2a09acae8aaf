#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static void multiply(const uintptr_t *with, struct seat *at) {
  (void)with;
  ELEMENT a[ROWS * DEPTH] __attribute__((aligned(64))), b[DEPTH * WIDE] __attribute__((aligned(64)));
  SUMS tile[PLANES * ROWS * WIDE] __attribute__((aligned(64)));
  memset(a, 0, sizeof a);
  memset(b, 0, sizeof b);
  while (take(at, at->threads) >= 0) { MULTIPLY }
}

static void stream(const uintptr_t *with, struct seat *seat) {
  const float *data = (const float *)with[0];
  const long count = with[1], rounds = with[2], pieces = seat->threads;
  vec a = {0}, b = {0}, c = {0}, d = {0}; /* an array would be stored and loaded for every sum */
  for (long piece; (piece = take(seat, pieces)) >= 0;) {
    const long begin = count * piece / pieces, end = count * (piece + 1) / pieces;
    for (long round = 0; round < rounds; round++) {
      for (const float *at = data + begin; at + 4 * LANES <= data + end; at += 4 * LANES) {
        a += load(at);
        b += load(at + LANES);
        c += load(at + 2 * LANES);
        d += load(at + 3 * LANES);
      }
      __asm__ volatile("" ::: "memory");
    }
  }
  volatile float kept = (a + b + c + d)[0];
  (void)kept;
}

/* Seconds of the fastest of `runs` runs or more, until some time is over: a helper that wakes up late leaves its share of the first
   ones to the caller, and half of the processor looks like all of it. */
static double best(struct team *team, const struct run *run, long runs) {
  double found = 1e9;
  const double least = now() + 0.05;
  for (long n = 0; n < runs || now() < least; n++) {
    const double start = now();
    team_run(team, run);
    const double took = now() - start;
    found = took < found ? took : found;
  }
  return found;
}

/* Seconds of PRODUCTS tiles on each thread, and of reading `bytes` bytes `rounds` times on all of them together; 0 without
   memory. */
void peaks(long threads, long bytes, long rounds, double *found) {
  struct team *team = team_make(threads);
  char *data = NULL;
  found[0] = found[1] = 0;
  if (team && !posix_memalign((void **)&data, 2 << 20, bytes)) {
#ifdef __linux__
    madvise(data, bytes, MADV_HUGEPAGE); /* as numpy asks for its large arrays, in which weights lie */
#endif
    memset(data, 1, bytes); /* of zeros the compiler makes calloc, whose pages are all one page, in a cache */
    const struct run products = {multiply, {0}, threads, 1, floats_mode()};
    const struct run reads = {stream, {(uintptr_t)data, bytes / 4, rounds}, threads, 1, floats_mode()};
    found[0] = best(team, &products, 15);
    found[1] = best(team, &reads, 7);
  }
  free(data);
  team_free(team);
}
