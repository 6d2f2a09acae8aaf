"""A compiled library, loaded: its threads, its memory, and calls of it."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bricolage.backends.interface import RegionModel, Resources, StaticKernel
from bricolage.backends.kernel import Array, Call
from bricolage.backends.kernel_trials import on_random_inputs
from bricolage.base.options import available_cores
from bricolage.device.buffers import lasting
from bricolage.native.build import LIBRARY, SIZES, TITLE, WEIGHTS


class _Team:
    """Threads that run regions; they end with the last kernel that uses them."""

    def __init__(self, library: ctypes.CDLL, most: int) -> None:
        self._library = library
        self.handle = library.region_team(most)

    def __del__(self) -> None:
        self._library.region_free(self.handle)


_TEAMS: weakref.WeakValueDictionary[tuple[int, ...], _Team] = weakref.WeakValueDictionary()
_TEAMS_LOCK = threading.Lock()


def _team(library: ctypes.CDLL, cores: tuple[int, ...]) -> _Team:
    """The process's team on those cores, with as many threads as have a core there. Any library can make it, and all can use it:
    they have the same code for it."""
    with _TEAMS_LOCK:
        team = _TEAMS.get(cores)
        if team is None:
            team = _TEAMS[cores] = _Team(library, min(len(cores), available_cores()))
        return team


_WEIGHTS: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()
"""Constants of loaded libraries, by their digest."""
_WEIGHTS_LOCK = threading.Lock()


def _load_weights(path: Path, digest: str) -> np.ndarray:
    """The bytes of a file. What another library of this process has loaded already, by its digest, is shared: programs of several
    sizes of a batch, and configurations that pack weights alike."""
    with _WEIGHTS_LOCK:
        weights = _WEIGHTS.get(digest) if digest else None
        if weights is None:
            with path.open("rb") as file:
                weights = lasting((os.fstat(file.fileno()).st_size,), np.dtype(np.uint8))
                file.readinto(weights.data)
            if digest:
                _WEIGHTS[digest] = weights
        return weights


class NativeKernel(StaticKernel):
    """The library in a folder that `build.write_library` has filled."""

    def __init__(
        self, region: RegionModel, folder: Path, resources: Resources, weights: np.ndarray | None = None
    ) -> None:
        """With `weights`, bytes, they are taken from there and not from the folder."""
        super().__init__(TITLE, region.inputs, region.outputs)
        sizes = json.loads((folder / SIZES).read_text(encoding="utf-8"))
        self._library = ctypes.CDLL(str(folder / LIBRARY))
        self._library.region_team.restype = ctypes.c_void_p
        self._library.region_team.argtypes = [ctypes.c_long]
        self._library.region_free.argtypes = [ctypes.c_void_p]
        self._library.region_free.restype = None
        self._library.region_run.restype = None
        self._library.region_run.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_size_t, ctypes.c_long]
        if weights is not None:
            self._weights = lasting(weights.shape, np.dtype(np.uint8))
            self._weights[...] = weights
        else:
            self._weights = _load_weights(folder / WEIGHTS, sizes.get("weights", ""))
        self._thread_scratch = int(sizes["thread_scratch"])
        self._threads = resources.threads
        self._bytes = int(sizes["arena"]), self._thread_scratch * self._threads + int(sizes["shared_scratch"])
        self._place(resources)

    def _place(self, resources: Resources) -> None:
        """Memory to work in, and the threads that do."""
        self._arena, self._scratch = (lasting((size + 64,), np.dtype(np.uint8)) for size in self._bytes)
        self._lingers = int(resources.alone)  # another backend's region would soon want the cores
        self._team = _team(self._library, resources.device.cores)
        self.takes_turns = self._threads > 1  # those of one team; one thread does without

    def replica(self, resources: Resources) -> NativeKernel | None:
        if resources.threads != self._threads:
            return None
        replica = copy.copy(self)
        replica._place(resources)
        return replica

    def spent(self, count: int) -> np.ndarray:
        """Where a timed library of `count` kernels adds up their milliseconds."""
        self._library.region_spent.restype = ctypes.POINTER(ctypes.c_double)
        return np.ctypeslib.as_array(self._library.region_spent(), (count,))

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Call:
        """A call that reads and writes these arrays; it returns when the outputs are written."""
        memory = (*inputs, *outputs)
        addresses = (ctypes.c_void_p * max(1, len(memory)))(*(array.ctypes.data for array in memory))
        blocks = (self._arena.ctypes.data, self._weights.ctypes.data, self._scratch.ctypes.data)
        given = (self._team.handle, ctypes.addressof(addresses), *blocks, self._thread_scratch, self._lingers)
        call = partial(self._library.region_run, *given)
        call.__dict__["keeps"] = (self, addresses, memory)  # a reference to the call keeps what it reads
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
