"""Processes that work on one job together, each of which ends with an answer.

One process, `python -m bricolage.train.leader` (see there), imports PyTorch and becomes all of them by forking: importing takes
seconds. In its folder each job lies as `jobRANK`, and its process writes its answer to `answerRANK`, both JSON; what it prints
goes to `wordsRANK`, and how it ended to `endRANK`. They find each other through the file `store` there. Where one of them fails,
the others are ended at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from bricolage import telemetry
from bricolage.codec import DecodeError, decode, encode, parse
from bricolage.errors import TrainingWorkerFailed
from bricolage.train.imports import search_path
from bricolage.train.step import load_torch

J = TypeVar("J")
A = TypeVar("A")
_PATIENCE_S = 120.0
"""For which processes wait for each other."""
_END_S = 5.0
"""Until a leader that is told to has ended its processes and itself."""


def run_team(
    work: Callable[[J, Path], A],
    jobs: Sequence[J],
    answer: type[A],
    threads: int,
    seconds: float,
    keep: Callable[[Path], object] | None = None,
) -> list[A]:
    """Runs a process for each job.

    Args:
        work: what each does with its job and the folder of all; a function of a module.
        jobs: dataclasses of one type.
        answer: the dataclass that `work` returns.
        threads: of each.
        seconds: after which they are ended.
        keep: given the folder when all have answered, before it is deleted.

    Raises:
        TrainingWorkerFailed: one of them ends otherwise, or does not end.
    """
    environment = {
        **os.environ,
        **telemetry.VARIABLES,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    environment["PYTHONPATH"] = search_path()
    names = [f"{one.__module__}:{one.__qualname__}" for one in (work, type(jobs[0]))]
    with tempfile.TemporaryDirectory(prefix="bricolage-") as name:
        folder = Path(name)
        leader: subprocess.Popen[bytes] | None = None
        try:
            for rank, job in enumerate(jobs):
                Path(folder, f"job{rank}").write_text(json.dumps(encode(job)), encoding="utf-8")
            with Path(folder, "words").open("wb") as words:
                leader = subprocess.Popen(
                    [sys.executable, "-P", "-m", "bricolage.train.leader", *names, name, str(len(jobs))],
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    env=environment,
                    start_new_session=True,  # Ctrl-C in the terminal is for us
                )
            _wait(leader, folder, len(jobs), seconds)
            answers = [
                decode(answer, parse(Path(folder, f"answer{rank}").read_text(encoding="utf-8")), "it")
                for rank in range(len(jobs))
            ]
            if keep is not None:
                keep(folder)
            return answers
        except (DecodeError, OSError) as error:
            raise TrainingWorkerFailed(reason=f"it does not answer ({error})") from error
        finally:
            if leader is not None:
                _end(leader)


def _wait(leader: subprocess.Popen[bytes], folder: Path, count: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        gone = leader.poll()  # before the others' ends are read, which it writes
        codes = [_code(folder, rank) for rank in range(count)]
        # The first that failed says why; those that waited for it say only that it is gone.
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if failed:
            raise TrainingWorkerFailed(reason=_reason(folder, str(failed[0]), codes[failed[0]] or 0))
        if all(code == 0 for code in codes):
            return
        if gone is not None:
            raise TrainingWorkerFailed(reason=_reason(folder, "", gone))
        if time.monotonic() > end:
            raise TrainingWorkerFailed(reason=f"it has not ended after {seconds:.0f} s")
        time.sleep(0.02)


def _code(folder: Path, rank: int) -> int | None:
    """How a process ended: its exit code, or a signal's number below zero; None while it runs."""
    file = Path(folder, f"end{rank}")
    return int(file.read_text(encoding="utf-8")) if file.exists() else None


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Ends it and all that it forked; it ends those that still run when it is told to end."""
    if leader.poll() is None:
        leader.terminate()
        try:
            leader.wait(_END_S)
        except subprocess.TimeoutExpired:
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
    else:
        with contextlib.suppress(ProcessLookupError):  # nobody is left, unless it was killed
            os.killpg(leader.pid, signal.SIGKILL)


def _reason(folder: Path, rank: str, code: int) -> str:
    """`rank` is empty for the leader."""
    words = Path(folder, f"words{rank}").read_text(errors="replace", encoding="utf-8")
    lines = [line for line in words.splitlines() if line.strip()]
    who = f"process {rank}" if rank else "the process that starts the others"
    if code < 0:
        return f"{who} ended with signal {-code}"
    return lines[-1] if lines else f"{who} ended with exit code {code}"


@dataclass(frozen=True)
class Meeting:
    """Where processes of a team are together: `torch.distributed` with a process group, and a store of numbers by name."""

    dist: Any
    store: Any

    def add(self, name: str, number: int) -> int:
        """Adds to a number that is common to all, zero at first; what it is then."""
        return int(self.store.add(name, number))


def meet(folder: Path, rank: int, size: int, threads: int, patience_s: float = _PATIENCE_S) -> Meeting:
    """Joins the others by gloo, with so many threads of its own.

    Raises RuntimeError where they do not come, and later, where one of them is gone.
    """
    torch = load_torch()
    torch.set_num_threads(threads)
    store = torch.distributed.FileStore(str(Path(folder, "store")), size)
    limit = timedelta(seconds=patience_s)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    return Meeting(torch.distributed, store)
