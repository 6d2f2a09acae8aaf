"""What is undone where something fails on its way, and what is closed at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self


@contextmanager
def undo_on_failure(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` where the work within does not come to its end, whatever ends it, and lets that go on."""
    try:
        yield
    except BaseException:
        undo()
        raise


class Closing(ABC):
    """What is closed at the end of a `with`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """The end of it."""
