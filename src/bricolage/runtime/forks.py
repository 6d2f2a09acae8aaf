"""What lives on in a forked process: memory does, threads do not, and most runtimes wait for theirs for ever. Nor are
locks let go that a thread of the parent held at that moment: where that matters, a fork waits until no call is running."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import weakref
from typing import Protocol

from bricolage.backends import registry
from bricolage.backends.interface import AfterFork
from bricolage.errors import ForkedProcess

_used: dict[str, AfterFork] = {}
"""Backends that have compiled something in this process, or in one that it was forked from, and what a fork does to them."""
_gone: set[str] = set()
"""Those of them that cannot be used here any more."""


class Forked(Protocol):
    """Who must know of a fork."""

    def after_fork(self) -> None:
        """In the new process, before anything else runs there."""


class RunsCalls(Protocol):
    """Who runs calls that a fork should not fall into."""

    def hold(self, patience_s: float) -> bool:
        """Waits until no call runs, and keeps others from beginning; whether it did. False where a fork harms nothing."""
        ...

    def release(self) -> None:
        """Ends what `hold` began, in the same thread."""
        ...


_told: weakref.WeakSet[Forked] = weakref.WeakSet()
_running: weakref.WeakSet[RunsCalls] = weakref.WeakSet()
_PATIENCE_S = 5.0
"""For calls to end before a fork; a longer one is forked in the middle of."""
_SETTLE_S = 0.002
"""Threads of a runtime that have just become idle look for work for a while, and then take locks to go to sleep."""
_mine = threading.local()
"""Of the forking thread: whom it holds."""


def tell(who: Forked) -> None:
    """From now on, `who.after_fork` is called in each process that is forked from this one."""
    _told.add(who)


def hold(who: RunsCalls) -> None:
    """From now on, no process is forked from this one while a call of `who` runs, where that ends in time."""
    _running.add(who)


def use(name: str) -> None:
    """A backend is about to compile in this process.

    Raises:
        ForkedProcess: it was used before the fork that made this process, and does not live on.
    """
    if name in _gone:
        raise ForkedProcess(backend=registry.get(name).title or name)
    _used[name] = registry.get(name).after_fork


def never_freed(what: object) -> None:
    """Keeps something to the end of the process: freeing what has lost its threads would wait for them."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(what))


def _before() -> None:
    end = time.monotonic() + _PATIENCE_S
    # In the same order in every thread, so that two that fork do not wait for each other.
    held = [runner for runner in sorted(_running, key=id) if runner.hold(max(0.0, end - time.monotonic()))]
    if held:
        time.sleep(_SETTLE_S)
    _mine.held = held


def _in_parent() -> None:
    for runner in _mine.held:
        runner.release()
    _mine.held = []


def _in_child() -> None:
    # What the parent had not collected yet may hold compiled models, whose threads are gone: collecting it would wait for them.
    gc.freeze()
    _mine.held = []
    _gone.update(name for name, fate in _used.items() if fate == "ends")
    for who in list(_told):
        who.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
