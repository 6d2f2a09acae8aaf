"""Executables as bytes, for processes that are given objects: multiprocessing, joblib, Ray, Dask."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from bricolage.base import scratch

_FILE = "executable.bricolage"


def pack_artifact(save: Callable[[Path], Path]) -> bytes:
    """The artifact that `save` writes to a file. What runs, or waits for its turn, does not go with it.

    Raises:
        NotWritable: the folder for temporary files cannot hold it.
    """
    with scratch.using(scratch.temporary()) as folder:
        return save(folder / _FILE).read_bytes()


def unpacked(artifact: bytes) -> object:
    """An executable of `packed` bytes, on this machine or on one that it was not planned for (`any_machine` of `load`).

    Raises:
        as `load`.
    """
    # By its name, as a pickle names what it calls: loading knows executables, which are packed here.
    loading = importlib.import_module("bricolage.runtime.load")
    with scratch.using(scratch.temporary()) as folder:
        path = folder / _FILE
        path.write_bytes(artifact)
        return loading.load(path, any_machine=True)
