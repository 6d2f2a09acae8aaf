"""Constant weights as bytes with a sign: what a quantised file holds and what the native engine packs are computed in one place.

Where the only instruction of a processor is vpmaddubsw, which adds two products in int16 and saturates, scales are *pair-safe*:
those of a column are so large that no two neighbours along k, of one sign, sum to more than 128 = ⌊32767 / 255⌋. The bytes of the
other side have no sign, so that products of unlike signs cancel, and no pair can reach 2^15: the fast instruction is exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

LARGEST = 127
"""Of a byte with a sign; -128 is not used, so that weights are symmetric."""
PAIR = 128
"""Two neighbours of one sign: 255 · 128 fits into int16."""


@dataclass(frozen=True)
class QuantisedColumns:
    """Weights [batch, k, n] as bytes, with the scale of each column."""

    integers: np.ndarray
    """int8 [batch, k, n], from -127 to 127."""
    scales: np.ndarray
    """float32 [batch, n]: a weight is its integer times its column's scale."""


def quantised_columns(weights: np.ndarray, *, pair_safe: bool, least: np.ndarray | None = None) -> QuantisedColumns:
    """The nearest bytes to float32 weights [batch, k, n], to the even one between two.

    Args:
        weights: finite; infinite ones and NaN make a column's scale NaN, so that its results are.
        pair_safe: whether neighbours along k, in pairs from the first on, may sum to at most 128 where they have one sign.
        least: scales [batch, n] that are not gone below.
    """
    largest = np.abs(weights).max(axis=1, initial=0.0)
    if pair_safe:
        largest = np.maximum(largest, one_signed_pairs(weights) * (LARGEST / PAIR))
    scales = np.where(largest > 0, largest / np.float32(LARGEST), np.float32(1)).astype(np.float32)
    # A column of subnormal weights: a scale of zero would divide by nothing.
    scales = np.where(scales == 0, np.float32(np.finfo(np.float32).tiny), scales)
    if least is not None:
        scales = np.maximum(scales, least.astype(np.float32))
    while True:
        with np.errstate(invalid="ignore", over="ignore"):
            ratio = np.nan_to_num(weights / scales[:, None, :], nan=0.0, posinf=LARGEST, neginf=-LARGEST)
        integers = np.clip(np.rint(ratio), -LARGEST, LARGEST)
        if not pair_safe:
            break
        over = one_signed_pairs(integers) > PAIR  # rounding both of a pair up
        if not over.any():
            break
        scales = np.where(over, scales * np.float32(1 + 1 / 256), scales)
    scales = np.where(np.isfinite(largest), scales, np.float32(np.nan))
    return QuantisedColumns(integers.astype(np.int8), scales)


def one_signed_pairs(weights: np.ndarray) -> np.ndarray:
    """The largest sum of two neighbours of one sign in each column, [batch, n]."""
    batch, k, n = weights.shape
    even = np.concatenate([weights, np.zeros((batch, k % 2, n), weights.dtype)], axis=1)
    pairs = even.reshape(batch, -1, 2, n)
    positive, negative = np.maximum(pairs, 0).sum(axis=2), np.maximum(-pairs, 0).sum(axis=2)
    largest_sums: np.ndarray = np.maximum(positive, negative).max(axis=1, initial=0.0)
    return largest_sums
