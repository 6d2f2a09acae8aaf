/* RING: loops that threads may be apart. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* An end of a region, one of the pointers that a run is given. A helper that is late may read one while those of the next run are
   written. */
typedef char *_Atomic end_pointer;

#if defined(__wasi__)
#include "threads_none.h"
#else
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif

enum {
  WORDS = 5, /* that a job is given */
  MOST_THREADS = 1024,
  PATIENCE = 200000, /* ns that a thread spins at a meeting before it sleeps */
  LINGER = 100000,   /* ns that a helper spins for the next run, where runs follow each other so soon */
  LOOK = 100000,     /* ns that the caller sleeps at a meeting before it looks whether those that it waits for have a core */
  RECENT = 100000000 /* ns for which the caller's affinity mask is taken for what it was */
};

struct seat;
typedef void (*job)(const uintptr_t *with, struct seat *at);

/* What a caller wants done. */
struct run {
  job what;
  uintptr_t with[WORDS];
  uint32_t threads; /* shares that loops are cut into; with fewer threads, others take them */
  uint32_t lingers; /* whether helpers may spin for the next run */
  uint32_t floats;  /* how the caller treats subnormals and rounds */
};

/* A caller in the queue. */
struct turn {
  struct turn *next;
  const struct run *run;
  _Atomic uint32_t posted;
};

/* The pieces that have been taken of a thread's share in the last RING loops: number of the loop (48 bits), from the front (8),
   from the back (8). A number from an earlier loop says that none has been taken yet, so that nobody need clear it. */
struct share {
  _Alignas(64) _Atomic uint64_t taken[RING];
};

/* What the caller knows of a helper. */
struct other {
  _Atomic uint32_t asleep; /* whether it has nothing to do: it sleeps, or has not noticed yet that it is woken */
#ifdef __linux__
  clockid_t clock; /* of the time that it has computed */
  int64_t ran;     /* what that showed when the caller last looked, in ns; -1: it had nothing to do */
#endif
};

struct team {
  struct share shares[MOST_THREADS];
  _Alignas(64) _Atomic uint64_t done;   /* pieces, over all runs */
  _Alignas(64) _Atomic uint32_t parked; /* threads that sleep until a loop is done */
  _Atomic uint32_t bell;                /* rung for them */
  _Alignas(64) _Atomic uint32_t posted; /* twice the number of the current run; odd while it is written down */
  _Atomic uint32_t sleepers;            /* helpers that sleep until it changes */
  _Atomic uint32_t lingers;             /* whether they spin first */
  _Atomic uint32_t stop;
  _Atomic uint64_t told[WORDS + 5]; /* the current run, see `post` */
  uint64_t section, goal;           /* its first loop; pieces that were done before it */
  pthread_mutex_t lock;             /* of what follows, and of posting */
  struct turn *first, *last;
  int64_t closed; /* when the last run ended, in ns */
  uint32_t soon;  /* how many of the last runs came soon after one (0 to 3) */
#ifdef __linux__
  int home;          /* processor of the caller that helpers were last kept off; -1: they are anywhere */
  int64_t placed;    /* when that was last looked at, in ns */
  cpu_set_t allowed; /* processors that the caller might use then */
#endif
  uint32_t most, made; /* threads that there may be, and are, the caller's included */
  uint32_t places;     /* whether it says where helpers run */
  _Atomic uint32_t holders;
  void *kept;          /* blocks that late helpers may read, each with a pointer to the next one in front */
  _Atomic pid_t owner; /* process that it was started in, or is being started in */
  _Atomic pid_t ready; /* process that it has been started in */
  pthread_t helpers[MOST_THREADS];
  struct other others[MOST_THREADS]; /* by number; that of the caller is not used */
#ifndef __linux__
  pthread_mutex_t bed;
  pthread_cond_t dawn;
#endif
};

/* A thread's place in a run. */
struct seat {
  struct team *team;
  uint32_t tid, threads;
  uint64_t section; /* number of the loop that it is at */
  uint64_t goal;    /* pieces that are done when all loops before that are */
  uint64_t mine;    /* pieces done here and not yet told */
};

struct helper {
  struct team *team;
  uint32_t tid, seen;
};

#include "threads_waiting.h"

/* --- sharing a loop ----------------------------------------------------------------------------------------------- */

/* A piece, from 0 to `pieces`, of the loop that the thread is at, which nobody else gets; -1 where there is none left. The thread
   is then at the next loop. Functions stay out of line: compilers take long over a recurrence that has them a thousand times. */
static __attribute__((noinline)) long take(struct seat *at, uint32_t pieces) {
  struct team *team = at->team;
  const uint64_t section = at->section;
  uint32_t owner = at->tid;
  for (uint32_t n = 0; n < at->threads; n++, owner = owner + 1 == at->threads ? 0 : owner + 1) {
    const uint32_t first = pieces * owner / at->threads, length = pieces * (owner + 1) / at->threads - first;
    _Atomic uint64_t *word = &team->shares[owner].taken[section % RING];
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    if (seen >> 16 > section) break; /* the others are further: the loop is done */
    for (;;) {
      const uint32_t fresh = seen >> 16 != section, front = fresh ? 0 : seen >> 8 & 255, back = fresh ? 0 : seen & 255;
      if (front + back >= length || seen >> 16 > section) break;
      const uint64_t next = section << 16 | (n ? front : front + 1) << 8 | (n ? back + 1 : back);
      if (atomic_compare_exchange_weak_explicit(word, &seen, next, memory_order_relaxed, memory_order_relaxed)) {
        at->mine++;
        return n ? first + length - 1 - back : first + front;
      }
    }
  }
  at->section++;
  at->goal += pieces;
  if (at->mine) {
    const uint64_t done = atomic_fetch_add(&team->done, at->mine) + at->mine;
    at->mine = 0;
    if (done >= at->goal && atomic_load(&team->parked)) {
      atomic_fetch_add(&team->bell, 1);
      unpark(team, &team->bell);
    }
  }
  return -1;
}

#include "threads_places.h"

/* Waits until all loops that the thread has gone through are done. It spins for as long as another's piece may take, and then
   sleeps: a machine that is busy takes cores away for some milliseconds, and spinning would only make it take this one next. */
static __attribute__((noinline)) void meet(struct seat *at) {
  struct team *team = at->team;
  const uint64_t goal = at->goal;
  if (atomic_load_explicit(&team->done, memory_order_acquire) >= goal) return;
  struct spin spin = {0};
  do {
    if (atomic_load_explicit(&team->done, memory_order_acquire) >= goal) return;
  } while (spins(&spin, PATIENCE));
  atomic_store(&team->others[at->tid].asleep, 1);
  atomic_fetch_add(&team->parked, 1);
#ifdef __linux__
  if (at->tid == 0) team_sleep(team, at->threads, goal);
#endif
  for (;;) {
    const uint32_t bell = atomic_load(&team->bell);
    if (atomic_load(&team->done) >= goal) break;
    park(team, &team->bell, bell, 0);
  }
  atomic_fetch_sub(&team->parked, 1);
  atomic_store(&team->others[at->tid].asleep, 0);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* Tells the helpers of a run. Under the lock. */
static void post(struct team *team, const struct run *run) {
  const uint32_t number = atomic_load_explicit(&team->posted, memory_order_relaxed);
  atomic_store_explicit(&team->posted, number + 1, memory_order_relaxed);
  const uint64_t told[5] = {(uintptr_t)run->what, run->threads, run->floats, team->section, team->goal};
  for (int i = 0; i < 5; i++) atomic_store_explicit(&team->told[i], told[i], memory_order_release);
  for (int i = 0; i < WORDS; i++) atomic_store_explicit(&team->told[5 + i], run->with[i], memory_order_release);
  atomic_store_explicit(&team->lingers, run->lingers && team->soon > 1, memory_order_relaxed);
  atomic_store(&team->posted, number + 2);
  if (atomic_load(&team->sleepers)) unpark(team, &team->posted);
}

/* The next run's number. */
static uint32_t awaited(struct team *team, uint32_t tid, uint32_t seen) {
  const int64_t ns = atomic_load_explicit(&team->lingers, memory_order_relaxed) ? LINGER : 0;
  struct spin spin = {0};
  uint32_t now;
  do {
    now = atomic_load_explicit(&team->posted, memory_order_acquire);
    if (now != seen && now % 2 == 0) return now;
  } while (spins(&spin, ns));
  atomic_store(&team->others[tid].asleep, 1);
  atomic_fetch_add(&team->sleepers, 1);
  while ((now = atomic_load(&team->posted)) == seen || now % 2) park(team, &team->posted, now, 0);
  atomic_fetch_sub(&team->sleepers, 1);
  atomic_store(&team->others[tid].asleep, 0);
  return now;
}

/* A helper that comes late to a run may find the next one written down meanwhile: it takes what belongs together, or nothing. One
   that is still on its way through a run when that ends takes no piece of it, and nobody waits for it: of the run's memory it
   reads nothing without a piece. */
static void *helper(void *given) {
  struct helper me = *(struct helper *)given;
  struct team *team = me.team;
  free(given);
  atomic_store(&team->others[me.tid].asleep, 0);
  for (;;) {
    const uint32_t number = awaited(team, me.tid, me.seen);
    uint64_t told[WORDS + 5];
    for (int i = 0; i < WORDS + 5; i++) told[i] = atomic_load_explicit(&team->told[i], memory_order_acquire);
    if (atomic_load_explicit(&team->stop, memory_order_relaxed)) return NULL;
    if (atomic_load_explicit(&team->posted, memory_order_relaxed) != number) continue;
    me.seen = number;
    if (me.tid >= told[1]) continue;
    uintptr_t with[WORDS];
    for (int i = 0; i < WORDS; i++) with[i] = told[5 + i];
    struct seat at = {team, me.tid, told[1], told[3], told[4], 0};
    floats_use(told[2]);
    ((job)(uintptr_t)told[0])(with, &at);
    meet(&at); /* the next run begins when this one is done, and not before */
  }
}

/* Starts helpers until there are so many threads, or the system gives no more. They run where their caller may. Under the lock. */
static void team_reach(struct team *team, uint32_t threads) {
  for (; team->made < threads && team->made < team->most; team->made++) {
    struct helper *given = malloc(sizeof *given);
    if (!given) return;
    *given = (struct helper){team, team->made, atomic_load_explicit(&team->posted, memory_order_relaxed)};
    struct other *other = &team->others[team->made];
    atomic_store(&other->asleep, 1);
    if (pthread_create(&team->helpers[team->made], NULL, helper, given)) {
      free(given);
      return;
    }
#ifdef __linux__
    if (pthread_getcpuclockid(team->helpers[team->made], &other->clock)) other->clock = -1; /* which no clock has */
    team->home = -1;
#endif
  }
}

/* A fork leaves the helpers behind, maybe in the middle of a run: the first caller in the new process begins anew, others wait for
   it. */
static void team_here(struct team *team) {
  const pid_t here = getpid();
  pid_t owner = atomic_load(&team->owner);
  if (owner != here && atomic_compare_exchange_strong(&team->owner, &owner, here)) {
    pthread_mutex_init(&team->lock, NULL);
#ifndef __linux__
    pthread_mutex_init(&team->bed, NULL);
    pthread_cond_init(&team->dawn, NULL);
#endif
    atomic_store(&team->parked, 0);
    atomic_store(&team->sleepers, 0);
    atomic_store(&team->posted, 0);
    team->first = team->last = NULL;
    team->section += 1ull << 32; /* beyond what the run that was cut off has taken */
    team->goal = atomic_load(&team->done);
    team->soon = 0;
    team->made = 1;
    atomic_store(&team->ready, here);
  }
  while (atomic_load(&team->ready) != here) sched_yield();
}

/* A team of at most so many threads, however many shares a run has; they are started when a run wants them. */
static struct team *team_make(uint32_t most) {
  struct team *team = NULL;
  if (posix_memalign((void **)&team, 64, sizeof *team)) return NULL;
  memset(team, 0, sizeof *team);
  team->most = most < MOST_THREADS ? most : MOST_THREADS;
  team->places = 1;
  atomic_store(&team->holders, 1);
  team_here(team);
  return team;
}

/* Carries out a run; the calling thread has the first share. */
static void team_run(struct team *team, const struct run *run) {
  team_here(team);
  struct turn me = {NULL, run, 0};
  pthread_mutex_lock(&team->lock);
  const int at_once = !team->first;
  *(at_once ? &team->first : &team->last->next) = &me;
  team->last = &me;
  team_reach(team, run->threads);
  if (at_once) {
    const int64_t now = clock_ns();
    const int soon = now - team->closed < LINGER;
    team->soon = soon ? team->soon + (team->soon < 3) : team->soon - (team->soon > 0);
    team_place(team, now);
    post(team, run);
  }
  pthread_mutex_unlock(&team->lock);
  if (!at_once) {
    while (!atomic_load_explicit(&me.posted, memory_order_acquire)) park(team, &me.posted, 0, 0);
    pthread_mutex_lock(&team->lock);
    team_place(team, clock_ns()); /* it may have woken up where a helper is at its run already */
    pthread_mutex_unlock(&team->lock);
  }
  struct seat at = {team, 0, run->threads, team->section, team->goal, 0};
  run->what(run->with, &at);
  meet(&at);
  pthread_mutex_lock(&team->lock);
  struct turn *next = team->first = me.next;
  team->section = at.section;
  team->goal = at.goal;
  if (next) {
    post(team, next->run);
    atomic_store_explicit(&next->posted, 1, memory_order_release);
  } else {
    team->closed = clock_ns();
  }
  pthread_mutex_unlock(&team->lock);
  if (next) unpark(team, &next->posted);
}

static void team_free(struct team *team) {
  if (!team) return;
  if (atomic_load(&team->ready) == getpid()) {
    atomic_store(&team->stop, 1);
    atomic_fetch_add(&team->posted, 2);
    unpark(team, &team->posted);
    for (uint32_t i = 1; i < team->made; i++) pthread_join(team->helpers[i], NULL);
  }
  while (team->kept) {
    void *block = team->kept;
    team->kept = *(void **)block;
    free(block);
  }
  free(team);
}

/* Frees a block, whose first word is the team's, with the team. */
static void team_keep(struct team *team, void *block) {
  team_here(team);
  pthread_mutex_lock(&team->lock);
  *(void **)block = team->kept;
  team->kept = block;
  pthread_mutex_unlock(&team->lock);
}
#endif
