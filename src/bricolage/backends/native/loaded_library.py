"""A compiled library, loaded: its threads, its memory, and calls of it."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bricolage.backends.interface import RegionEnds, RegionModel, Resources, StaticKernel
from bricolage.backends.kernel import Array, Call
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.base import sealed
from bricolage.base.options import available_cores
from bricolage.device.buffers import lasting
from bricolage.errors import Refused
from bricolage.native.library_files import (
    HEADER_BYTES,
    LIBRARY,
    TITLE,
    WEIGHTS,
    shared_weights,
    weights_digest,
    weights_header,
)


class _Options(ctypes.Structure):
    """`model_options` of `native/c/model.h`."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("instructions", ctypes.c_char_p),
        ("threads", ctypes.c_uint32),
        ("map_weights", ctypes.c_uint32),
        ("leave_helpers", ctypes.c_uint32),
        ("sleeps", ctypes.c_uint32),
        ("team", ctypes.c_void_p),
    )


class _Library:
    """A loaded library."""

    def __init__(self, path: Path) -> None:
        self.functions = functions = ctypes.CDLL(str(path))
        functions.region_team_make.restype = ctypes.c_void_p
        functions.region_team_make.argtypes = [ctypes.c_uint32, ctypes.c_uint32]
        functions.region_team_release.restype = None
        functions.region_team_release.argtypes = [ctypes.c_void_p]
        functions.region_open_memory.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
        functions.region_close.argtypes = [ctypes.c_void_p]
        functions.region_run.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p]
        functions.region_error.restype = ctypes.c_char_p


class _Team:
    """Threads that run regions; they end with the last kernel that uses them."""

    def __init__(self, library: _Library, most: int) -> None:
        self._library = library
        self.address = library.functions.region_team_make(most, 0)

    def __del__(self) -> None:
        self._library.functions.region_team_release(self.address)


_TEAMS: weakref.WeakValueDictionary[tuple[int, ...], _Team] = weakref.WeakValueDictionary()
_TEAMS_LOCK = threading.Lock()


def _team(library: _Library, cores: tuple[int, ...]) -> _Team:
    """The process's team on those cores, with as many threads as have a core there. Any library can make it, and all can use it:
    they have the same code for it."""
    with _TEAMS_LOCK:
        team = _TEAMS.get(cores)
        if team is None:
            team = _TEAMS[cores] = _Team(library, min(len(cores), available_cores()))
        return team


_WEIGHTS: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()
"""Weights of loaded libraries with their headers, by their digest."""
_WEIGHTS_LOCK = threading.Lock()


def _load_weights(path: Path) -> np.ndarray:
    """The bytes of a file. What another library of this process has loaded already, by its digest, is shared: programs of several
    sizes of a batch, and configurations that pack weights alike. A header alone says that weights lie next to the library.

    Raises:
        FileNotFoundError: they are not there any more, or are damaged.
    """
    with _WEIGHTS_LOCK, path.open("rb") as file:
        header, size = file.read(HEADER_BYTES), os.fstat(file.fileno()).st_size
        digest = weights_digest(header)
        weights = _WEIGHTS.get(digest)
        if weights is not None:
            return weights
        if size == HEADER_BYTES:
            weights = _map_weights(shared_weights(path.parent, digest))
        else:
            weights = lasting((size,), np.dtype(np.uint8))
            weights[:HEADER_BYTES] = np.frombuffer(header, np.uint8)
            file.readinto(weights[HEADER_BYTES:].data)
        _WEIGHTS[digest] = weights
        return weights


def _map_weights(folder: Path) -> np.ndarray:
    """Weights that lie in the cache for all libraries that read them: nothing is copied, and processes share the memory."""
    if not sealed.intact(folder):
        raise FileNotFoundError(f"there are no whole weights in '{folder}'")
    with (folder / WEIGHTS).open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for advice in ("MADV_HUGEPAGE", "MADV_WILLNEED"):
        with contextlib.suppress(OSError, AttributeError):  # a system that has no such advice
            pages.madvise(getattr(mmap, advice))
    return np.frombuffer(pages, np.uint8)


def _take_weights(block: np.ndarray) -> np.ndarray:
    """A block with its header."""
    weights = lasting((HEADER_BYTES + block.nbytes,), np.dtype(np.uint8))
    weights[:HEADER_BYTES] = np.frombuffer(weights_header(block), np.uint8)
    weights[HEADER_BYTES:] = block
    return weights


class _Handle:
    """An open library, with the memory that it works in."""

    def __init__(self, library: _Library, weights: np.ndarray, team: _Team, *, spins: bool) -> None:
        """Opens it.

        Raises:
            Refused: there is not enough memory.
        """
        self._library, self._weights, self._team = library, weights, team
        options = _Options(size=ctypes.sizeof(_Options), sleeps=int(not spins), team=team.address)
        address = ctypes.c_void_p()
        given = (weights.ctypes.data, weights.nbytes, ctypes.addressof(options), ctypes.addressof(address))
        code = library.functions.region_open_memory(*given)
        self.address = address.value
        if code:
            raise Refused(backend=TITLE, reason=library.functions.region_error(code).decode())

    def __del__(self) -> None:
        if self.address:
            self._library.functions.region_close(self.address)


class NativeKernel(StaticKernel):
    """The library in a folder that `build.write_library` has filled."""

    def __init__(
        self,
        region: RegionEnds,
        folder: Path,
        resources: Resources,
        weights: np.ndarray | None = None,
        *,
        kept: bool = False,
    ) -> None:
        """With `weights`, bytes, they are taken from there and not from the folder. `kept`: the folder stays, so that other
        processes can open it (`Kernel.kept`).

        Raises:
            Refused: there is not enough memory.
        """
        super().__init__(TITLE, region.inputs, region.outputs)
        self.kept = folder.name if kept else ""
        self._library = _Library(folder / LIBRARY)
        self._weights = _load_weights(folder / WEIGHTS) if weights is None else _take_weights(weights)
        self._threads = resources.threads
        self._place(resources)

    def _place(self, resources: Resources) -> None:
        """Memory to work in, and the threads that do. Helpers linger unless another backend's region would soon want the cores."""
        team = _team(self._library, resources.device.cores)
        self._handle = _Handle(self._library, self._weights, team, spins=resources.alone)
        self.takes_turns = self._threads > 1  # those of one team; one thread does without

    def replica(self, resources: Resources) -> NativeKernel | None:
        if resources.threads != self._threads:
            return None
        replica = copy.copy(self)
        replica._place(resources)
        return replica

    def spent(self, count: int) -> np.ndarray:
        """Where a timed library of `count` kernels adds up their milliseconds."""
        spent = self._library.functions.region_spent
        spent.restype = ctypes.POINTER(ctypes.c_double)
        return np.ctypeslib.as_array(spent(), (count,))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call that reads and writes these arrays; it returns when the outputs are written."""
        reads, writes = (
            (ctypes.c_void_p * max(1, len(arrays)))(*(array.ctypes.data for array in arrays))
            for arrays in (inputs, outputs)
        )
        given = (self._handle.address, 0, ctypes.addressof(reads), ctypes.addressof(writes))
        call = partial(self._library.functions.region_run, *given)
        call.__dict__["keeps"] = (self, reads, writes, inputs, outputs)  # a reference to the call keeps what it reads
        return call


class Stopwatch:
    """Times of a timed library's kernels, on random inputs."""

    def __init__(self, kernel: NativeKernel, region: RegionModel, count: int) -> None:
        """For a library of `count` kernels. The first run, here, does not count."""
        self._call, self.outputs = on_random_inputs(kernel, region)
        self._spent = kernel.spent(count)

    def run(self) -> np.ndarray:
        """Milliseconds of each kernel in one run."""
        self._spent[...] = 0
        self._call()
        return self._spent.copy()
