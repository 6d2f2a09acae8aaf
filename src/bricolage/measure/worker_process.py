"""One worker process as its parent sees it: what it is at, where it is, how it is paused and ended."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bricolage.costs.entries import Outcome
from bricolage.device import memory
from bricolage.measure.launch import Process
from bricolage.measure.specs import Regime
from bricolage.measure.worker_loop import Tell

_LOG = logging.getLogger(__name__)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
"""A line of a fault handler's dump."""


@dataclass(frozen=True)
class Frame:
    """A place in Python code."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({Path(self.file).name}:{self.line})"


@dataclass(frozen=True)
class Answer:
    """What came back: the facts of an "ok", else the reason."""

    outcome: Outcome
    reason: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    fresh: bool = False
    """The worker had loaded nothing before, so that no other candidate is to blame for its death."""
    limited: bool = False
    """It ended at a limit of memory that the user has set."""

    @property
    def blameless(self) -> bool:
        """Whether it says nothing of the candidate as such: its worker was ended from outside, or the user's memory limit did."""
        return self.outcome == "lost" or self.limited

    @property
    def ok(self) -> bool:
        """Whether the command did what it should."""
        return self.outcome == "ok"


@dataclass
class Pending:
    """A command on its way."""

    started: float
    limit_s: float
    tick_s: float
    looked: float
    tell: Tell
    """Hears what the worker tells before its answer; then its time begins again."""
    looks: int = 0


class WorkerProcess:
    """One live worker. It dies with its first fatal answer; the pool then starts another when asked."""

    def __init__(self, regime: Regime, process: Process, log: Path) -> None:
        self.regime = regime
        self.process = process
        self.log = log
        self.loads = 0
        self.pending: Pending | None = None
        self.buffer = b""
        self.paused = False
        self.alive = True
        self.ahead = 0
        """Commands that it was given ahead, and whose answers are not read."""
        self.held = 0
        """Bytes of memory that it held when it was last looked at."""
        self.least_free = sys.maxsize
        """The least free memory, in bytes, that was seen while it worked."""

    @property
    def commands(self) -> IO[bytes]:
        """Where the worker reads."""
        assert self.process.stdin is not None
        return self.process.stdin

    @property
    def answers(self) -> IO[bytes]:
        """Where the worker writes."""
        assert self.process.stdout is not None
        return self.process.stdout

    def position(self, wait_s: float = 0.5) -> tuple[Frame, ...]:
        """Where the worker's main thread is, innermost first; nothing where it does not say so in time."""
        begin = self.log.stat().st_size if self.log.exists() else 0
        if not self.alive or not sys.platform.startswith("linux"):
            return ()
        self.process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            time.sleep(0.02)
            with self.log.open("rb") as file:
                file.seek(begin)
                frames = [
                    Frame(name, int(line), function) for name, line, function in _FRAME.findall(file.read().decode())
                ]
            if frames:
                return tuple(frames)
        return ()

    def resident(self) -> int:
        """Bytes of memory that the worker holds."""
        return memory.resident_bytes(self.process.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to the worker and all its children."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            self.process.send_signal(number)  # checks first whether it still runs

    def pause(self) -> None:
        """Stops the worker and all its children."""
        if self.alive and not self.paused:
            self.signal(signal.SIGSTOP)
            self.paused = True

    def resume(self) -> None:
        """Lets a paused worker go on."""
        if self.alive and self.paused:
            self.signal(signal.SIGCONT)
            self.paused = False

    def end(self) -> None:
        """Kills the worker and its children, and waits for it."""
        self.alive = False
        self.signal(signal.SIGKILL)
        self.process.wait()
        self.signal(signal.SIGKILL)  # a child that was born meanwhile
        for stream in (self.commands, self.answers):
            try:
                stream.close()
            except BrokenPipeError:
                _LOG.debug("worker %d had gone before its last command was flushed", self.process.pid)


def log_tail(log: Path) -> str:
    """The last lines that a dead worker wrote before the fault handler's dump."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 8192))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    text = text.partition("Fatal Python error")[0]
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-3:])
