/* PROGRAM: a name. THREADS: that share the region. ARENA_BYTES, OWN_BYTES, SHARED_BYTES: what it works in. */

static void work(const uintptr_t *with, struct seat *at) {
  char *scratch = (char *)with[3];
  region((end_pointer *)with[0], (char *)with[1], (const char *)with[2], scratch + at->tid * OWN_BYTES,
         scratch + THREADS * OWN_BYTES, at);
}

static void *program_team(uint32_t most, uint32_t places) {
  struct team *team = team_make(most);
  if (team) team->places = places;
  return team;
}
static void program_hold(void *team) { atomic_fetch_add(&((struct team *)team)->holders, 1); }
static void program_release(void *team) {
  if (team && atomic_fetch_sub(&((struct team *)team)->holders, 1) == 1) team_free(team);
}

static void program_keep(void *team, void *block) { team_keep(team, block); }

static void program_run(void *team, char **io, char *arena, const char *weights, char *scratch, uint32_t lingers) {
#if THREADS == 1
  const uintptr_t with[] = {(uintptr_t)io, (uintptr_t)arena, (uintptr_t)weights, (uintptr_t)scratch};
  struct seat alone = {0};
  (void)team, (void)lingers;
  work(with, &alone);
#else
  const struct run run = {
      work, {(uintptr_t)io, (uintptr_t)arena, (uintptr_t)weights, (uintptr_t)scratch}, THREADS, lingers, floats_mode()};
  team_run(team, &run);
#endif
}

const struct program PROGRAM = {THREADS,      ARENA_BYTES,     OWN_BYTES,    SHARED_BYTES, program_team,
                                program_hold, program_release, program_keep, program_run};
