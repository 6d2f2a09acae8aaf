"""Progress on stderr: bars with the time left on a terminal, one line a phase elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from bricolage.base.progress import Progress

if TYPE_CHECKING:
    from bricolage.api.result_types import Bucket

Decided: TypeAlias = "Callable[[Bucket], None]"
"""Told of each shape bucket when it is decided."""


class Bars:
    """One bar a phase; finished ones stay."""

    def __init__(self, bars: RichProgress, decided: Decided) -> None:
        self._bars = bars
        self.decided = decided
        self._task: TaskID | None = None

    def start(self, phase: str, total: int | None = None) -> None:
        """A phase begins."""
        self.finish()
        self._task = self._bars.add_task(phase, total=total, note="")

    def advance(self, count: int = 1, note: str = "") -> None:
        """Steps of it are done."""
        if self._task is not None:
            self._bars.update(self._task, advance=count, note=Text(note).plain[:40])

    def finish(self) -> None:
        """The phase is over."""
        if self._task is not None:
            task = next(t for t in self._bars.tasks if t.id == self._task)
            done = max(task.completed, 1)
            self._bars.update(self._task, total=done, completed=done, note="")
            self._task = None


class Lines:
    """One line when a phase is over: what a log file wants."""

    def __init__(self, decided: Decided) -> None:
        self.decided = decided
        self._phase = ""
        self._began = 0.0
        self._count = 0

    def start(self, phase: str, total: int | None = None) -> None:
        """A phase begins."""
        del total
        self.finish()
        self._phase, self._began, self._count = phase, time.monotonic(), 0

    def advance(self, count: int = 1, note: str = "") -> None:
        """Steps of it are done."""
        del note
        self._count += count

    def finish(self) -> None:
        """The phase is over."""
        if self._phase:
            count = f", {self._count}" if self._count else ""
            print(f"{self._phase}{count}: {time.monotonic() - self._began:.1f} s", file=sys.stderr, flush=True)
            self._phase = ""


@contextlib.contextmanager
def show_progress(decided: Decided = lambda _: None) -> Iterator[Progress]:
    """Progress that suits stderr."""
    console = Console(file=sys.stderr, highlight=False)
    if not console.is_terminal:
        lines = Lines(decided)
        yield lines
        lines.finish()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left", style="dim"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", style="dim", markup=False),
    )
    with RichProgress(*columns, console=console, redirect_stdout=False, redirect_stderr=True) as bars:
        drawn = Bars(bars, decided)
        yield drawn
        drawn.finish()
