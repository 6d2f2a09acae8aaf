"""ONNX Runtime in a process of its own: a node that ends it fails one test."""

from __future__ import annotations

import atexit
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from bricolage.verify.unoptimised import Unoptimised

Array = np.ndarray[Any, Any]


def _in_worker(model: bytes, feeds: dict[str, Array], names: list[str]) -> list[Array]:
    found = Unoptimised(onnx.load_from_string(model), {name: ir.Value(name=name) for name in feeds})(feeds)
    return [found[name] for name in names]


class Runtime:
    """The process, which is started again after its end."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def run(self, model: bytes, feeds: dict[str, Array], names: list[str]) -> list[Array]:
        self._pool = self._pool or ProcessPoolExecutor(1, get_context("spawn"))
        try:
            return self._pool.submit(_in_worker, model, feeds, names).result(60)
        except BrokenProcessPool:
            self._pool = None
            raise

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()


SHARED = Runtime()
"""One for all tests of a process: starting it takes longer than they do."""
atexit.register(SHARED.close)
