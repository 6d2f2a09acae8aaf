"""The process that becomes the processes of a team (see `train.team`): it imports what all need, and forks.

    python -m bricolage.train.leader MODULE:FUNCTION MODULE:JOB FOLDER COUNT

On SIGTERM it ends those that still run, and itself. It computes nothing, so that no thread is lost by forking.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bricolage.codec import decode, encode, parse
from bricolage.train.step import load_torch


def main() -> int:
    """Forks, writes how each process ended, and ends with the last of them."""
    work, job = (_named(one) for one in sys.argv[1:3])
    folder, count = Path(sys.argv[3]), int(sys.argv[4])
    load_torch()
    importlib.import_module("torch._dynamo")  # which the first optimiser of each would import
    running: dict[int, int] = {}

    def end(number: int, _: object) -> None:
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        sys.exit(128 + number)

    # Between a fork and its entry no process is told to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for rank in range(count):
        process = os.fork()
        if process == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            _become(folder, rank, job, work)
        running[process] = rank
    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        while running:
            process, status = os.wait()
            _write(folder, f"end{running.pop(process)}", str(os.waitstatus_to_exitcode(status)))
    finally:
        for process in running:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
    return 0


def _become(folder: Path, rank: int, job: Any, work: Callable[[Any, Path], object]) -> None:
    """A process of the team: reads its job, works, writes its answer, and ends without waiting for threads of libraries."""
    try:
        words = os.open(Path(folder, f"words{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(words, 1)
        os.dup2(words, 2)
        found = work(decode(job, parse(Path(folder, f"job{rank}").read_text(encoding="utf-8")), "job"), folder)
        _write(folder, f"answer{rank}", json.dumps(encode(found)))
        code = 0
    except BaseException:  # whatever it is: another process must not go on as the leader
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _named(place: str) -> Any:
    """What a module has under a name."""
    home, _, name = place.partition(":")
    return getattr(importlib.import_module(home), name)


def _write(folder: Path, name: str, text: str) -> None:
    """A file that is there when all of it is."""
    part = Path(folder, f"{name}.part")
    part.write_text(text, encoding="utf-8")
    part.rename(Path(folder, name))


if __name__ == "__main__":
    sys.exit(main())
