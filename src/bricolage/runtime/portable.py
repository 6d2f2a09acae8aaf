"""Executables as bytes, for processes that are given objects: multiprocessing, joblib, Ray, Dask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage import scratch

if TYPE_CHECKING:
    from bricolage.runtime.executable import Executable

_FILE = "executable.bricolage"


def packed(executable: Executable) -> bytes:
    """The artifact of an executable. What runs, or waits for its turn, does not go with it.

    Raises:
        NotWritable: the folder for temporary files cannot hold it.
    """
    with scratch.using(scratch.temporary()) as folder:
        return executable.save(folder / _FILE).read_bytes()


def unpacked(artifact: bytes) -> Executable:
    """An executable of `packed` bytes, on this machine or on one that it was not planned for (`any_machine` of `load`).

    Raises:
        as `load`.
    """
    from bricolage.runtime.load import load  # which imports what is packed

    with scratch.using(scratch.temporary()) as folder:
        path = folder / _FILE
        path.write_bytes(artifact)
        return load(path, any_machine=True)
