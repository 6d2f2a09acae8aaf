"""The team of threads, driven from C: every piece is done once whoever is late, callers are served in turn, helpers sleep
when there is nothing to do, and the thread sanitizer sees no race."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from bricolage.native.cpu.threads import THREADS

_PATIENCE_S = 120
_CELLS = r"""
enum { CELLS = 512, PHASES = 20, RUNS = 100, PIECES = 7 };
static long cells[2][CELLS];

/* In each phase a thread reads what others have written in the one before. */
static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  for (int phase = 0; phase < PHASES; phase++) {
    const long *from = cells[phase % 2];
    long *to = cells[(phase + 1) % 2];
    for (long piece; (piece = take(at, PIECES)) >= 0;)
      for (long i = CELLS * piece / PIECES; i < CELLS * (piece + 1) / PIECES; i++) to[i] = from[CELLS - 1 - i] + 1;
    MEET(at);
  }
}

static void *caller(void *team) {
  const struct run run = { work, { 0 }, SHARES, LINGERS, floats_mode() };
  for (int n = 0; n < RUNS; n++) team_run(team, &run);
  return NULL;
}

int main(void) {
  struct team *team = team_make(MOST);
  pthread_t other;
  pthread_create(&other, NULL, caller, team);  /* two callers take turns */
  caller(team);
  pthread_join(other, NULL);
  team_free(team);
  for (int i = 0; i < CELLS; i++) if (cells[0][i] != 2 * RUNS * PHASES) return 1;
  return 0;
}
"""
_LATE = r"""
#include <stdio.h>
enum { LOOPS = 30, RUNS = 40, MOST_PIECES = 255 };
static _Atomic int done[LOOPS][MOST_PIECES];
static _Atomic uint32_t dice = SEED;

static uint32_t throw(void) {  /* a linear congruential generator is random enough for delays */
  return (atomic_fetch_add(&dice, 0x9e3779b9u) * 2654435761u) >> 8;
}

static void delay(void) {
  const uint32_t number = throw() % 64;
  if (number == 0) usleep(300);
  else if (number < 8) sched_yield();
}

/* Loops of odd counts in groups of 1 to RING, with threads that are late at any place. with: how many, and of how many pieces. */
static void work(const uintptr_t *with, struct seat *at) {
  const int group = with[0], pieces = with[1];
  for (int loop = 0; loop < LOOPS; loop++) {
    if (loop && loop % group == 0) {
      meet(at);
      for (int i = 0; at->tid == 0 && i < loop; i++)
        for (int p = 0; p < (pieces + i) % MOST_PIECES + 1; p++)
          if (!atomic_load(&done[i][p])) _exit(3);  /* they meet where all is done */
    }
    delay();
    for (long piece; (piece = take(at, (pieces + loop) % MOST_PIECES + 1)) >= 0;) {
      delay();
      atomic_fetch_add(&done[loop][piece], 1);
    }
  }
}

int main(void) {
  struct team *team = team_make(MOST);
  for (int n = 0; n < RUNS; n++) {
    const int group = n % RING + 1, pieces = throw() % (SHARES * 16 < MOST_PIECES ? SHARES * 16 : MOST_PIECES);
    const struct run run = { work, { group, pieces }, SHARES, n % 2, floats_mode() };
    team_run(team, &run);
    for (int loop = 0; loop < LOOPS; loop++)
      for (int p = 0; p < MOST_PIECES; p++)
        if (atomic_exchange(&done[loop][p], 0) != (p < (pieces + loop) % MOST_PIECES + 1)) {
          printf("run %d loop %d piece %d\n", n, loop, p);
          return 1;
        }
  }
  team_free(team);
  return 0;
}
"""
_STUCK = r"""
static _Atomic int entered, release, others;

/* A helper that has taken its piece and lost its core: the caller does all the rest, and only then waits. */
static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  if (at->tid && !atomic_load(&entered)) {
    if (take(at, 64) < 0) return;
    atomic_store(&entered, 1);
    while (!atomic_load(&release)) usleep(100);
  } else while (!atomic_load(&entered)) usleep(100);
  while (take(at, 64) >= 0)
    if (atomic_fetch_add(&others, 1) == 62) atomic_store(&release, 1);  /* the 63 that it does not hold */
}

/* A helper that is not there at all holds nobody: it sleeps before it takes anything until the run is over. */
static _Atomic int over;
static void without(const uintptr_t *with, struct seat *at) {
  (void)with;
  if (at->tid) while (!atomic_load(&over)) usleep(100);
  for (int loop = 0; loop < 20; loop++) { while (take(at, 8) >= 0) { } meet(at); }
}

int main(void) {
  struct team *team = team_make(2);
  const struct run stuck = { work, { 0 }, 2, 0, floats_mode() }, late = { without, { 0 }, 2, 0, floats_mode() };
  team_run(team, &stuck);
  if (others != 63) return 1;
  team_run(team, &late);
  atomic_store(&over, 1);
  for (int n = 0; n < 100; n++) team_run(team, &late);
  team_free(team);
  return 0;
}
"""
_UNEQUAL = r"""
enum { PIECES = 32, TIMES = 4 };
static _Atomic int fast, slow, away;

/* The helper is as slow as a small core: the caller does four pieces in the time of one of its. */
static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  while (take(at, PIECES) >= 0) {
    if (at->tid) {
      const int begun = atomic_fetch_add(&slow, 1) + 1;
      while (atomic_load(&fast) < TIMES * begun && atomic_load(&fast) + atomic_load(&slow) < PIECES) usleep(100);
    } else {
      while (atomic_load(&fast) >= TIMES * atomic_load(&slow) && !atomic_load(&away)) usleep(100);
      atomic_fetch_add(&fast, 1);
    }
  }
  if (at->tid) atomic_store(&away, 1);
  meet(at);
}

int main(void) {
  struct team *team = team_make(2);
  const struct run run = { work, { 0 }, 2, 0, floats_mode() };
  team_run(team, &run);
  team_free(team);
  /* Of five pieces the slow one does one, and the last that it begins. */
  return fast + slow != PIECES || slow < PIECES / (TIMES + 1) || slow > PIECES / (TIMES + 1) + 1;
}
"""
_FAIR = r"""
#include <stdio.h>
enum { CALLERS = 8 };
static int order[CALLERS], count;
static _Atomic int release;
static struct team *team;

/* The first run lasts until all others are in the queue. */
static void work(const uintptr_t *with, struct seat *at) {
  while (take(at, 2) >= 0) while (!atomic_load(&release)) usleep(100);
  meet(at);
  if (at->tid == 0) order[count++] = with[0];
}

static void *caller(void *number) {
  const struct run run = { work, { (uintptr_t)number }, 2, 0, floats_mode() };
  team_run(team, &run);
  return NULL;
}

static int queued(void) {
  int found = 0;
  pthread_mutex_lock(&team->lock);
  for (struct turn *turn = team->first; turn; turn = turn->next) found++;
  pthread_mutex_unlock(&team->lock);
  return found;
}

int main(void) {
  pthread_t callers[CALLERS];
  team = team_make(2);
  for (long n = 0; n < CALLERS; n++) {
    pthread_create(&callers[n], NULL, caller, (void *)n);
    while (queued() < n + 1) usleep(100);
  }
  atomic_store(&release, 1);
  for (int n = 0; n < CALLERS; n++) pthread_join(callers[n], NULL);
  team_free(team);
  for (int n = 0; n < CALLERS; n++) if (order[n] != n) return 1;
  return count != CALLERS;
}
"""
_PARKED = r"""
#include <stdio.h>
#include <string.h>
static _Atomic int tid;

static void work(const uintptr_t *with, struct seat *at) {
  (void)with;
  while (take(at, 2) >= 0) while (!atomic_load(&tid)) if (at->tid) atomic_store(&tid, gettid());
}

/* The state of the helper: S where it sleeps. */
static char state(void) {
  char path[64], text[256] = "";
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  FILE *file = fopen(path, "r");
  if (!file || !fgets(text, sizeof text, file)) return '?';
  fclose(file);
  return strrchr(text, ')')[2];
}

int main(void) {
  struct team *team = team_make(2);
  const struct run run = { work, { 0 }, 2, 1, floats_mode() };
  for (int n = 0; n < 100; n++) team_run(team, &run);  /* so soon after each other that helpers linger */
  for (int n = 0; n < 10000 && state() != 'S'; n++) usleep(1000);
  if (state() != 'S') return 1;
  struct timespec before, after;
  clockid_t clock;
  pthread_getcpuclockid(team->helpers[1], &clock);
  clock_gettime(clock, &before);
  usleep(100000);
  clock_gettime(clock, &after);
  return before.tv_sec != after.tv_sec || before.tv_nsec != after.tv_nsec;  /* not a nanosecond of a core meanwhile */
}
"""


def built(folder: Path, driver: str, *flags: str, **defined: object) -> Path:
    """Compiles a driver of the team."""
    words = [*flags, *(f"-D{name}={value}" for name, value in defined.items())]
    return compiled(folder, f"#define _GNU_SOURCE\n{THREADS}\n{driver}", *words)


def compiled(folder: Path, text: str, *words: str) -> Path:
    """Compiles a program."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("this needs gcc or clang")
    source, program = folder / "driver.c", folder / "driver"
    source.write_text(text, encoding="utf-8")
    made = subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-g", "-pthread", *words, "-o", program, source, "-lm"],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
    )
    if "libtsan" in made.stderr or "cannot find" in made.stderr:
        pytest.skip("the compiler comes without the thread sanitizer")
    assert made.returncode == 0, made.stderr
    return program


def run(program: Path, *, fixed: bool = False) -> subprocess.CompletedProcess[str]:
    # Without a fixed address space, old sanitizers do not start on new kernels.
    before = ["setarch", platform.machine(), "-R"] if fixed and shutil.which("setarch") else []
    return subprocess.run(
        [*before, str(program)], capture_output=True, text=True, check=False, timeout=_PATIENCE_S, encoding="utf-8"
    )


def sanitized(folder: Path, driver: str, *flags: str, **defined: object) -> subprocess.CompletedProcess[str]:
    return run(built(folder, driver, "-fsanitize=thread", *flags, **defined), fixed=True)


@pytest.mark.thinned("lingers")
@pytest.mark.parametrize(("shares", "most"), [(2, 2), (3, 3), (5, 2)])
@pytest.mark.parametrize("lingers", [0, 1], ids=["sleeping", "lingering"])
def test_no_race(shares: int, most: int, lingers: int, tmp_path: Path) -> None:
    ran = sanitized(tmp_path, _CELLS, SHARES=shares, MOST=most, LINGERS=lingers, MEET="meet")
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr[:3000]


def test_no_race_on_systems_without_futexes(tmp_path: Path) -> None:
    ran = sanitized(tmp_path, _CELLS, "-U__linux__", SHARES=3, MOST=3, LINGERS=0, MEET="meet")
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr[:3000]


def test_the_sanitizer_would_see_one(tmp_path: Path) -> None:
    ran = sanitized(tmp_path, _CELLS, SHARES=2, MOST=2, LINGERS=0, MEET="(void)")
    assert "data race" in ran.stderr


@pytest.mark.parametrize(
    ("shares", "most"),
    [(2, 2), (3, 4), (2, 1), *(pytest.param(*one, marks=pytest.mark.slow) for one in ((7, 3), (15, 15)))],
)
def test_every_piece_is_done_once_whoever_is_late(shares: int, most: int, tmp_path: Path) -> None:
    ran = run(built(tmp_path, _LATE, SHARES=shares, MOST=most, SEED=f"{shares * 16 + most}u"))
    assert ran.returncode == 0, ran.stdout


def test_a_late_thread_holds_nobody_but_with_its_piece(tmp_path: Path) -> None:
    assert run(built(tmp_path, _STUCK)).returncode == 0


def test_a_slow_core_does_as_much_less_as_it_is_slower(tmp_path: Path) -> None:
    assert run(built(tmp_path, _UNEQUAL)).returncode == 0


def test_callers_are_served_in_turn(tmp_path: Path) -> None:
    assert run(built(tmp_path, _FAIR)).returncode == 0


@pytest.mark.skipif(platform.system() != "Linux", reason="reads /proc")
def test_helpers_sleep_after_a_call(tmp_path: Path) -> None:
    assert run(built(tmp_path, _PARKED)).returncode == 0
