"""Calls side by side: each on cores of its own, on threads that live as long as the program they belong to.

A call waits for those whose results it reads and for the one before it on each of its cores; a finished region wakes the
waiting ones. So calls on disjoint cores run at the same time, and those that share a core never do.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bricolage.device.host import current_core
from bricolage.runtime.spans import RunSpan


@dataclass(frozen=True)
class Placed:
    """A call, the cores on which it runs, and the numbers of the calls (all lower) for which it waits."""

    call: Callable[[], None]
    cores: tuple[int, ...]
    waits: tuple[int, ...]


@dataclass
class _Item:
    number: int
    call: Callable[[], None]
    cores: frozenset[int]
    wait_for: list[threading.Lock] = field(default_factory=list)
    """Held until another thread releases them, once a run."""
    wake: list[threading.Lock] = field(default_factory=list)


class _Team:
    """What the threads share. It does not know the `RegionStreams`, which end with their last reference."""

    def __init__(self, queues: Sequence[Sequence[_Item]]) -> None:
        self.queues = queues
        self.start = [_create_held_lock() for _ in queues]
        self.done = [_create_held_lock() for _ in queues]
        self.failure: BaseException | None = None
        self.spans: list[RunSpan] | None = None
        self.ended = False

    def work(self, index: int) -> None:
        """A thread: its calls, each time it is told to start."""
        allowed: frozenset[int] | None = None
        while True:
            self.start[index].acquire()
            if self.ended:
                return
            for item in self.queues[index]:
                for lock in item.wait_for:
                    lock.acquire()
                if self.failure is None:
                    try:
                        allowed = _move(allowed, item.cores)
                        self._call(item)
                    except BaseException as error:
                        self.failure = error
                for lock in item.wake:
                    lock.release()
            self.done[index].release()

    def _call(self, item: _Item) -> None:
        if self.spans is None:
            item.call()
            return
        begun = time.perf_counter_ns()
        item.call()
        ended = time.perf_counter_ns()
        self.spans.append(RunSpan(item.number, begun, ended, threading.get_native_id(), current_core()))

    def end(self) -> None:
        """No more runs."""
        self.ended = True
        for lock in self.start:
            if lock.locked():
                lock.release()


class RegionStreams:
    """Calls that run side by side where their cores are disjoint. A run returns when all are done."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        homes = list(dict.fromkeys(min(placement.cores) for placement in placed))
        items = [_Item(number, placement.call, frozenset(placement.cores)) for number, placement in enumerate(placed)]
        for number, placement in enumerate(placed):
            for other in placement.waits:
                if min(placed[other].cores) != min(placement.cores):  # calls of one thread wait for each other anyway
                    lock = _create_held_lock()
                    items[number].wait_for.append(lock)
                    items[other].wake.append(lock)
        queues = [[item for item in items if min(item.cores) == home] for home in homes]
        self._team = _Team(queues)
        for index, home in enumerate(homes):
            name = f"bricolage-cores-{home}"
            threading.Thread(target=self._team.work, args=(index,), name=name, daemon=True).start()
        weakref.finalize(self, self._team.end)

    def __call__(self) -> None:
        """One run. Where a call fails, those that have not begun are left out, and its error is raised when all are at rest."""
        team = self._team
        team.failure = None
        for lock in team.start:
            lock.release()
        interrupted: BaseException | None = None
        for lock in team.done:
            while True:
                try:
                    lock.acquire()
                    break
                except KeyboardInterrupt as error:  # the threads go on: the buffers are theirs until they are done
                    interrupted = error
        if team.failure is not None:
            raise team.failure
        if interrupted is not None:
            raise interrupted

    def traced(self) -> list[RunSpan]:
        """One run, with what really ran when and where."""
        spans: list[RunSpan] = []
        self._team.spans = spans
        try:
            self()
        finally:
            self._team.spans = None
        return sorted(spans, key=lambda span: span.start_ns)


def _create_held_lock() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


def _move(allowed: frozenset[int] | None, cores: frozenset[int]) -> frozenset[int]:
    """The calling thread to these cores, unless it is kept to them already. Does nothing where the system binds no threads."""
    if allowed != cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    return cores
