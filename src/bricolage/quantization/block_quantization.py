"""Weights of 4 or 8 bits with a scale and a zero point for each block along k: rounded to the nearest (RTN), with zero points that
fit most of the weights (HQQ; Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023), or row by row,
each row's error made up for by those that follow (GPTQ; Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative
Pre-trained Transformers", ICLR 2023)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BlockGrid = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]
"""Scales and zero points [blocks, n] for blocks [blocks, size, n] of a number of bits."""

_HQQ_STEPS = 3
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Of a block's range, that HQQ starts with."""
_HQQ_BETA, _HQQ_GROWTH, _HQQ_NORM = 10.0, 1.01, 0.7
_DAMPING = 0.01
"""Of the mean of the Hessian's diagonal, added to it."""
_TOGETHER = 128
"""Rows whose errors reach the rows behind them in one product."""


@dataclass(frozen=True)
class WeightBlocks:
    """Weights [k, n], k padded to whole blocks: scale · (integer - zero)."""

    integers: np.ndarray
    """uint8 [blocks, size, n]."""
    scales: np.ndarray
    """float32 [blocks, n]."""
    zeros: np.ndarray
    """uint8 [blocks, n], or float32 where the file's zero points are no integers."""
    k: int
    """Rows that are weights, the rest being padding."""

    @property
    def floats(self) -> np.ndarray:
        """The rounded weights, float32 [k, n]."""
        rounded_blocks = (self.integers.astype(np.float32) - self.zeros[:, None]) * self.scales[:, None]
        whole: np.ndarray = rounded_blocks.reshape(-1, rounded_blocks.shape[-1])[: self.k]
        return whole


def round_to_nearest(weights: np.ndarray, bits: int, size: int) -> WeightBlocks:
    """RTN: each block's range, which holds zero, in equal steps."""
    blocks = split_blocks(weights, size)
    scales, zeros = block_ranges(blocks, bits)
    return WeightBlocks(nearest(blocks, scales, zeros, bits), scales, zeros, weights.shape[0])


def half_quadratic(weights: np.ndarray, bits: int, size: int) -> WeightBlocks:
    """HQQ: zero points that make a norm below one of the error small, so that few weights are far off rather than all a little.
    Files hold whole zero points, which HQQ's are rounded to; a few shares of a block's range are tried, and the least square
    error kept. No data are needed."""
    blocks = split_blocks(weights, size)
    whole_range, first = block_ranges(blocks, bits)
    scales, zeros = whole_range, first
    lowest = _block_errors(blocks, nearest(blocks, scales, zeros, bits), scales, zeros)
    for share in _SHARES:
        tried = whole_range * np.float32(share)
        at = np.clip(first.astype(np.float32) + (1 / share - 1) * (first - (2**bits - 1) / 2), 0, 2**bits - 1)
        trial_zeros = _half_quadratic_zeros(blocks, tried, at, bits)
        errors = _block_errors(blocks, nearest(blocks, tried, trial_zeros, bits), tried, trial_zeros)
        better = errors < lowest
        scales, zeros = np.where(better, tried, scales), np.where(better, trial_zeros, zeros)
        lowest = np.minimum(lowest, errors)
    return WeightBlocks(nearest(blocks, scales, zeros, bits), scales, zeros, weights.shape[0])


def _half_quadratic_zeros(blocks: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    """Whole zero points [blocks, n] for given scales, from some to start with."""
    beta = _HQQ_BETA
    for _ in range(_HQQ_STEPS):
        integers = np.clip(np.rint(blocks / scales[:, None] + zeros[:, None]), 0, 2**bits - 1)
        error = blocks - (integers - zeros[:, None]) * scales[:, None]
        magnitude = np.abs(error)
        with np.errstate(divide="ignore"):
            shrunk = np.sign(error) * np.maximum(magnitude - magnitude ** (_HQQ_NORM - 1) / beta, 0.0)
        zeros = (integers - (blocks - shrunk) / scales[:, None]).mean(axis=1)
        beta *= _HQQ_GROWTH
    half_quadratic_zeros: np.ndarray = np.clip(np.rint(zeros), 0, 2**bits - 1).astype(np.uint8)
    return half_quadratic_zeros


def quantize_gptq(
    weights: np.ndarray, bits: int, size: int, hessian: np.ndarray, grid: BlockGrid | None = None
) -> WeightBlocks:
    """GPTQ.

    Args:
        weights: float32 [k, n].
        bits: of an integer.
        size: rows of a block.
        hessian: [k, k], the sum of xᵀx over calibration's rows x of the activation; rows that are always zero are allowed.
        grid: of each block, when its first row is rounded; None for `block_ranges`.
    """
    grid = grid or block_ranges
    k, n = weights.shape
    left = weights.astype(np.float64).copy()
    damped = hessian.astype(np.float64) + np.eye(k) * (_DAMPING * max(float(np.diag(hessian).mean()), 1e-12))
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    count = -(-k // size)
    integers = np.zeros((count * size, n), np.uint8)
    scales, zeros = np.zeros((count, n), np.float32), np.zeros((count, n), np.float32)
    kind: np.dtype = np.dtype(np.uint8)
    for start in range(0, k, _TOGETHER):
        end = min(start + _TOGETHER, k)
        errors = np.zeros((end - start, n))
        for row in range(start, end):
            block = row // size
            if row % size == 0:
                scale, zero = grid(split_blocks(left[row : row + size].astype(np.float32), size), bits)
                scales[block], zeros[block], kind = scale[0], zero[0], zero.dtype
            integers[row] = np.clip(np.rint(left[row] / scales[block] + zeros[block]), 0, 2**bits - 1)
            value = (integers[row].astype(np.float64) - zeros[block]) * scales[block]
            errors[row - start] = (left[row] - value) / upper[row, row]
            left[row + 1 : end] -= upper[row, row + 1 : end, None] * errors[row - start]
        left[end:] -= upper[start:end, end:].T @ errors
    integers[k:] = np.repeat(zeros[-1:], count * size - k, axis=0)
    return WeightBlocks(integers.reshape(count, size, n), scales, zeros.astype(kind), k)


def split_blocks(weights: np.ndarray, size: int) -> np.ndarray:
    """[blocks, size, n], padded with zeros."""
    k, n = weights.shape
    return np.pad(weights.astype(np.float32), ((0, -k % size), (0, 0))).reshape(-1, size, n)


def block_ranges(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points [blocks, n] of ranges that hold zero."""
    low, high = np.minimum(blocks.min(axis=1), 0.0), np.maximum(blocks.max(axis=1), 0.0)
    scales = ((high - low) / (2**bits - 1)).astype(np.float32)
    scales = np.where(scales > np.finfo(np.float32).tiny, scales, np.float32(1.0))
    return scales, np.clip(np.rint(-low / scales), 0, 2**bits - 1).astype(np.uint8)


def nearest(blocks: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    """Integers, uint8."""
    integers: np.ndarray = np.clip(np.rint(blocks / scales[:, None]) + zeros[:, None], 0, 2**bits - 1).astype(np.uint8)
    return integers


def _block_errors(blocks: np.ndarray, integers: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Square error [blocks, n]."""
    block_errors: np.ndarray = ((blocks - (integers.astype(np.float32) - zeros[:, None]) * scales[:, None]) ** 2).sum(
        axis=1
    )
    return block_errors
