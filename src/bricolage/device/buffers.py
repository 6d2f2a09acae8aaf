"""Buffers: arrays that kernels can be bound to."""

from __future__ import annotations

import ctypes
import math
import mmap
from functools import cache
from typing import Any

import numpy as np

ALIGNMENT = 64
_LARGE_PAGE = 2 << 20
"""Bytes of a large page of x86-64 and most of Arm's; elsewhere what is aligned by it is aligned enough."""


def allocate_aligned(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """An uninitialised C-contiguous array whose data starts at a multiple of 64 bytes (a cache line, a vector)."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.empty(count + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, buffer=raw, offset=start)


def lasting(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """As `allocate_aligned`, for what is read again and again, such as weights. From 2 MiB on it lies on large pages of its own,
    where the system has them: an array that malloc makes may take over small pages that another one has left, and what does was
    read at 20 to 24 GB/s by one thread instead of 29 (26 MB of weights in the third-level cache of a Xeon)."""
    count = math.prod(shape) * dtype.itemsize
    if count < _LARGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return allocate_aligned(shape, dtype)
    pages = mmap.mmap(-1, count + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a system without them
        pages.close()
        return allocate_aligned(shape, dtype)
    raw = np.frombuffer(pages, np.uint8)
    return np.ndarray(shape, dtype, buffer=raw, offset=-raw.ctypes.data % _LARGE_PAGE)


def view_memory(address: int, owner: object, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """An array of the memory at an address, which keeps its owner alive. It can be written to, even if the owner cannot."""
    memory = _owned_memory(math.prod(shape) * dtype.itemsize).from_address(address)
    memory.owner = owner
    return np.ndarray(shape, dtype, memory)


@cache
def _owned_memory(count: int) -> Any:
    """The type of `count` bytes that have an owner."""
    return type("OwnedMemory", (ctypes.c_uint8 * count,), {"__slots__": ("owner",)})


def bindable(array: np.ndarray) -> bool:
    """Whether a kernel can be bound to the array as it is."""
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0 and array.dtype.isnative


def in_buffer(array: np.ndarray) -> np.ndarray:
    """The array in a buffer that kernels can be bound to: itself where it is one."""
    if bindable(array):
        return array
    buffer = allocate_aligned(array.shape, array.dtype)
    buffer[...] = array
    return buffer
