/* How a thread of the team waits: it spins shortly, and then sleeps until it is woken. */

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb"); /* most cores take yield for nothing, and this for some ten nanoseconds */
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static int64_t clock_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

struct spin {
  uint32_t turns;
  int64_t end;
};

/* Whether to go on spinning. The first turns are too short to look at the clock for. */
static inline int spins(struct spin *spin, int64_t ns) {
  pause_briefly();
  if (++spin->turns % 32) return 1;
  const int64_t now = clock_ns();
  if (!spin->end) spin->end = now + ns;
  return now < spin->end;
}

/* Sleeps until somebody unparks the word; not at all where it is no longer `value`. It may also wake up for nothing. After some
   ns it gives 1; with 0 ns, and on systems without futexes, it sleeps for as long as it takes. */
static int park(struct team *team, _Atomic uint32_t *word, uint32_t value, int64_t ns) {
#ifdef __linux__
  const struct timespec most = {ns / 1000000000, ns % 1000000000};
  (void)team;
  return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ns ? &most : NULL, NULL, 0) && errno == ETIMEDOUT;
#else
  (void)ns;
  pthread_mutex_lock(&team->bed);
  if (atomic_load(word) == value) pthread_cond_wait(&team->dawn, &team->bed);
  pthread_mutex_unlock(&team->bed);
  return 0;
#endif
}

/* Wakes all who sleep for the word, which has been changed. It may be gone by now: it is not read. */
static void unpark(struct team *team, _Atomic uint32_t *word) {
#ifdef __linux__
  (void)team;
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
#else
  (void)word;
  pthread_mutex_lock(&team->bed);
  pthread_cond_broadcast(&team->dawn);
  pthread_mutex_unlock(&team->bed);
#endif
}

/* The processor's mode for floats: a helper has that of its caller, not that of whoever happened to start it. */
#if defined(__x86_64__)
static inline uint32_t floats_mode(void) { return __builtin_ia32_stmxcsr() & ~0x3fu; }
static inline void floats_use(uint32_t mode) {
  if (mode != floats_mode()) __builtin_ia32_ldmxcsr(mode);
}
#elif defined(__aarch64__)
static inline uint32_t floats_mode(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return (uint32_t)mode;
}
static inline void floats_use(uint32_t mode) {
  if (mode != floats_mode()) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}
#else
static inline uint32_t floats_mode(void) { return 0; }
static inline void floats_use(uint32_t mode) { (void)mode; }
#endif
