"""How long work tells what it is doing. The command line draws it; everything below only speaks to this protocol."""

from __future__ import annotations

from typing import Any, Protocol


class Progress(Protocol):
    """Told about one phase at a time. Implementations never raise and never slow the work down."""

    def start(self, phase: str, total: int | None = None) -> None:
        """A phase begins (an unfinished one ends); `total` is its number of steps, None when it is not known."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """`count` steps are done; `note` says what is at work now."""

    def finish(self) -> None:
        """The phase is over."""

    def decided(self, bucket: Any, /) -> None:
        """One shape bucket is decided: a `bricolage.plan.plan.Bucket`."""


class Silent:
    """Shows nothing."""

    def start(self, phase: str, total: int | None = None) -> None:
        """Nothing."""
        del phase, total

    def advance(self, count: int = 1, note: str = "") -> None:
        """Nothing."""
        del count, note

    def finish(self) -> None:
        """Nothing."""
        return

    def decided(self, bucket: Any, /) -> None:
        """Nothing."""
        del bucket
