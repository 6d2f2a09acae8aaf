"""Fourier transforms, windows and filter banks."""

from __future__ import annotations

import math

import numpy as np

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, front_axis, operator


def _as_complex(xp: Arrays, x: Array) -> Array:
    return x[..., 0] if x.shape[-1] == 1 else xp.complex(x[..., 0], x[..., 1])


def _as_pairs(xp: Arrays, x: Array) -> Array:
    return xp.stack((xp.real(x), xp.imag(x)), x.ndim)


def _transform(xp: Arrays, x: Array, length: int | None, axis: int, inverse: int, onesided: int) -> Array:
    """x: [..., 1 or 2], transformed in double precision. One-sided inverse takes the half spectrum to a real signal."""
    axis = front_axis(x.ndim, axis)
    signal = _as_complex(xp, xp.astype(x, xp.dtype(11)))
    size = x.shape[axis]
    if inverse and onesided:
        length = 2 * (size - 1) if length is None else length
        half = xp.slice_axis(signal, axis, 0, min(size, length // 2 + 1), 1)
        mirror_from = 1 if length % 2 else 0
        tail = xp.flip(xp.slice_axis(half, axis, 1, half.shape[axis] - (0 if mirror_from else 1), 1), (axis,))
        conjugate = xp.complex(xp.real(tail), -xp.imag(tail)) if x.shape[-1] == 2 else tail
        full = xp.fft(xp.concat((half, conjugate), axis), length, axis, True)
        return xp.real(full).reshape((*full.shape, 1))
    y = xp.fft(signal, size if length is None else length, axis, bool(inverse))
    if onesided:
        y = xp.slice_axis(y, axis, 0, y.shape[axis] // 2 + 1, 1)
    return _as_pairs(xp, y)


@operator("DFT", since=20, host=("length", "axis"))
def dft(xp: Arrays, x: Array, length: Array = None, axis: Array = -2, *, inverse: int = 0, onesided: int = 0) -> Array:
    where = -2 if axis is None else int(axis[0] if isinstance(axis, tuple) else axis)
    return xp.astype(_transform(xp, x, _scalar(length), where, inverse, onesided), x.dtype)


@operator("DFT", since=17, until=19, host=("length",))
def dft_17(xp: Arrays, x: Array, length: Array = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0) -> Array:
    return xp.astype(_transform(xp, x, _scalar(length), axis, inverse, onesided), x.dtype)


def _scalar(value: Array) -> int | None:
    if value is None:
        return None
    return int(value[0] if isinstance(value, tuple) else value)


@operator("STFT", since=17, host=("frame_step", "frame_length"))
def stft(
    xp: Arrays, x: Array, frame_step: Array, window: Array = None, frame_length: Array = None, *, onesided: int = 1
) -> Array:
    """x: [batch, length, 1 or 2] -> [batch, frames, bins, 2]."""
    step, length = _scalar(frame_step) or 1, _scalar(frame_length)
    if length is None:
        length = window.shape[0] if window is not None else x.shape[1]
    frames = (x.shape[1] - length) // step + 1
    index = np.arange(frames)[:, None] * step + np.arange(length)[None, :]
    cut = xp.take(x, index.reshape(-1), 1).reshape((x.shape[0], frames, length, x.shape[2]))
    if window is not None:
        cut = cut * window.reshape((1, 1, -1, 1))
    return xp.astype(_transform(xp, cut, length, 2, 0, onesided), x.dtype)


def _cosine_window(xp: Arrays, size: Array, periodic: int, output: int, terms: tuple[float, ...]) -> Array:
    """sum of (-1)^k a_k cos(2 pi k n / N)."""
    count = int(_scalar(size) or 0)
    n = np.arange(count)
    whole = count if periodic else count - 1
    values = sum((-1) ** k * a * np.cos(2 * math.pi * k * n / max(whole, 1)) for k, a in enumerate(terms))
    return xp.astype(xp.constant(np.asarray(values, np.float64)), xp.dtype(output))


@operator("HannWindow", since=17, host=("size",))
def hann_window(xp: Arrays, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosine_window(xp, size, periodic, output_datatype, (0.5, 0.5))


@operator("HammingWindow", since=17, host=("size",))
def hamming_window(xp: Arrays, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosine_window(xp, size, periodic, output_datatype, (25 / 46, 21 / 46))


@operator("BlackmanWindow", since=17, host=("size",))
def blackman_window(xp: Arrays, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    return _cosine_window(xp, size, periodic, output_datatype, (0.42, 0.5, 0.08))
