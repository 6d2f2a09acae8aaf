"""Executables of made plans, and a way to keep a stream busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.base.options import Options, available_cores
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import Implementation
from tests.runtime.made_plans import BODY, graph_of_size, made_bucket, made_plan, whole

CORES = available_cores()
PATIENCE_S = 60.0


def executable(
    folder: Path, backend: str, sizes: tuple[int, ...] = (1,), body: str = BODY, threads: int = 1
) -> Executable:
    """Of a model of n × 4, planned for some sizes of n."""
    found = []
    for n in sizes:
        graph = graph_of_size(n, body)
        found.append(made_bucket(folder, graph, whole(graph, Implementation(backend)), {"n": n}))
    return Executable(made_plan(folder, *found, options=Options(threads=threads), body=body), folder)


def sample(seed: int = 0, rows: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)


@contextmanager
def busy(fast: Executable) -> Iterator[Future[Any]]:
    """A request that occupies one stream as long as the context lasts."""
    begun, release = threading.Event(), threading.Event()

    def deliver(outputs: dict[str, Any]) -> dict[str, Any]:
        begun.set()
        release.wait(PATIENCE_S)
        return outputs

    request = fast._serves().submit({"x": sample()}, deliver)
    assert begun.wait(PATIENCE_S)
    try:
        yield request
    finally:
        release.set()
