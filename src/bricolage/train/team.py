"""Processes that work on one job together, each of which ends with an answer.

A process is `python -m MODULE FOLDER RANK`: its job lies in FOLDER as `jobRANK`, and it writes its answer to `answerRANK`, both
JSON. They find each other through the file `store` in that folder. Where one of them fails, the others are ended at once.
"""

from __future__ import annotations

import json
import os
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
from bricolage.train.step import load_torch

J = TypeVar("J")
A = TypeVar("A")
_PATIENCE_S = 120.0
"""For which processes wait for each other."""


def run_team(
    module: str,
    jobs: Sequence[object],
    answer: type[A],
    threads: int,
    seconds: float,
    keep: Callable[[Path], object] | None = None,
) -> list[A]:
    """Runs a process for each job.

    Args:
        module: its name.
        jobs: dataclasses.
        answer: the dataclass that each ends with.
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
    environment["PYTHONPATH"] = os.pathsep.join(one for one in sys.path if one)
    with tempfile.TemporaryDirectory(prefix="bricolage-") as name:
        folder = Path(name)
        team: list[subprocess.Popen[bytes]] = []
        try:
            for rank, job in enumerate(jobs):
                Path(folder, f"job{rank}").write_text(json.dumps(encode(job)))
                with Path(folder, f"words{rank}").open("wb") as words:
                    team.append(
                        subprocess.Popen(
                            [sys.executable, "-P", "-m", module, name, str(rank)],
                            stdin=subprocess.DEVNULL,
                            stdout=words,
                            stderr=words,
                            env=environment,
                            start_new_session=True,  # Ctrl-C in the terminal is for us
                        )
                    )
            _wait(team, folder, seconds)
            answers = [
                decode(answer, parse(Path(folder, f"answer{rank}").read_text()), "it") for rank in range(len(jobs))
            ]
            if keep is not None:
                keep(folder)
            return answers
        except (DecodeError, OSError) as error:
            raise TrainingWorkerFailed(reason=f"it does not answer ({error})") from error
        finally:
            for one in team:
                if one.poll() is None:
                    one.kill()
            for one in team:
                one.wait()


def _wait(team: Sequence[subprocess.Popen[bytes]], folder: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        codes = [one.poll() for one in team]
        # The first that failed says why; those that waited for it say only that it is gone.
        failed = [rank for rank, code in enumerate(codes) if code not in (None, 0)]
        if failed:
            raise TrainingWorkerFailed(reason=_reason(folder, failed[0], codes[failed[0]] or 0))
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > end:
            raise TrainingWorkerFailed(reason=f"it has not ended after {seconds:.0f} s")
        time.sleep(0.02)


def _reason(folder: Path, rank: int, code: int) -> str:
    words = Path(folder, f"words{rank}").read_text(errors="replace")
    lines = [line for line in words.splitlines() if line.strip()]
    if code < 0:
        return f"process {rank} ended with signal {-code}"
    return lines[-1] if lines else f"process {rank} ended with exit code {code}"


def take_part(arguments: Sequence[str], job: type[J], work: Callable[[J, Path], object]) -> None:
    """What a process of a team does: reads its job, works, writes its answer, and ends without waiting for threads of libraries."""
    folder, rank = Path(arguments[0]), int(arguments[1])
    found = work(decode(job, parse(Path(folder, f"job{rank}").read_text()), "job"), folder)
    beside = Path(folder, f"answer{rank}.part")
    beside.write_text(json.dumps(encode(found)))
    beside.rename(Path(folder, f"answer{rank}"))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


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
