"""When to stop: a deadline, or the user's Ctrl-C. Stopping is never an error; what is finished counts."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOG = logging.getLogger(__name__)


def _nothing() -> float:
    """No other process took any time."""
    return 0.0


class Deadline:
    """Says when the time for searching is over."""

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        taken: Callable[[], float] = _nothing,
        most: float = 1.0,
    ) -> None:
        """`seconds`: from now on, by the clock given. `taken`: how many seconds others have taken since, which never become fewer.
        They are given back, up to `most` times as many as there were."""
        self.clock = clock
        self._end = clock() + seconds
        self._most, self._taken = max(0.0, most * seconds), taken
        self.interrupted = False

    @property
    def given_back(self) -> float:
        """Seconds that others took, and by which the end has moved."""
        return min(self._most, self._taken())

    @property
    def left(self) -> float:
        """Seconds left; 0 after an interruption."""
        return 0.0 if self.interrupted else max(0.0, self._end + self.given_back - self.clock())

    def __call__(self) -> bool:
        """Whether the time is over."""
        return self.left <= 0.0

    def grant(self, seconds: float) -> None:
        """Moves the end: that of what this one is a part of, too."""
        self._end += seconds

    def reserve(self, seconds: float) -> Deadline:
        """One that leaves `seconds` to what comes after it. An interruption ends both."""
        return _Part(self, seconds, float("inf"))

    def at_most(self, seconds: float) -> Deadline:
        """One that ends after `seconds`, if not earlier."""
        return _Part(self, 0.0, seconds)

    def at_least(self, seconds: float) -> Deadline:
        """One that ends with this one, but not before that many seconds from now."""
        return _AtLeast(self, 0.0, seconds)

    @contextmanager
    def catching_interrupts(self) -> Iterator[None]:
        """A Ctrl-C inside ends the block and every later stage, and keeps what is finished."""
        try:
            yield
        except KeyboardInterrupt:
            if self.interrupted:
                raise  # the second Ctrl-C means it
            _LOG.warning("interrupted: finishing with what is measured so far (again to give up)")
            self.interrupted = True


class _Part(Deadline):
    """A part of the time of another deadline, interrupted with it."""

    def __init__(self, parent: Deadline, reserved: float, seconds: float) -> None:
        self._parent = parent
        self._reserved = reserved
        self.clock = parent.clock
        self._end = self.clock() + seconds

    @property
    def interrupted(self) -> bool:
        return self._parent.interrupted

    @interrupted.setter
    def interrupted(self, value: bool) -> None:
        self._parent.interrupted = value

    @property
    def given_back(self) -> float:
        return self._parent.given_back

    def grant(self, seconds: float) -> None:
        self._parent.grant(seconds)
        self._end += seconds

    @property
    def left(self) -> float:
        return max(0.0, min(self._end - self.clock(), self._parent.left - self._reserved))


class _AtLeast(_Part):
    """One that may outlast the other, and is interrupted with it."""

    @property
    def left(self) -> float:
        return 0.0 if self.interrupted else max(self._end - self.clock(), self._parent.left, 0.0)
