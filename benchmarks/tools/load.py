"""Neighbours on purpose: other processes that keep this machine busy while something is measured.

    with busy("2-nice19"):
        ...

The kinds (`KINDS`): processes that compute without pause, so many at this niceness ("1-nice0", "2-nice0", "4-nice0",
"1-nice19", "2-nice19"); "memory", one that streams through 256 MB again and again; "bursty", one that computes for
200 ms and sleeps for 300 ms; "quiet", nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

KINDS: tuple[str, ...] = (
    "quiet",
    "1-nice0",
    "2-nice0",
    "4-nice0",
    "1-nice19",
    "2-nice19",
    "memory",
    "bursty",
)
_READY_S = 30.0

_START = """
import os, sys
os.nice(int(sys.argv[1]) - os.nice(0))
"""
_READY = """
print("ready", flush=True)
"""
_COMPUTE = f"""{_START}{_READY}
while True:
    for _ in range(1000000):
        pass
"""
_STREAM = f"""{_START}
import numpy as np
source, target = np.ones(16 << 20), np.empty(16 << 20)  # 128 MB each
target[...] = source
{_READY}
while True:
    np.copyto(target, source)
"""
_BURSTS = f"""{_START}
import time
{_READY}
while True:
    end = time.perf_counter() + 0.2
    while time.perf_counter() < end:
        pass
    time.sleep(0.3)
"""


@contextmanager
def busy(kind: str) -> Iterator[tuple[int, ...]]:
    """Neighbours of that kind as long as the context lasts; gives their process ids. They compute when it begins, and are
    gone when it ends, however it or this process ends.

    Raises:
        ValueError: there is no such kind.
        RuntimeError: a neighbour did not start; only root may start one that is less nice than this process.
    """
    neighbours: list[subprocess.Popen[str]] = []
    try:
        for code, niceness in _programs(kind):
            neighbours.append(_started(code, niceness))
        for neighbour in neighbours:
            assert neighbour.stdout is not None
            if neighbour.stdout.readline() != "ready\n":
                raise RuntimeError(f"a neighbour of kind '{kind}' ended with {neighbour.wait(_READY_S)}")
        yield tuple(neighbour.pid for neighbour in neighbours)
    finally:
        for neighbour in neighbours:
            neighbour.kill()
        for neighbour in neighbours:
            neighbour.communicate()


def _programs(kind: str) -> list[tuple[str, int]]:
    """What runs: source and niceness of each process."""
    if kind not in KINDS:
        raise ValueError(f"there is no load '{kind}'; there are: {', '.join(KINDS)}")
    if kind == "quiet":
        return []
    if kind in ("memory", "bursty"):
        return [(_STREAM if kind == "memory" else _BURSTS, 0)]
    count, _, niceness = kind.partition("-nice")
    return [(_COMPUTE, int(niceness))] * int(count)


def _started(code: str, niceness: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(niceness)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,
        encoding="utf-8",
    )


def _end_with_parent() -> None:
    """Linux ends the neighbour when the process that wanted it dies, however it dies."""
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
