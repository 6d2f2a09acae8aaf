/* What a compiled region offers to the library around it. */
#ifndef BRICOLAGE_PROGRAM
#define BRICOLAGE_PROGRAM
#include <stddef.h>
#include <stdint.h>
struct program {
  uint32_t threads; /* that share it */
  uint64_t arena;   /* bytes of all tensors between its kernels */
  uint64_t own;     /* bytes of scratch memory of each thread, */
  uint64_t shared;  /* and of what they share */
  /* A team of at most so many threads, whose helpers are placed or left alone; it is there until released as often as it was made
     and held. */
  void *(*team_make)(uint32_t most, uint32_t places);
  void (*team_hold)(void *team);
  void (*team_release)(void *team);
  /* Frees a block, whose first word is the team's, when the team's threads have ended: a late one may still read it. */
  void (*team_keep)(void *team, void *block);
  /* One run. `scratch` holds `own` bytes for each thread, then what they share. Helpers spin for the next run where they may linger. */
  void (*run)(void *team, char **io, char *arena, const char *weights, char *scratch, uint32_t lingers);
};
#endif
