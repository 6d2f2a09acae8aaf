"""What became of the requests of an executable, and how long they took."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_KEPT = 8192
"""Requests whose times are kept: the last ones."""


@dataclass(frozen=True)
class Times:
    """Of the last requests, in milliseconds; NaN where there was none."""

    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @staticmethod
    def of(times_ms: Sequence[float]) -> Times:
        """Mean and quantiles."""
        if not times_ms:
            return Times(*[float("nan")] * 4)
        median, high = np.quantile(times_ms, (0.5, 0.99))
        return Times(float(np.mean(times_ms)), float(median), float(high), max(times_ms))


@dataclass(frozen=True)
class ServingStatistics:
    """What became of the requests since the streams were started."""

    waiting: int
    """That have not begun."""
    running: int
    done: int
    """With an answer."""
    failed: int
    """With an error."""
    cancelled: int
    """Before they began."""
    batches: int
    """Runs of the model ..."""
    rows: int
    """... the rows of requests in them (1 each where the model has no batch dimension) ..."""
    padding: int
    """... and those that were computed for nothing."""
    queueing: Times
    """From `submit` until it began."""
    service: Times
    """From then until the answer was there."""
    latency: Times
    """Both together."""


class ServingRecorder:
    """Counts. Not synchronised."""

    def __init__(self) -> None:
        self.running = self.done = self.failed = self.cancelled = 0
        self.batches = self.rows = self.padding = 0
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)

    def ended(self, submitted_s: float, begun_s: float, ended_s: float, *, failed: bool) -> None:
        """One that ran."""
        self.running -= 1
        if failed:
            self.failed += 1
            return
        self.done += 1
        self._times.append(((begun_s - submitted_s) * 1e3, (ended_s - begun_s) * 1e3))

    def ran(self, rows: int, size: int) -> None:
        """A run of a number of rows by a program of a size."""
        self.batches += 1
        self.rows += rows
        self.padding += size - rows

    def told(self, waiting: int) -> ServingStatistics:
        """As it is now."""
        queueing, service = ([pair[which] for pair in self._times] for which in (0, 1))
        return ServingStatistics(
            waiting,
            self.running,
            done=self.done,
            failed=self.failed,
            cancelled=self.cancelled,
            batches=self.batches,
            rows=self.rows,
            padding=self.padding,
            queueing=Times.of(queueing),
            service=Times.of(service),
            latency=Times.of([sum(pair) for pair in self._times]),
        )
