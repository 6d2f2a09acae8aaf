"""Where the team's helpers run: off the caller's processor, on it while they stand still and the caller waits for them, off it
again at once, and within the caller's affinity mask. Driven from C; no test needs a quiet machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from tests.native.cpu.test_threads import built, run

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or len(os.sched_getaffinity(0)) < 2, reason="needs Linux and two processors"
)

_DISTURBED = 77
_SHARED = r"""
static struct team *team;
static cpu_set_t everywhere;                /* the caller's mask */
static _Atomic int entered, outcome;
static const int64_t LONG = 20000000000LL;  /* ns after which nothing is going to happen any more */

static void hold(void);    /* what the helper does with its piece */
static void arrive(void);  /* what the caller does meanwhile, before it waits */

/* Two pieces, one for each thread. */
static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  if (at->tid) {
    if (take(at, 2) < 0) return;
    atomic_store(&entered, 1);
    hold();
  } else {
    while (!atomic_load(&entered)) usleep(10);
    arrive();
  }
  while (take(at, 2) >= 0) { }
  meet(at);
}

/* What a run came to, as the helper sees it. */
static int shared(void) {
  const struct run run = { work, { 0 }, 2, 0, floats_mode() };
  atomic_store(&entered, 0);
  atomic_store(&outcome, 0);
  team_run(team, &run);
  return atomic_load(&outcome);
}

/* Whether the caller has lent its processor. */
static int lent(void) {
  pthread_mutex_lock(&team->lock);
  const int found = team->home == -1;
  pthread_mutex_unlock(&team->lock);
  return found;
}

static cpu_set_t mask(void) {
  cpu_set_t found;
  CPU_ZERO(&found);
  pthread_getaffinity_np(team->helpers[1], sizeof found, &found);
  return found;
}

static void only(int processor) {
  cpu_set_t here;
  CPU_ZERO(&here);
  CPU_SET(processor, &here);
  sched_setaffinity(0, sizeof here, &here);
}

static void begin(void) {
  sched_getaffinity(0, sizeof everywhere, &everywhere);
  team = team_make(2);
}
"""
_STALL = """
static int stalls;

/* A piece and no core: nothing is computed until the helper may run wherever the caller may. */
static void hold(void) {
  const int64_t end = clock_ns() + LONG;
  while (stalls && !atomic_load(&outcome) && clock_ns() < end) {
    usleep(200);
    const cpu_set_t now = mask();
    atomic_store(&outcome, lent() && CPU_EQUAL(&now, &everywhere));
  }
}
static void arrive(void) { }

int main(void) {
  begin();
  for (int n = 0; n < 10; n++) {
    stalls = 1;
    if (!shared()) return 1;
    stalls = 0;
    for (int paced = 0; paced < 3; paced++) {  /* nothing of it is left in the calls that follow */
      usleep(2000);
      shared();
      const cpu_set_t now = mask();
      if (lent() || CPU_ISSET(team->home, &now)) return 2;
    }
  }
  team_free(team);
  return 0;
}
"""
_LONG = """
static int64_t computed(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* A piece that takes 2 ms. 1: the helper had its core all the time, and was lent none; 2: it was lent one while it had its own; 0:
   it lost its core. */
static void hold(void) {
  const int64_t start = clock_ns(), begun = computed();
  int undisturbed = 1, given = 0;
  for (int64_t ran = 0; undisturbed && !given && ran < 2000000; ran = computed() - begun) {
    given = lent();
    undisturbed = clock_ns() - start - (computed() - begun) < 40000;
  }
  atomic_store(&outcome, undisturbed ? 1 + given : 0);
}
static void arrive(void) { }

int main(void) {
  begin();
  int found = 0, undisturbed = 0;
  for (int n = 0; n < 300 && undisturbed < 5 && found < 2; n++) undisturbed += (found = shared()) == 1;
  team_free(team);
  return found == 2 ? 1 : undisturbed ? 0 : DISTURBED;
}
"""
_MOVED = """
static _Atomic int there, moved;

/* The helper stays where it is until it is kept off that processor, to which the caller has come: 1. It has nothing to do, as far
   as the caller knows: it is lent nothing. */
static void hold(void) {
  atomic_store(&team->others[1].asleep, 1);
  atomic_store(&there, sched_getcpu());
  const int64_t end = clock_ns() + LONG / 400;
  while (clock_ns() < end && !atomic_load(&outcome)) {
    usleep(50);
    const cpu_set_t now = mask();
    atomic_store(&outcome, atomic_load(&moved) && !CPU_ISSET(atomic_load(&there), &now));
  }
  atomic_store(&team->others[1].asleep, 0);
}
static void arrive(void) {
  while (atomic_load(&there) < 0) usleep(10);
  only(atomic_load(&there));
  sched_setaffinity(0, sizeof everywhere, &everywhere);
  atomic_store(&moved, 1);
}

int main(void) {
  begin();
  int found = 0;
  for (int n = 0; n < 20 && !found; n++) {  /* the system may move the caller back before it waits */
    atomic_store(&there, -1);
    atomic_store(&moved, 0);
    found = shared();
  }
  team_free(team);
  return !found;
}
"""
_MASK = """
static void hold(void) { }
static void arrive(void) { }

int main(void) {
  begin();
  shared();
  const int home = team->home;
  cpu_set_t now;
  only(home);  /* somebody gives the caller fewer processors */
  usleep(RECENT / 1000 + 1000);
  shared();
  now = mask();
  if (CPU_COUNT(&now) != 1 || !CPU_ISSET(home, &now)) return 1;
  sched_setaffinity(0, sizeof everywhere, &everywhere);
  usleep(RECENT / 1000 + 1000);
  shared();
  now = mask();
  if (CPU_ISSET(team->home, &now)) return 2;
  team_free(team);
  return 0;
}
"""
_DENIED = """
static void hold(void) { usleep(3000); }  /* long enough for the caller to look */
static void arrive(void) { }
#ifdef NOWHERE
int NOWHERE(void) { return -1; }
#else
int DENIED(pthread_t thread, size_t size, const cpu_set_t *processors) {
  (void)thread, (void)size, (void)processors;
  return 1;
}
#endif

int main(void) {
  begin();
  for (int n = 0; n < 5; n++) shared();
  const cpu_set_t now = mask();
  team_free(team);
  return !CPU_EQUAL(&now, &everywhere);
}
"""


def _drive(folder: Path, driver: str, *flags: str) -> int:
    return run(built(folder, _SHARED + driver, f"-DDISTURBED={_DISTURBED}", *flags)).returncode


def test_a_helper_without_a_core_is_lent_the_callers_and_nothing_of_it_lasts(tmp_path: Path) -> None:
    assert _drive(tmp_path, _STALL) == 0


def test_a_long_piece_is_no_stall(tmp_path: Path) -> None:
    code = _drive(tmp_path, _LONG)
    if code == _DISTURBED:
        pytest.skip("others took the helper's core in every run")
    assert code == 0


def test_a_caller_that_is_moved_to_a_helper_sends_it_away(tmp_path: Path) -> None:
    assert _drive(tmp_path, _MOVED) == 0


def test_helpers_keep_to_a_mask_that_changes(tmp_path: Path) -> None:
    assert _drive(tmp_path, _MASK) == 0


@pytest.mark.parametrize(
    "flags",
    [["-Dpthread_setaffinity_np=denied", "-DDENIED=denied"], ["-Dsched_getcpu=nowhere", "-DNOWHERE=nowhere"]],
    ids=["no affinity", "no processor"],
)
def test_a_system_that_denies_places_is_left_alone(flags: list[str], tmp_path: Path) -> None:
    assert _drive(tmp_path, _DENIED, *flags) == 0
