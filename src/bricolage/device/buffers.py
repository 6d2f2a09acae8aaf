"""Buffers: arrays that kernels can be bound to."""

from __future__ import annotations

import math

import numpy as np

ALIGNMENT = 64


def aligned(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
    """An uninitialised C-contiguous array whose data starts at a multiple of 64 bytes (a cache line, a vector)."""
    count = math.prod(shape) * dtype.itemsize
    raw = np.empty(count + ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return np.ndarray(shape, dtype, buffer=raw, offset=start)


def bindable(array: np.ndarray) -> bool:
    """Whether a kernel can be bound to the array as it is."""
    return array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0 and array.dtype.isnative


def in_buffer(array: np.ndarray) -> np.ndarray:
    """The array in a buffer that kernels can be bound to: itself where it is one."""
    if bindable(array):
        return array
    buffer = aligned(array.shape, array.dtype)
    buffer[...] = array
    return buffer
