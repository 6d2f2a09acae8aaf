/* THREADS: that share the region. */

static void work(const uintptr_t *with, struct seat *at) {
  char *scratch = (char *)with[3];
  const size_t own = with[4];
  region((char **)with[0], (char *)with[1], (const char *)with[2], scratch + at->tid * own, scratch + THREADS * own, at);
}

/* A team of at most so many threads. */
void *region_team(long most) { return team_make(most); }
void region_free(void *team) { team_free(team); }
/* Runs the region once; `scratch` holds `own` bytes for each thread, then what they share. Helpers spin for the next run where
   they may linger. */
void region_run(void *team, char **io, char *arena, const char *weights, char *scratch, size_t own, long lingers) {
  struct run run = {
      work, {(uintptr_t)io, (uintptr_t)arena, (uintptr_t)weights, (uintptr_t)scratch, own}, THREADS, lingers, floats_mode()};
  struct seat alone = {0};
  if (THREADS == 1)
    work(run.with, &alone);
  else
    team_run(team, &run);
}
