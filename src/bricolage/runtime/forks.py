"""What lives on in a forked process: memory does, threads do not, and most runtimes wait for theirs for ever."""

from __future__ import annotations

import ctypes
import os
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


_told: weakref.WeakSet[Forked] = weakref.WeakSet()


def tell(who: Forked) -> None:
    """From now on, `who.after_fork` is called in each process that is forked from this one."""
    _told.add(who)


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


def _in_child() -> None:
    _gone.update(name for name, fate in _used.items() if fate == "ends")
    for who in list(_told):
        who.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
