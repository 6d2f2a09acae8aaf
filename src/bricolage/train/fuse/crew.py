"""Several processes, each of which trains some lanes of a group."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from bricolage import telemetry
from bricolage.errors import TrainingWorkerFailed
from bricolage.train.fuse.contestants import Outcome, Told
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.imports import search_path

_READY_S = 300.0
"""Until a worker has imported PyTorch and made its lanes ready."""
_STUCK_S = 120.0
"""Without any answer while it should train."""


class Crew:
    """Lanes divided among processes, which train them one after another, or each its own as one."""

    def __init__(self, sweep: Sweep, names: Sequence[str], processes: int, kind: str) -> None:
        """Starts the processes and makes their lanes ready; `kind` is "serial" or "fused".

        Raises:
            TrainingWorkerFailed: one of them ends, or does not answer.
        """
        self.how = "processes" if kind == "serial" else "fused processes"
        count = min(processes, len(names))
        self._workers: list[_Worker] = []
        environment = {**os.environ, **telemetry.VARIABLES, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = search_path()
        try:
            for _ in range(count):
                self._workers.append(_start(environment))
            for number, worker in enumerate(self._workers):
                self._send(worker, "prepare", sweep, tuple(names[number::count]), kind, 1)
            self._gather(_READY_S)
        except BaseException:
            self.close()
            raise

    def run(self, seconds: float) -> tuple[int, float]:
        """All at once for about so long: their samples, and the time until the last was done.

        Raises:
            TrainingWorkerFailed: one of them ends, or does not answer.
        """
        began = time.perf_counter()
        for worker in self._workers:
            self._send(worker, "run", seconds)
        answers = self._gather(_STUCK_S + seconds)
        samples = sum(count for count, _ in answers)
        rate = sum(count / spent for count, spent in answers if spent > 0)
        return samples, samples / rate if rate > 0 else time.perf_counter() - began

    def finish(self, told: Told) -> Outcome:
        """See `Contestant`.

        Raises:
            TrainingWorkerFailed: one of them ends, or does not answer.
        """
        for worker in self._workers:
            self._send(worker, "finish")
        outcome = Outcome()
        for one in self._gather(_STUCK_S, told):
            outcome.add(one)
        self.close()
        return outcome

    def close(self) -> None:
        """Ends the processes."""
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.pipe.close()
        self._workers = []

    def _send(self, worker: _Worker, name: str, *arguments: object) -> None:
        try:
            worker.pipe.send_bytes(pickle.dumps((name, arguments)))
        except OSError as error:
            raise TrainingWorkerFailed(reason=_end(worker)) from error

    def _gather(self, patience: float, told: Told | None = None) -> list[Any]:
        """One answer of each; reports on the way renew the patience."""
        answers: dict[int, Any] = {}
        numbers = {worker.pipe: number for number, worker in enumerate(self._workers)}
        while len(answers) < len(self._workers):
            waiting = [worker.pipe for number, worker in enumerate(self._workers) if number not in answers]
            ready = wait(waiting, patience)
            if not ready:
                raise TrainingWorkerFailed(reason=f"it has not answered for {patience:.0f} s")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                number = numbers[pipe]
                kind, answer = _read(self._workers[number])
                if kind == "failed":
                    raise TrainingWorkerFailed(reason=answer)
                if kind == "done":
                    answers[number] = answer
                elif told is not None:
                    told(answer)
        return [answers[number] for number in sorted(answers)]


@dataclass(frozen=True)
class _Worker:
    process: subprocess.Popen[bytes]
    pipe: Connection


def _start(environment: dict[str, str]) -> _Worker:
    ours, theirs = Pipe()
    try:
        command = [sys.executable, "-P", "-m", "bricolage.train.fuse.worker", str(theirs.fileno()), str(os.getpid())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_descriptor() else subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for us
        )
    finally:
        theirs.close()
    return _Worker(process, ours)


def _has_descriptor() -> bool:
    """Whether standard error is a file that a process can be given (a test may have replaced it)."""
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def _read(worker: _Worker) -> tuple[str, Any]:
    try:
        kind, answer = pickle.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError, pickle.UnpicklingError) as error:
        raise TrainingWorkerFailed(reason=_end(worker)) from error
    return kind, answer


def _end(worker: _Worker) -> str:
    try:
        code = worker.process.wait(5)
    except subprocess.TimeoutExpired:
        return "it does not respond"
    return f"it ended with signal {-code}" if code < 0 else f"it ended with exit code {code}"
