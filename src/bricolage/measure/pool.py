"""The parent's side of the workers: starts them, speaks with them, and ends them when they hang or grow too large.

A pool belongs to one thread: Linux ties a worker's life to the thread that started it.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from bricolage.backends.interface import Resources
from bricolage.base import scratch
from bricolage.base.codec import encode
from bricolage.base.undo import Closing
from bricolage.costs.entries import OUTCOMES, Outcome
from bricolage.device import memory
from bricolage.measure import cores
from bricolage.measure.executor import Executor
from bricolage.measure.launch import PROGRAMS, EntryPoint, launch
from bricolage.measure.specs import Regime
from bricolage.measure.worker_loop import Tell, unheard
from bricolage.measure.worker_process import Answer, Pending, WorkerProcess, log_tail

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1
_CALM_TICK_S = 0.5  # while timing: looking at the process costs time of a core
_START_GRACE_S = 30.0  # importing a framework is not the candidate's fault
_CLEAR_LIMIT_S = 30.0
_LOG_LIMIT = 32 << 20
_REASON_LENGTH = 500
_NEAR_LIMIT = 0.8
"""From this part of its limit on, a killed worker is taken to have been killed for its memory."""
_SENT = {-number: number.name for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)}
"""By exit status: signals that are sent from outside, and that no fault of a program raises."""


class Pool(Closing):
    """Worker processes by regime."""

    def __init__(
        self, memory_limit: int | None = None, variables: Mapping[str, str] | None = None, entry: EntryPoint = PROGRAMS
    ) -> None:
        """`memory_limit`: resident bytes of one worker with its children (80 % of what is free now when None).
        `variables`: environment variables for all workers; `entry`: what these do."""
        self._entry = entry
        self.limited = memory_limit is not None
        """Whether the limit is the user's: what exceeds it says nothing of a run without."""
        self.memory_limit = memory_limit if memory_limit is not None else memory.default_limit()
        self._variables = dict(variables or {})
        self._workers: dict[Regime, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._logs = scratch.temporary()
        self._temporary = self._logs / "tmp"  # backends leave files behind there when their worker is ended
        self._temporary.mkdir()
        self._numbers = itertools.count()
        self._exclusive = False
        self.cluster: Executor | None = None
        """Other machines that compile and measure, too; closed with this pool."""
        self.sharing = False
        """Whether other processes of this user's compile and time on this machine: they wait for each other (`measure.cores`), and
        what they compile is looked for in the cache."""
        self._reserve = memory.reserve_bytes()
        self._memory_kills = memory.kills()
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._selector, self._logs, os.getpid())

    def close(self) -> None:
        """Ends all workers. Nothing that they were doing is kept."""
        if self.cluster is not None:
            self.cluster.close()
            self.cluster = None
        self._finalizer()

    def scale_out(self, cluster: Executor) -> None:
        """Others compile and measure, too, until this pool is closed."""
        self.cluster, self.sharing = cluster, True

    def clear(self) -> None:
        """Nothing of the last decision is loaded any more."""
        for worker in list(self._workers.values()):
            if worker.alive and worker.pending is None and worker.loads:
                self.ask(worker, _CLEAR_LIMIT_S, "clear")
        self.recycle()

    # --- workers ----------------------------------------------------------------------------------------------------

    def worker(self, regime: Regime) -> WorkerProcess:
        """The worker of a regime, started now if it does not run."""
        existing = self._workers.get(regime)
        if existing is not None and existing.alive:
            return existing
        worker = self._start(regime)
        self._workers[regime] = worker
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def end(self, regime: Regime) -> None:
        """Ends the worker of a regime, if there is one."""
        worker = self._workers.get(regime)
        if worker is not None and worker.alive:
            self._retire(worker)

    def recycle(self) -> None:
        """Ends idle workers that hold more than half of what they may: some backends never give memory back."""
        for worker in list(self._workers.values()):
            if worker.alive and worker.pending is None and worker.resident() > self.memory_limit // 2:
                _LOG.info("worker of %s holds much memory; it is started afresh", ", ".join(worker.regime.backends))
                self._retire(worker)

    def _start(self, regime: Regime) -> WorkerProcess:
        log = self._logs / f"{next(self._numbers)}.log"
        resources = Resources(regime.threads, regime.device, regime.alone)
        variables = {"TMPDIR": str(self._temporary), **self._variables}
        process = launch(regime.backends, resources, log, variables, entry=self._entry, fresh=regime.fresh)
        worker = WorkerProcess(regime, process, log)
        self._write(worker, encode(regime.device))
        return worker

    def _retire(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker.answers)
        worker.pending = None
        worker.end()
        if self._workers.get(worker.regime) is worker:
            del self._workers[worker.regime]

    # --- commands ---------------------------------------------------------------------------------------------------

    def ask(self, worker: WorkerProcess, limit_s: float, command: str, **facts: object) -> Answer:
        """Sends a command and waits for its answer."""
        self.submit(worker, limit_s, command, tell=unheard, **facts)
        while True:
            for answering, answer in self.wait(_TICK_S):
                if answering is worker:
                    return answer
                raise RuntimeError("ask() while another worker is busy")

    def submit(
        self, worker: WorkerProcess, limit_s: float, command: str, *, tell: Tell = unheard, **facts: object
    ) -> None:
        """Sends a command to an idle worker; `wait` brings the answer. The worker is ended `limit_s` seconds after it began, or
        after what it last told `tell`."""
        if worker.pending is not None:
            raise RuntimeError("the worker is busy")
        worker.resume()
        now = time.monotonic()
        if worker.loads == 0:
            limit_s += _START_GRACE_S
        calm = command == "time" or self._entry != PROGRAMS
        worker.pending = Pending(now, limit_s, _CALM_TICK_S if calm else _TICK_S, now, tell)
        self._write(worker, {"command": command, **facts})

    @staticmethod
    def _write(worker: WorkerProcess, line: object) -> bool:
        """Whether the worker could be told."""
        data = (json.dumps(line) + "\n").encode()
        try:
            while data:
                data = data[worker.commands.write(data) :]
        except BrokenPipeError:
            _LOG.debug("worker %d is gone; its end is seen when its answer is read", worker.process.pid)
            return False
        return True

    def ahead(self, regime: Regime, command: str, **facts: object) -> None:
        """Has the worker of a regime, which is started now if it does not run, carry out a command before those to come, while this
        process goes on. The answer is not read: what comes of it, and whether it ends the worker, shows later."""
        worker = self.worker(regime)
        if worker.pending is None and self._write(worker, {"command": command, **facts}):
            worker.ahead += 1

    def wait(self, timeout_s: float) -> list[tuple[WorkerProcess, Answer]]:
        """Answers that have arrived, waiting at most `timeout_s` for the first. Limits are enforced here.

        A fatal answer (crash, time-out, memory) comes from a worker that has ended.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            wake = min((w.pending.looked + w.pending.tick_s for w in self._busy() if w.pending), default=deadline)
            ready = self._selector.select(max(0.0, min(wake, deadline) - now))
            done = [(w, a) for key, _ in ready if (a := self._read(w := key.data)) is not None]
            if not done:
                done = [(w, a) for w in self._busy() if (a := self._check(w)) is not None]
            if done or time.monotonic() >= deadline:
                return done

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Within it all workers are stopped except the one that carries out a command, so that no spinning or
        background thread takes a core from the one that is timed (Linux; elsewhere idle workers are trusted to be
        quiet)."""
        if self._exclusive:
            yield
            return
        with ExitStack() as stack:
            if self.sharing:
                stack.enter_context(cores.timing())
            if not sys.platform.startswith("linux"):
                yield
                return
            self._exclusive = True
            for worker in self._workers.values():
                if worker.pending is None:
                    worker.pause()
            try:
                yield
            finally:
                self._exclusive = False
                for worker in self._workers.values():
                    worker.resume()

    def compiling(self) -> AbstractContextManager[None]:
        """Within it no other process of this user times on this machine, where others may."""
        return cores.compiling() if self.sharing and not self._exclusive else nullcontext()

    def _busy(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.values() if worker.pending is not None]

    def _read(self, worker: WorkerProcess) -> Answer | None:
        """The answer, once its line is complete; the reason when the worker has died."""
        data: bytes | None = worker.answers.read(1 << 20)
        if data is None:
            return None
        if not data:
            return self._handle_death(worker)
        worker.buffer += data
        while True:
            line, newline, rest = worker.buffer.partition(b"\n")
            if not newline:
                return None
            worker.buffer = rest
            facts = json.loads(line)
            if "told" not in facts and worker.ahead:
                worker.ahead -= 1
            elif "told" not in facts:
                return self._take_answer(worker, facts)
            elif worker.pending is not None:
                worker.pending.started = time.monotonic()
                worker.pending.tell(facts["told"])

    def _take_answer(self, worker: WorkerProcess, facts: dict[str, object]) -> Answer:
        worker.pending = None
        if self._exclusive:
            worker.pause()
        spoken = facts.pop("outcome")
        outcome: Outcome = next(candidate for candidate in OUTCOMES if candidate == spoken)
        fresh = worker.loads == 0
        worker.loads += 1
        return Answer(outcome, str(facts.pop("reason", "")), facts, fresh)

    def _handle_death(self, worker: WorkerProcess) -> Answer | None:
        fresh, busy = worker.loads == 0, worker.pending is not None
        try:
            status = worker.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = -signal.SIGABRT  # it closed its pipe but lives on: as good as dead
        words = log_tail(worker.log)
        self._retire(worker)
        if not busy:
            return None
        if status == -signal.SIGKILL:
            return self._explain_kill(worker, fresh)
        if status in _SENT:
            return Answer("lost", f"its process was ended from outside ({_SENT[status]})", fresh=fresh)
        cause = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Answer(
            "crashed", f"the process ended with {cause}{': ' if words else ''}{words}"[:_REASON_LENGTH], fresh=fresh
        )

    def _explain_kill(self, worker: WorkerProcess, fresh: bool) -> Answer:
        """What a SIGKILL that we did not send means: the candidate's own doing only where memory ran out, by the kernel's
        count of what it killed for that, or by what the process held when it was last looked at."""
        counted, before = memory.kills(), self._memory_kills
        self._memory_kills = counted
        if counted > before:
            return Answer("out-of-memory", "killed by the operating system when memory ran out", fresh=fresh)
        if worker.held > _NEAR_LIMIT * self.memory_limit or worker.least_free < 2 * self._reserve:
            reason = f"killed when it held {worker.held >> 20} MB and {worker.least_free >> 20} MB were free"
            return Answer("out-of-memory", reason, fresh=fresh)
        return Answer("lost", "its process was killed from outside, and not for its memory", fresh=fresh)

    def _check(self, worker: WorkerProcess) -> Answer | None:
        """Ends a worker that has exceeded its time or memory."""
        pending, now = worker.pending, time.monotonic()
        if pending is None or now < pending.looked + pending.tick_s:
            return None
        pending.looked = now
        pending.looks += 1
        fresh = worker.loads == 0
        if now - pending.started > pending.limit_s:
            self._retire(worker)
            return Answer("timed-out", f"no answer after {pending.limit_s:.0f} s", fresh=fresh)
        resident = memory.resident_bytes(worker.process.pid, children=pending.looks % 5 == 0)
        free = memory.available_bytes()
        if resident:  # else it has just ended
            worker.held, worker.least_free = resident, min(worker.least_free, free)
        if resident > self.memory_limit:
            self._retire(worker)
            limit = f"the limit is {self.memory_limit >> 20} MB"
            return Answer("out-of-memory", f"it held {resident >> 20} MB; {limit}", fresh=fresh, limited=self.limited)
        if free < self._reserve and worker is max(self._busy(), key=WorkerProcess.resident):
            self._retire(worker)
            return Answer("out-of-memory", f"the machine ran out of memory; it held {resident >> 20} MB", fresh=fresh)
        if worker.log.stat().st_size > _LOG_LIMIT:
            os.truncate(worker.log, 0)
        return None


def _end_all(workers: dict[Regime, WorkerProcess], selector: selectors.BaseSelector, logs: Path, owner: int) -> None:
    if os.getpid() != owner:  # in a process forked since then: the workers are its parent's
        return
    for worker in list(workers.values()):
        if worker.alive:
            worker.end()
    workers.clear()
    selector.close()
    scratch.remove(logs)
