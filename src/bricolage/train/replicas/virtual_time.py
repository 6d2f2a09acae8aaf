"""Participants that take turns in simulated time: each is a thread that computes for real, one at a time, always the one whose
clock is earliest. So what they do happens in the order of their clocks, and is the same in each run.

`work/simulator.py` takes tasks whose order is known. Here the order follows from what participants do: who comes first at a server
is served first. A task's times are the same in both (`tests/train/replicas/test_virtual_time.py`).
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bricolage.train.replicas.peers import collect_failures

if TYPE_CHECKING:
    import torch


class _Ended(BaseException):
    """Raised in participants that have to end because another one failed."""


class Participant:
    """A thread with a clock, seconds, and a stream of PyTorch's random numbers."""

    def __init__(self, time: VirtualTime, work: Callable[[], None], clock: float) -> None:
        self.clock = clock
        self.ended = False
        self.owed = 0.0
        """Seconds that it has computed for since its clock was set."""
        self.turn = threading.Semaphore(0)
        self.random: torch.Tensor | None = None
        self.waiters: list[Participant] = []
        """Who waits for its end."""
        self._time = time
        self.thread = threading.Thread(target=self._run, args=(work,), daemon=True)

    def _run(self, work: Callable[[], None]) -> None:
        with collect_failures(self._time.failures):
            self._time.take_turn(self)
            work()
            self._time.settle()
        self._time.leave(self)

    def join(self) -> None:
        """Until it has ended; the caller's clock is then its last, or later."""
        self._time.join(self)

    def check(self) -> None:
        """Nothing to say: its failure ends all."""


class VirtualTime:
    """The clocks of all participants.

    Args:
        cores: on which they compute, each on one, first come, first served; None: each has one of its own.
    """

    def __init__(self, cores: int | None = None) -> None:
        self.failures: list[BaseException] = []
        self._ready: list[tuple[float, int, Participant]] = []
        self._numbers = itertools.count()
        self._all: list[Participant] = []
        self._current: Participant | None = None
        self._cores = None if cores is None else [0.0] * cores
        self._over = threading.Event()

    @property
    def now(self) -> float:
        """The clock of the participant whose turn it is, seconds."""
        assert self._current is not None
        return self._current.clock

    @property
    def current(self) -> Participant:
        """Whose turn it is."""
        assert self._current is not None
        return self._current

    def run(self, works: Sequence[Callable[[], None]]) -> None:
        """Runs participants from time 0 on until all have ended. What ends one of them ends all, and is raised.

        Raises:
            RuntimeError: each waits for another.
        """
        for work in works:
            self._add(Participant(self, work, 0.0))
        try:
            if self._ready:
                self._pass_on()
                self._over.wait()
        finally:
            self._end_all()
        for participant in self._all:
            participant.thread.join()
        if self.failures:
            raise next((error for error in self.failures if not isinstance(error, _Ended)), self.failures[0])

    def start(self, work: Callable[[], None]) -> Participant:
        """Another participant, from now on."""
        participant = Participant(self, work, self.now)
        self._add(participant)
        return participant

    def owe(self, seconds: float) -> None:
        """The current participant computes for a time; its clock goes on at its next `settle`."""
        self.current.owed += seconds

    def settle(self) -> None:
        """The clock goes on by what is owed, from when a core is free; participants with an earlier clock have their turns."""
        me = self.current
        if me.owed <= 0.0:
            return
        begin, me.owed, seconds = me.clock, 0.0, me.owed
        if self._cores is not None:
            begin = max(begin, heapq.heappop(self._cores))
            heapq.heappush(self._cores, begin + seconds)
        self.wait_until(begin + seconds)

    def wait_until(self, clock: float) -> None:
        """The current participant does nothing until a time."""
        me = self.current
        me.clock = max(me.clock, clock)
        self._push(me)
        self._give_turn(me)

    def wait(self) -> None:
        """The current participant does nothing until it is woken."""
        self._give_turn(self.current)

    def wake(self, participant: Participant, clock: float) -> None:
        """One that waits goes on at a time, which is not before now."""
        participant.clock = max(participant.clock, clock)
        self._push(participant)

    def join(self, other: Participant) -> None:
        """The current participant waits for the end of another."""
        self.settle()
        if not other.ended:
            other.waiters.append(self.current)
            self.wait()
        self.wait_until(other.clock)

    def take_turn(self, participant: Participant) -> None:
        """Until it is a participant's turn."""
        import torch

        participant.turn.acquire()
        if self.failures:
            raise _Ended
        self._current = participant
        if participant.random is not None:
            torch.set_rng_state(participant.random)

    def leave(self, participant: Participant) -> None:
        """A participant has ended."""
        participant.ended = True
        for waiting in participant.waiters:
            self.wake(waiting, participant.clock)
        if self.failures or all(other.ended for other in self._all):
            self._over.set()
            return
        with collect_failures(self.failures):
            self._pass_on()

    def _give_turn(self, me: Participant) -> None:
        import torch

        if self._ready and self._ready[0][2] is me:
            heapq.heappop(self._ready)
            return
        me.random = torch.get_rng_state()
        self._pass_on()
        self.take_turn(me)

    def _pass_on(self) -> None:
        if not self._ready:
            self._over.set()
            raise RuntimeError("each participant waits for another")
        heapq.heappop(self._ready)[2].turn.release()

    def _add(self, participant: Participant) -> None:
        self._all.append(participant)
        self._push(participant)
        participant.thread.start()

    def _push(self, participant: Participant) -> None:
        heapq.heappush(self._ready, (participant.clock, next(self._numbers), participant))

    def _end_all(self) -> None:
        """Those who are still there are ended: nothing is left waiting for a turn that does not come."""
        if all(participant.ended for participant in self._all):
            return
        if not self.failures:
            self.failures.append(_Ended())
        for participant in self._all:
            participant.turn.release()
