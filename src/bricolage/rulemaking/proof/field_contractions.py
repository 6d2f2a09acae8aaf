"""Parts of contractions over a field: convolutions as matrix products of windows, and operands of an einsum."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array
from bricolage.lowering.operators.pooling import windows_of
from bricolage.lowering.window_indices import window_table
from bricolage.rulemaking.proof.tensor import FieldTensor, gather, tensor


def convolve_windows(
    xp: Arrays,
    x: FieldTensor,
    w: FieldTensor,
    strides: Sequence[int],
    pads: Sequence[tuple[int, int]],
    dilations: Sequence[int],
    groups: int,
) -> Array:
    """All windows of each group as rows, times its kernels as columns."""
    x = xp.pad(x, [(0, 0), (0, 0), *pads], 0)
    kernel = w.shape[2:]
    if x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise ValueError(f"{groups} groups of kernels {w.shape} do not fit {x.shape[1]} channels")
    tables = [
        window_table(size, k, stride, dilation, (0, 0), False)
        for size, k, stride, dilation in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    ]
    windows = windows_of(xp, x, tables)
    n, places, taps = x.shape[0], windows.shape[2:-1], windows.shape[-1]
    windows = windows.reshape((n, groups, w.shape[1], -1, taps))
    rows = xp.transpose(windows, (0, 1, 3, 2, 4)).reshape((n, groups, -1, w.shape[1] * taps))
    columns = xp.transpose(w.reshape((1, groups, -1, w.shape[1] * taps)), (0, 1, 3, 2))
    y = xp.transpose(xp.matmul(rows, columns), (0, 1, 3, 2))
    return y.reshape((n, w.shape[0], *places))


def convolved_transposed(
    xp: Arrays, x: FieldTensor, w: FieldTensor, strides: Sequence[int], dilations: Sequence[int], groups: int
) -> Array:
    """The gradient of a convolution: a convolution of the stretched input with the mirrored kernel."""
    inputs, outputs, *spatial = w.shape
    w = xp.transpose(w.reshape((groups, inputs // groups, outputs, *spatial)), (0, 2, 1, *range(3, 3 + len(spatial))))
    w = w.reshape((groups * outputs, inputs // groups, *spatial))
    w = xp.flip(w, tuple(range(2, w.ndim)))

    def stretch(i: np.ndarray, zero: np.ndarray) -> np.ndarray:
        sizes = [(d - 1) * stride + 1 for d, stride in zip(i.shape[2:], strides, strict=True)]
        stretched = np.full((*i.shape[:2], *sizes), zero.item())
        stretched[(slice(None), slice(None), *(slice(None, None, stride) for stride in strides))] = i
        return stretched

    stretched = gather([x, tensor(x.point, 0)], stretch)
    reach = [((k - 1) * d, (k - 1) * d) for k, d in zip(spatial, dilations, strict=True)]
    return convolve_windows(xp, stretched, w, (1,) * len(spatial), reach, dilations, groups)


def spread(x: FieldTensor, term: str, letters: str) -> FieldTensor:
    """The tensor with one axis for each of `letters`, of size 1 where the term lacks it; repeated ones diagonal."""
    term_letters = "".join(letter for letter in letters if letter in term)

    def place(i: np.ndarray) -> np.ndarray:
        sizes = dict(zip(term, i.shape, strict=True))
        diagonal: np.ndarray = np.einsum(f"{term}->{term_letters}", i)
        return diagonal.reshape([sizes.get(letter, 1) for letter in letters])

    return x.move(place)
