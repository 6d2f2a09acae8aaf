"""Cases in worker processes: one that crashes or hangs costs its own outcome and nothing else."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from benchmarks.conformance.contestants import attempt
from bricolage.conformance.attempt import Result
from bricolage.conformance.suite import Case

LIMIT_S = 120.0
"""Longest time of one case; the first of a process imports its frameworks, too."""
_BATCH = 200
"""Cases after which a process is replaced: what frameworks keep of a model does not add up for longer."""
_SPAWN = multiprocessing.get_context("spawn")


class _Worker:
    """A process that runs one case after another on a contestant."""

    def __init__(self, contestant: str) -> None:
        self._contestant = contestant
        self._open()

    def _open(self) -> None:
        self._here, there = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(there, self._contestant), daemon=True)
        self._process.start()
        there.close()
        self._done = 0

    def run(self, case: Case) -> Result:
        if self._done == _BATCH:
            self.close()
            self._open()
        self._done += 1
        try:
            self._here.send(case)
            if self._here.poll(LIMIT_S):
                return self._here.recv()  # type: ignore[no-any-return]
            result = Result("times-out", f"longer than {LIMIT_S:.0f} s")
        except (EOFError, OSError):
            self._process.join(LIMIT_S)
            result = Result("crashes", f"the process ended with {self._process.exitcode}")
        self.close()
        self._open()
        return result

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._here.close()


def run(contestant: str, cases: Sequence[Case], report: Callable[[Case, Result], None]) -> None:
    """Runs all cases on a contestant and reports each result as it comes."""
    worker = _Worker(contestant)
    try:
        for case in cases:
            report(case, worker.run(case))
    finally:
        worker.close()


def _serve(connection: Connection, contestant: str) -> None:
    """The process: cases come, results go, until the other end is closed. What frameworks print is dropped."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            os._exit(0)
        connection.send(attempt(contestant, case))
