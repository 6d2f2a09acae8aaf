"""What products of slices of 8 bits must give, bit for bit: the same integers, summed in int64 by numpy."""

from __future__ import annotations

import numpy as np

from bricolage.native.cpu.int8_slices import sliced_columns, slices_of

LEVELS = {9: (4, 4), 6: (3, 3)}
"""By products: slices of the left side, and levels."""


def sliced_rows(x: np.ndarray, slices: int) -> tuple[np.ndarray, np.ndarray]:
    """int8 [slices, m, k] of normal float32 rows [m, k], and what a unit of the most significant slice is worth, float32 [m]:
    the peak of a row becomes the largest integer, by a power of two where there are four slices."""
    peaks = np.abs(x).max(axis=1).astype(np.float32)
    if slices == 4:
        exponents = ((peaks.view(np.int32) + 0x010101) >> 23) - 127
        scales = np.ldexp(1.0, exponents - 6)
        integers = np.rint(x.astype(np.float64) * np.ldexp(1.0, 30 - exponents)[:, None])
    else:
        scales = peaks * (np.float32(65536) / np.float32(8355710))
        integers = np.rint(x * (np.float32(8355710) / peaks)[:, None])
    return slices_of(integers.astype(np.int64), slices), scales.astype(np.float32)


def multiply_in_int64(x: np.ndarray, w: np.ndarray, products: int, right: int = 3) -> np.ndarray:
    """x [m, k] times w [k, n], whose columns have `right` slices: levels in int64, then float32, operation by operation.

    Raises:
        OverflowError: a level does not fit into int32.
    """
    left, levels = LEVELS[products]
    rows, row_scales = sliced_rows(x, left)
    columns = sliced_columns(w, right)
    sums = np.zeros((levels, len(x), w.shape[1]), np.int64)
    for i in range(left):
        for j in range(min(right, levels - i)):
            # Exact in float64, and faster than products of int64, which no library has.
            sums[i + j] += (rows[i].astype(np.float64) @ columns.slices[j].astype(np.float64)).astype(np.int64)
    if np.abs(sums).max() >= 2**31:
        raise OverflowError("a level does not fit into int32")
    total = sums[-1].astype(np.float32)
    for level in sums[-2::-1]:
        total = total * np.float32(2**-8) + level.astype(np.float32)
    result: np.ndarray = total * columns.scales * row_scales[:, None]
    return result
