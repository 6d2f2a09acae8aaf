"""What is undone where something fails on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def undo_on_failure(undo: Callable[[], object]) -> Iterator[None]:
    """Calls `undo` where the work within does not come to its end, whatever ends it, and lets that go on."""
    try:
        yield
    except BaseException:
        undo()
        raise
