"""Who has the cores of this machine: a process that times has them alone, those that compile share them.

Processes of bricolage on one machine (workers of a cluster, several decisions side by side) agree on it by two files that they
lock. A process that times first takes the gate, so that none begins to compile any more, and then the cores, when the last one who
compiles is done. Locks end with the process that holds them, however it ends. Only who scales out asks for them (`Pool.sharing`):
a decision by itself sees what others do (`measure.disturbance`).
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def timing() -> Iterator[None]:
    """Within it no other process of this user times or compiles on this machine; waits for those who do."""
    with _hold_lock("gate", fcntl.LOCK_EX), _hold_lock("cores", fcntl.LOCK_EX):
        yield


@contextmanager
def compiling() -> Iterator[None]:
    """Within it no process of this user times on this machine; waits for those that do, and for those that wait to."""
    with _hold_lock("gate", fcntl.LOCK_SH):
        descriptor = _open_lock_file("cores")
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _hold_lock(name: str, how: int) -> Iterator[None]:
    descriptor = _open_lock_file(name)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _open_lock_file(name: str) -> int:
    """Another user's file of that name is no way in: it can only be locked, and links are not followed."""
    path = Path(tempfile.gettempdir()) / f"bricolage-{os.getuid()}-{name}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
