"""Several worker processes that work on one job together: each has a rank, and they find each other at a rendezvous.

All get a command at once and answer it. Where one of them fails, dies or hangs, the others are ended, and the error names it: those
that only wait for it are not blamed. What they hand to their parent but JSON lies in files of the group's folder.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence

from bricolage.base import scratch
from bricolage.base.undo import Closing, undo_on_failure
from bricolage.device.host import host
from bricolage.errors import TrainingWorkerFailed
from bricolage.measure.launch import EntryPoint
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Regime
from bricolage.measure.worker_loop import Tell, unheard
from bricolage.measure.worker_process import Answer, Frame

READY_S = 300.0
"""Until every process has imported its framework."""
JOIN_S = 120.0
"""Until all have come to the rendezvous; and by default for which one waits for another later."""
_TICK_S = 0.2
_GRACE_S = 1.0
"""A process whose peer has died may say so before the death is seen."""
_OF_A_PEER = re.compile(r"gloo|[Tt]imed? ?out|Connection (closed|reset)|Dist(Store|Network|Backend)Error|NCCL")
"""What the failure of a process says that waited for another in vain."""
_WAITING = ("/torch/distributed/",)
"""Parts of the paths of Python code that waits for other processes."""


class ProcessGroup(Closing):
    """Processes with the ranks 0, 1, ... Its entry point has the commands `ready`, answered when the framework is imported, and
    `join` (rank, size, store, timeout_s), if they are to meet."""

    def __init__(
        self,
        entry: EntryPoint,
        size: int,
        threads: int,
        variables: Mapping[str, str] | None = None,
        *,
        ready_s: float = READY_S,
    ) -> None:
        """Starts them, and waits until they are ready: at most `ready_s` seconds.

        Args:
            entry: what they do.
            size: how many there are.
            threads: of each.
            variables: environment variables of all.
            ready_s: for which is waited.

        Raises:
            TrainingWorkerFailed: one of them ends, or does not get ready.
        """
        self._pool = Pool(variables=variables, entry=entry)
        self.folder = scratch.temporary()
        """For files that they share; it goes with the group."""
        self._broken = False
        with undo_on_failure(self.close):
            device = host()
            regimes = [Regime((), threads, False, device, f"rank {rank}") for rank in range(size)]
            self._workers = [self._pool.worker(regime) for regime in regimes]
            self.ask("ready", ready_s, threads=threads)

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the processes, by rank."""
        return tuple(worker.process.pid for worker in self._workers)

    def close(self) -> None:
        """Ends the processes and removes their folder."""
        self._pool.close()
        scratch.remove(self.folder)

    def join(self, timeout_s: float = JOIN_S) -> None:
        """Lets them meet. `timeout_s`: for which one waits for another, here and later.

        Raises:
            TrainingWorkerFailed: one of them does not come.
        """
        size = len(self)
        store, own_s = str(self.folder / "store"), timeout_s + 2 * _GRACE_S
        ranks = [{"rank": rank, "size": size, "store": store, "timeout_s": timeout_s} for rank in range(size)]
        self.ask_each("join", own_s, ranks)

    def ask(self, command: str, limit_s: float, *, tell: Tell = unheard, **facts: object) -> list[Mapping[str, object]]:
        """As `ask_each`, with the same facts for all."""
        return self.ask_each(command, limit_s, [facts] * len(self), tell=tell)

    def ask_each(
        self, command: str, limit_s: float, facts: Sequence[Mapping[str, object]], *, tell: Tell = unheard
    ) -> list[Mapping[str, object]]:
        """Has all carry out a command, each with facts of its own. Returns the facts of their answers, by rank.

        Args:
            command: of the entry point.
            limit_s: seconds in which one of them has to answer or to `tell` something.
            facts: by rank.
            tell: hears what any of them tells before its answer.

        Raises:
            TrainingWorkerFailed: one of them fails, ends, or does not answer. All have been ended then.
        """
        assert not self._broken, "its processes have been ended"
        heard = time.monotonic()

        def relay_news(what: object) -> None:
            nonlocal heard
            heard = time.monotonic()
            tell(what)

        ranks = {worker: rank for rank, worker in enumerate(self._workers)}
        for worker, worker_facts in zip(self._workers, facts, strict=True):
            self._pool.submit(worker, math.inf, command, tell=relay_news, **worker_facts)
        answers: dict[int, Answer] = {}
        while len(answers) < len(self) and all(answer.ok for answer in answers.values()):
            came = self._pool.wait(_TICK_S)
            answers |= {ranks[worker]: answer for worker, answer in came}
            heard = time.monotonic() if came else heard
            if time.monotonic() - heard > limit_s:
                raise self._end_all(self._silent(answers, f"no answer to '{command}' for {limit_s:.0f} s"))
        if any(not answer.ok for answer in answers.values()):
            raise self._end_all(self._explain_failure(answers, command))
        return [answers[rank].facts for rank in range(len(self))]

    # --- blame ------------------------------------------------------------------------------------------------------

    def _end_all(self, reason: str) -> TrainingWorkerFailed:
        self._broken = True
        self.close()
        return TrainingWorkerFailed(reason=reason)

    def _explain_failure(self, answers: dict[int, Answer], command: str) -> str:
        """Who failed, and why: first those that died, then those that failed by themselves, then those that are still at it while
        others have waited for them in vain."""
        end = time.monotonic() + _GRACE_S
        while (reason := self._own_fault(answers, command)) is None and time.monotonic() < end:
            if len(answers) == len(self):
                break
            ranks = {worker: rank for rank, worker in enumerate(self._workers)}
            answers |= {ranks[worker]: answer for worker, answer in self._pool.wait(_TICK_S)}
        if reason is not None:
            return reason
        first = min(rank for rank, answer in answers.items() if not answer.ok)
        why = f"{self._name(first)}: {answers[first].reason}"
        return self._silent(answers, why) if len(answers) < len(self) else why

    def _own_fault(self, answers: Mapping[int, Answer], command: str) -> str | None:
        failed = {rank: answer for rank, answer in sorted(answers.items()) if not answer.ok}
        for rank, answer in failed.items():
            if not self._workers[rank].alive:
                when = ", before it was ready" if command == "ready" else ""
                return f"{self._name(rank)}{when}: {answer.reason}"
        for rank, answer in failed.items():
            if not _OF_A_PEER.search(answer.reason):
                return f"{self._name(rank)}: {answer.reason}"
        return None

    def _silent(self, answers: Mapping[int, Answer], why: str) -> str:
        """Of those that have not answered, who does not merely wait for others, and where it is."""
        places: dict[int, tuple[Frame, ...]] = {
            rank: worker.position() for rank, worker in enumerate(self._workers) if rank not in answers
        }
        busy = [rank for rank, frames in places.items() if not _waits(frames)] or list(places)
        whereabouts = [f"{self._name(rank)} {_place(places[rank])}" for rank in busy]
        return f"{why}; {', '.join(whereabouts)}"

    def _name(self, rank: int) -> str:
        return f"process {rank} of {len(self)}"


def _waits(frames: Sequence[Frame]) -> bool:
    return any(part in frame.file for frame in frames for part in _WAITING)


def _place(frames: Sequence[Frame]) -> str:
    """The innermost place that is not the library's, with the one that called it."""
    user_frames = [frame for frame in frames if "site-packages" not in frame.file and "/lib/python" not in frame.file]
    inner = [
        str(frame)
        for frame in (frames[:1] if not user_frames or frames[0] == user_frames[0] else (frames[0], user_frames[0]))
    ]
    return f"is in {', called by '.join(inner)}" if inner else "does not respond"
