/* KERNELS: how many have their time taken. */
#include <time.h>
static double spent[KERNELS];
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}
#define TIMED(n, call)                                                                                                           \
  {                                                                                                                              \
    const double start = now();                                                                                                  \
    call;                                                                                                                        \
    if (at->team) meet(at);                                                                                                      \
    if (at->tid == 0) spent[n] += now() - start;                                                                                 \
  }
/* Milliseconds that each kernel has taken so far, all runs together. */
double *region_spent(void) { return spent; }
