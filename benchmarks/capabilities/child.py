"""Trials in child processes: one that crashes or hangs costs its own outcome and nothing else."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait

from benchmarks.capabilities.attempt import Result, attempt_together
from benchmarks.capabilities.trials import Trial
from bricolage.backends import registry
from bricolage.backends.interface import Resources

_FORK = multiprocessing.get_context("fork")  # children share the cases already read; no framework is loaded before
_START_SECONDS = 120.0  # longest import of a framework


def run_all(
    backend: str,
    trials: Sequence[Trial],
    jobs: int,
    limit_s: float,
    report: Callable[[Trial, Result], None],
    batch: int = 1,
) -> None:
    """Runs all trials on a backend, `jobs` at a time, and reports each result as it comes.

    Args:
        limit_s: longest time of one trial in seconds; the first of a child may take two minutes more.
        batch: trials that are compiled together.
    """
    lanes = [_Lane(backend, deque(trials[i::jobs]), batch) for i in range(jobs) if trials[i::jobs]]
    try:
        while lanes:
            wait([lane.connection for lane in lanes], timeout=1.0)
            for lane in lanes:
                lane.advance(limit_s, report)
            lanes = [lane for lane in lanes if lane.pending]
    finally:
        for lane in lanes:
            lane.stop()


class _Lane:
    """One child at a time, and the trials that it still has to run."""

    def __init__(self, backend: str, pending: deque[Trial], batch: int) -> None:
        self._backend = backend
        self.pending = pending
        self._batch = batch
        self._start(careful=batch == 1)

    def _start(self, careful: bool) -> None:
        """`careful`: the next batch is run one by one, since somebody in it brought the last child down."""
        self._careful_left = self._batch if careful else 0
        self.connection, theirs = _FORK.Pipe(duplex=False)
        arguments = (self._backend, list(self.pending), theirs, self._batch, careful)
        self._process = _FORK.Process(target=_child, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._since = time.monotonic() + _START_SECONDS

    def advance(self, limit_s: float, report: Callable[[Trial, Result], None]) -> None:
        """Takes what the child has sent; replaces a child that died or hangs."""
        while self.pending and self.connection.poll():
            try:
                outcome, reason = self.connection.recv()
            except EOFError:
                self._process.join()
                code = self._process.exitcode or 0
                self._give_up(Result("crashes", f"signal {-code}" if code < 0 else f"exit status {code}"), report)
                return
            report(self.pending.popleft(), Result(outcome, reason))
            self._careful_left -= 1
            self._since = time.monotonic()
        if not self.pending:
            self.stop()
        elif time.monotonic() - self._since > limit_s * (1 if self._alone else self._batch):
            self._give_up(Result("times-out", f"over {limit_s:.0f} s"), report)

    def _give_up(self, result: Result, report: Callable[[Trial, Result], None]) -> None:
        self.stop()
        if not self._alone:
            self._start(careful=True)
            return
        report(self.pending.popleft(), result)
        if self.pending:
            self._start(careful=self._careful_left > 1)

    @property
    def _alone(self) -> bool:
        """Whether the trial in flight runs by itself, so that it alone is to blame."""
        return self._batch == 1 or self._careful_left > 0

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _child(name: str, trials: list[Trial], connection: Connection, batch: int, careful: bool) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    backend, resources = registry.get(name), Resources(threads=1)
    os.environ.update(backend.environment(resources))
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, sys.stdout.fileno())
    os.dup2(quiet, sys.stderr.fileno())
    parts = [[trial] for trial in trials[:batch]] if careful else []
    rest = trials[len(parts) :]
    parts += [rest[i : i + batch] for i in range(0, len(rest), batch)]
    for part in parts:
        for result in attempt_together(backend, part, resources):
            connection.send((result.outcome, result.reason))
    connection.close()
    os._exit(0)  # some frameworks crash while they are unloaded, which says nothing about the operators
