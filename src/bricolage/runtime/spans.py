"""What really ran when, on which thread and core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSpan:
    """One call of a program's step. Times are those of `time.perf_counter_ns`."""

    step: int
    """From 0, in the order of the plan's regions."""
    start_ns: int
    end_ns: int
    thread: int
    """The system's number of the thread that called; a backend's own threads are not seen."""
    core: int | None
    """On which that thread was at the end; None where the system does not say."""
