"""When to stop: a deadline, or the user's Ctrl-C. Stopping is never an error; what is finished counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOG = logging.getLogger(__name__)


class Stopper:
    """Says when the time for searching is over."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: wall clock from now on."""
        self._end = time.monotonic() + seconds
        self.interrupted = False

    @property
    def left(self) -> float:
        """Seconds left; 0 after an interruption."""
        return 0.0 if self.interrupted else max(0.0, self._end - time.monotonic())

    def __call__(self) -> bool:
        return self.left <= 0.0

    def reserve(self, seconds: float) -> Stopper:
        """A stopper for a phase that must leave `seconds` to those after it. An interruption stops both."""
        return _Earlier(self, seconds)

    @contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """A Ctrl-C inside ends the block and every later phase, and keeps what is finished."""
        try:
            yield
        except KeyboardInterrupt:
            if self.interrupted:
                raise  # the second Ctrl-C means it
            _LOG.warning("interrupted: finishing with what is measured so far (again to give up)")
            self.interrupted = True


class _Earlier(Stopper):
    def __init__(self, parent: Stopper, seconds: float) -> None:
        self._parent = parent
        self._reserved = seconds
        self.interrupted = False

    @property
    def left(self) -> float:
        return max(0.0, self._parent.left - self._reserved)
