"""Requests to an executable in a closed loop, to see what its streams make of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from bricolage.plan.operating_point import OperatingPoint
from bricolage.runtime.executable import Executable
from bricolage.runtime.serving.request_statistics import ServingStatistics


@dataclass(frozen=True)
class ServedRequests:
    """What became of some requests."""

    point: OperatingPoint
    requests: int
    concurrency: int
    seconds: float
    """From the first `submit` to the last answer."""
    statistics: ServingStatistics

    @property
    def requests_per_s(self) -> float:
        """That were answered."""
        return self.statistics.done / self.seconds


def serve(
    fast: Executable, inputs: Mapping[str, Any], requests: int, concurrency: int, point: OperatingPoint | None = None
) -> ServedRequests:
    """Submits the same inputs again and again, with a fixed number of requests under way, until there were enough. The streams are
    ready before the first one.

    Raises:
        BadOption, NotBatchable, NotEnoughMemory: see `Executable.serve`.
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        Whatever a request raised.
    """
    fast.serve(point)
    free = threading.Semaphore(concurrency)
    failed: list[BaseException] = []

    def release_slot(future: Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            failed.append(error)
        free.release()

    begun = time.perf_counter()
    for _ in range(requests):
        free.acquire()
        if failed:
            free.release()
            break
        fast.submit(inputs).add_done_callback(release_slot)
    for _ in range(concurrency):
        free.acquire()
    seconds = time.perf_counter() - begun
    if failed:
        raise failed[0]
    return ServedRequests(fast.operating_point, requests, concurrency, seconds, fast.statistics())
