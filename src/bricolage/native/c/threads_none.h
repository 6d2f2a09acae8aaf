/* Where the system has no threads: a region is compiled for one, and its team is the caller alone. */
struct team {
  uint32_t places;
  _Atomic uint32_t holders;
  void *kept; /* blocks, each with a pointer to the next one in front */
};

struct seat {
  struct team *team;
  uint32_t tid;
};

static struct team *team_make(uint32_t most) {
  struct team *team = calloc(1, sizeof *team);
  (void)most;
  if (team) atomic_store(&team->holders, 1);
  return team;
}
static void team_free(struct team *team) {
  while (team->kept) {
    void *block = team->kept;
    team->kept = *(void **)block;
    free(block);
  }
  free(team);
}
static void team_keep(struct team *team, void *block) {
  *(void **)block = team->kept;
  team->kept = block;
}
