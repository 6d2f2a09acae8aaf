"""Keeps one process of a job: `python -I -S supervisor.py LOCK GRACE_S COMMAND...`. It runs as a file, without
the package.

- The command starts once LOCK is free: what an earlier attempt left behind has ended then, so that two never write one checkpoint.
- SIGTERM asks the command to save and to end; after GRACE_S seconds all of its processes are killed.
- Whoever started the supervisor may die: the command is asked to save, as by SIGTERM.
- The supervisor may be killed: the command goes with it (on Linux).

It ends with the command's exit code, 128 + the signal's number where a signal ended it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time

LOOK_S = 0.1


def _die_with_parent() -> None:
    """In the command's process, before it is executed."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def main(lock: str, grace_s: float, command: list[str]) -> int:
    """Until the command has ended; its exit code."""
    parent = os.getppid()
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: asked.append(got))
    held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if asked or os.getppid() != parent:
                return 128 + signal.SIGTERM
            time.sleep(LOOK_S)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        print(f"{command[0]} cannot be started: {error}", flush=True)
        return 127
    end = 0.0
    while True:
        try:
            code = child.wait(LOOK_S)
            _signal(child, signal.SIGKILL)  # what it has started itself and left behind
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            pass
        if not end and (asked or os.getppid() != parent):
            end = time.monotonic() + grace_s
            _signal(child, signal.SIGTERM)
        if end and (signal.SIGINT in asked or time.monotonic() > end):
            _signal(child, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
