/* Where helpers run: off the caller's processor, and on it while the caller sleeps and a helper has work but no core. Nothing that is
   decided outlives the meeting at which it was, so that no state can last. */

/* Keeps the helpers off the caller's processor. Left to itself the system often wakes a helper right behind the thread that waits
   for it, and needs some 10 ms to notice: for the first calls, and again after every pause. Where there are as many processors as
   threads, each helper has one of its own. A mask that is changed from outside is noticed after a while. Where processors cannot be
   asked for, helpers are where the system puts them. Under the lock. */
static void team_place(struct team *team, int64_t now) {
#ifdef __linux__
  const int home = team->places ? sched_getcpu() : -1;
  if (home < 0 || (home == team->home && now - team->placed < RECENT)) return;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return;
  team->placed = now;
  if (home == team->home && CPU_EQUAL(&allowed, &team->allowed)) return;
  team->home = home;
  team->allowed = allowed;
  const int each = CPU_COUNT(&allowed) == (int)team->made;
  int next = home;
  for (uint32_t i = 1; i < team->made; i++) {
    cpu_set_t mine = allowed;
    if (each) { /* where there are more, the system knows better which share a core */
      do next = (next + 1) % CPU_SETSIZE;
      while (!CPU_ISSET(next, &allowed));
      CPU_ZERO(&mine);
      CPU_SET(next, &mine);
    }
    if (CPU_COUNT(&mine) > 1) CPU_CLR(home, &mine);
    pthread_setaffinity_np(team->helpers[i], sizeof mine, &mine);
  }
#else
  (void)team;
  (void)now;
#endif
}

#ifdef __linux__
/* Whether a helper has work to do and no core: it computed for less than half of the `ns` since the caller last looked. A helper
   that computes a long piece has one, and one that sleeps needs none. */
static int stands_still(struct other *other, int64_t ns) {
  struct timespec t;
  const int64_t before = other->ran;
  const int idle = atomic_load(&other->asleep) || clock_gettime(other->clock, &t);
  other->ran = idle ? -1 : t.tv_sec * 1000000000LL + t.tv_nsec;
  return before >= 0 && other->ran >= 0 && other->ran - before < ns / 2;
}

/* The caller sleeps, and lends its processor to the helpers that stand still. Those may have a piece, which all wait for, while
   another process has their processor. It ends with the meeting, when helpers are placed anew. */
static void team_lend(struct team *team, uint32_t threads, int64_t ns) {
  cpu_set_t allowed, here;
  const int home = team->places ? sched_getcpu() : -1, known = home >= 0 && !sched_getaffinity(0, sizeof allowed, &allowed);
  CPU_ZERO(&here);
  if (known) CPU_SET(home, &here);
  for (uint32_t i = 1; i < threads && i < team->made; i++) {
    if (!stands_still(&team->others[i], ns) || !known) continue;
    /* Who waits for a processor is moved at once where it may not stay; where it may, when the system next balances. */
    pthread_setaffinity_np(team->helpers[i], sizeof here, &here);
    pthread_setaffinity_np(team->helpers[i], sizeof allowed, &allowed);
    team->home = -1;
  }
}

/* The caller sleeps until all is done. Before and after, helpers are placed anew if the system has moved the caller to where one of
   them is: it might wake it there. */
static void team_sleep(struct team *team, uint32_t threads, uint64_t goal) {
  pthread_mutex_lock(&team->lock);
  team_place(team, clock_ns());
  for (uint32_t i = 1; i < threads && i < team->made; i++) stands_still(&team->others[i], 0);
  pthread_mutex_unlock(&team->lock);
  for (int64_t ns = LOOK;;) {
    const uint32_t bell = atomic_load(&team->bell);
    if (atomic_load(&team->done) >= goal) break;
    if (!park(team, &team->bell, bell, ns)) continue;
    pthread_mutex_lock(&team->lock);
    team_lend(team, threads, ns);
    pthread_mutex_unlock(&team->lock);
    ns += ns / 2; /* pieces may also be long */
  }
  pthread_mutex_lock(&team->lock);
  team_place(team, clock_ns());
  pthread_mutex_unlock(&team->lock);
}
#endif
