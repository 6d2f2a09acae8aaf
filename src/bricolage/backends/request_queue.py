"""`RequestQueue`: a backend's own way to answer several requests at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from bricolage.backends.kernel import Array

Done = Callable[[int], None]
"""Hears the token of a request that is answered, on a thread of the backend's."""


class RequestQueue(ABC):
    """A compiled region that takes several requests at a time, on cores that the backend divides among them as it likes.
    Not safe to be fed from several threads."""

    lanes: int
    """Requests that may be under way."""
    streams: int
    """Of them, those that run at the same time, as far as the backend says."""

    @abstractmethod
    def bind(self, lane: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """The buffers of a lane, as for `Kernel.bind`."""

    @abstractmethod
    def listen(self, done: Done) -> None:
        """`done` hears of every request from now on that is answered."""

    @abstractmethod
    def submit(self, token: int) -> None:
        """Begins a request on a lane that is idle, after waiting for one."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when nothing is under way.

        Raises:
            RuntimeError: a request has failed since the last time.
        """
