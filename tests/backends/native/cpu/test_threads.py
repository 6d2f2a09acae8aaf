"""The team of threads as the thread sanitizer sees it: every write that another thread reads lies behind a barrier or a turn."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from bricolage.backends.native.cpu.threads import THREADS

_DRIVER = r"""
enum { CELLS = 512, PHASES = 20, RUNS = 100 };
static long cells[2][CELLS];

/* In each phase a thread reads what others have written in the one before. */
static void work(void *given, long tid, long threads, struct team *team) {
  (void)given;
  for (int phase = 0; phase < PHASES; phase++) {
    const long *from = cells[phase % 2];
    long *to = cells[(phase + 1) % 2];
    for (long i = CELLS * tid / threads; i < CELLS * (tid + 1) / threads; i++) to[i] = from[CELLS - 1 - i] + 1;
    MEET(team);
  }
}

static void *caller(void *team) {
  for (int run = 0; run < RUNS; run++) team_run(team, work, NULL);
  return NULL;
}

int main(void) {
  struct team *team = team_make(THREADS, SPINS);
  pthread_t other;
  pthread_create(&other, NULL, caller, team);  /* two callers take turns */
  caller(team);
  pthread_join(other, NULL);
  team_free(team);
  for (int i = 0; i < CELLS; i++) if (cells[0][i] != 2 * RUNS * PHASES) return 1;
  return 0;
}
"""


def sanitized(folder: Path, **defined: object) -> subprocess.CompletedProcess[str]:
    """Compiles and runs the driver."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("the sanitizer needs gcc or clang")
    source, program = folder / "driver.c", folder / "driver"
    source.write_text(f"#define _GNU_SOURCE\n{THREADS}\n{_DRIVER}")
    flags = [f"-D{name}={value}" for name, value in defined.items()]
    made = subprocess.run(
        [compiler, "-std=gnu11", "-O1", "-g", "-fsanitize=thread", "-pthread", *flags, "-o", program, source],
        capture_output=True,
        text=True,
        check=False,
    )
    if "libtsan" in made.stderr or "cannot find" in made.stderr:
        pytest.skip("the compiler comes without the thread sanitizer")
    assert made.returncode == 0, made.stderr
    # Without a fixed address space, old sanitizers do not start on new kernels.
    fixed = ["setarch", platform.machine(), "-R"] if shutil.which("setarch") else []
    return subprocess.run([*fixed, str(program)], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("spins", [0, 100_000], ids=["sleeping", "spinning"])
def test_no_race(threads: int, spins: int, tmp_path: Path) -> None:
    ran = sanitized(tmp_path, THREADS=threads, SPINS=spins, MEET="barrier")
    assert ran.returncode == 0 and "WARNING" not in ran.stderr, ran.stderr[:3000]


def test_the_sanitizer_would_see_one(tmp_path: Path) -> None:
    ran = sanitized(tmp_path, THREADS=2, SPINS=0, MEET="(void)")
    assert "data race" in ran.stderr
