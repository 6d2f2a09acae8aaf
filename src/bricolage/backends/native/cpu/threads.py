"""C of the threads that run a region: a team that waits for work, spinning shortly, then sleeping.

The regions of a process share a team. With one each, the helper that still spins for the last region would hold the processor that
the helper of the next one needs. Callers from several threads take turns.
"""

THREADS = r"""
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct team;
typedef void (*job)(void *, long tid, long threads, struct team *);

struct team {
  long threads, spins;
  _Atomic long started;  /* number of the current run */
  _Atomic long running;  /* helpers that have not finished it */
  _Atomic long waiting;  /* threads at the barrier */
  _Atomic long phase;    /* barriers passed */
  job what;
  void *with;
  int stop;
  int home;              /* processor that the caller was last seen on */
  unsigned floats;       /* how the caller treats subnormals and rounds */
  _Atomic pid_t owner;   /* process that it was started in, or is being started in */
  _Atomic pid_t ready;   /* process that it has been started in */
  pthread_mutex_t turn;  /* whoever runs holds it */
  pthread_mutex_t lock;
  pthread_cond_t wake;
  pthread_t *helpers;
};

struct seat { struct team *team; long tid; };

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* The processor's mode for floats: a helper has that of its caller, not that of whoever happened to start it. */
#if defined(__x86_64__)
static inline unsigned floats_mode(void) { return __builtin_ia32_stmxcsr() & ~0x3fu; }
static inline void floats_use(unsigned mode) { if (mode != floats_mode()) __builtin_ia32_ldmxcsr(mode); }
#else
static inline unsigned floats_mode(void) { return 0; }
static inline void floats_use(unsigned mode) { (void)mode; }
#endif

/* All threads of a run meet here. The waiting is short, but if a core has been taken away the thread gives way. It is
   called, since compilers take long over its loops where a long recurrence has them a thousand times. */
static __attribute__((noinline)) void barrier(struct team *team) {
  if (team->threads == 1) return;
  long phase = atomic_load_explicit(&team->phase, memory_order_relaxed);
  if (atomic_fetch_add_explicit(&team->waiting, 1, memory_order_acq_rel) == team->threads - 1) {
    atomic_store_explicit(&team->waiting, 0, memory_order_relaxed);
    atomic_store_explicit(&team->phase, phase + 1, memory_order_release);
    return;
  }
  for (long n = 0; atomic_load_explicit(&team->phase, memory_order_acquire) == phase; n++) {
    if (n < 20000) pause_briefly(); else sched_yield();
  }
}

static void *helper(void *given) {
  struct seat seat = *(struct seat *)given;
  struct team *team = seat.team;
  free(given);
  long seen = 0;
  for (;;) {
    long n = 0;
    while (atomic_load_explicit(&team->started, memory_order_acquire) == seen && n < team->spins) { pause_briefly(); n++; }
    if (atomic_load_explicit(&team->started, memory_order_acquire) == seen) {
      pthread_mutex_lock(&team->lock);
      while (atomic_load_explicit(&team->started, memory_order_acquire) == seen) pthread_cond_wait(&team->wake, &team->lock);
      pthread_mutex_unlock(&team->lock);
    }
    seen = atomic_load_explicit(&team->started, memory_order_acquire);
    if (team->stop) return NULL;
    floats_use(team->floats);
    team->what(team->with, seat.tid, team->threads, team);
    atomic_fetch_sub_explicit(&team->running, 1, memory_order_release);
  }
}

/* Keeps the helpers off the caller's processor. Left to itself the system often wakes a helper right behind the thread
   that waits for it, and needs some 10 ms to notice: for the first calls, and again after every pause. */
static void team_settle(struct team *team) {
#ifdef __linux__
  int home = sched_getcpu();
  if (home == team->home || home < 0) return;
  team->home = home;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) || CPU_COUNT(&allowed) < team->threads) return;
  long everybody = CPU_COUNT(&allowed) == team->threads;
  int next = home;
  for (long i = 1; i < team->threads; i++) {
    cpu_set_t mine = allowed;
    if (everybody) {  /* a processor each; where there are more, the system knows better which of them share a core */
      do next = (next + 1) % CPU_SETSIZE; while (!CPU_ISSET(next, &allowed));
      CPU_ZERO(&mine);
      CPU_SET(next, &mine);
    }
    CPU_CLR(home, &mine);
    pthread_setaffinity_np(team->helpers[i], sizeof mine, &mine);
  }
#endif
}

static void team_start(struct team *team) {
  team->home = -1;
  atomic_store(&team->started, 0);
  atomic_store(&team->running, 0);
  atomic_store(&team->waiting, 0);
  pthread_mutex_init(&team->turn, NULL);
  pthread_mutex_init(&team->lock, NULL);
  pthread_cond_init(&team->wake, NULL);
  long made = 1;
  for (; made < team->threads; made++) {
    struct seat *seat = malloc(sizeof *seat);
    if (!seat) break;
    seat->team = team;
    seat->tid = made;
    if (pthread_create(&team->helpers[made], NULL, helper, seat)) { free(seat); break; }
  }
  team->threads = made;  /* fewer where the system gives no more: the work is shared by those there are */
}

/* A fork leaves the helpers behind: the first caller in the new process starts them again, others wait for it. */
static void team_here(struct team *team) {
  pid_t here = getpid(), owner = atomic_load(&team->owner);
  if (owner != here && atomic_compare_exchange_strong(&team->owner, &owner, here)) {
    team_start(team);
    atomic_store(&team->ready, here);
  }
  while (atomic_load(&team->ready) != here) sched_yield();
}

static struct team *team_make(long threads, long spins) {
  struct team *team = calloc(1, sizeof *team);
  if (!team) return NULL;
  team->helpers = calloc(threads, sizeof *team->helpers);
  if (!team->helpers) { free(team); return NULL; }
  team->threads = threads;
  team->spins = spins;
  team_here(team);
  return team;
}

static void team_wake(struct team *team) {
  pthread_mutex_lock(&team->lock);
  atomic_fetch_add_explicit(&team->started, 1, memory_order_release);
  pthread_cond_broadcast(&team->wake);
  pthread_mutex_unlock(&team->lock);
}

static void team_run(struct team *team, job what, void *with) {
  if (team->threads == 1) { what(with, 0, 1, team); return; }
  team_here(team);
  pthread_mutex_lock(&team->turn);
  team_settle(team);
  team->what = what;
  team->floats = floats_mode();
  team->with = with;
  atomic_store_explicit(&team->running, team->threads - 1, memory_order_relaxed);
  team_wake(team);
  what(with, 0, team->threads, team);
  for (long n = 0; atomic_load_explicit(&team->running, memory_order_acquire); n++) {
    if (n < 20000) pause_briefly(); else sched_yield();
  }
  pthread_mutex_unlock(&team->turn);
}

static void team_free(struct team *team) {
  if (!team) return;
  if (team->threads > 1 && atomic_load(&team->ready) == getpid()) {
    team->stop = 1;
    team_wake(team);
    for (long i = 1; i < team->threads; i++) pthread_join(team->helpers[i], NULL);
  }
  free(team->helpers);
  free(team);
}
"""
