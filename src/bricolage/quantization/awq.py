"""Weights in blocks, rounded by what their inputs are like (AWQ; Lin et al., "AWQ: Activation-aware Weight Quantization for
On-Device LLM Compression and Acceleration", MLSys 2024): weights that meet large activations are made larger first, by a factor for
each input channel that what computes the activation takes up, and each block's range has the least error of the product's result
rather than of the weights. Both take the mean squares of input channels alone, and no k³ steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.quantization.block_quantization import WeightBlocks, block_ranges, nearest, split_blocks

_EXPONENTS = (0.25, 0.5, 0.75, 1.0)
_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Of a block's range."""


def activation_aware(weights: np.ndarray, bits: int, size: int, squares: np.ndarray) -> WeightBlocks:
    """Each block with the range, of a few, that has the least error of the result.

    Args:
        weights: float32 [k, n].
        squares: [k], mean squares of input channels.
    """
    blocks, by = split_blocks(weights, size), split_blocks(np.maximum(squares, 0.0)[:, None], size)
    scales, zeros = block_ranges(blocks, bits)
    whole = scales
    lowest = _errors(blocks, by, scales, zeros, bits)
    for share in _SHARES[1:]:
        tried = whole * np.float32(share)
        low = np.minimum(blocks.min(axis=1), 0.0) * share
        at = np.clip(np.rint(-low / tried), 0, 2**bits - 1).astype(np.uint8)
        errors = _errors(blocks, by, tried, at, bits)
        better = errors < lowest
        scales, zeros = np.where(better, tried, scales), np.where(better, at, zeros)
        lowest = np.minimum(lowest, errors)
    return WeightBlocks(nearest(blocks, scales, zeros, bits), scales, zeros, weights.shape[0])


def salient_factors(matrices: Sequence[np.ndarray], bits: int, size: int, squares: np.ndarray) -> np.ndarray | None:
    """Factors [k] for the input channels of products that read one activation; None where none are better than ones."""
    if not np.isfinite(squares).all() or not (squares > 0).any():
        return None
    magnitudes = np.sqrt(np.maximum(squares, squares[squares > 0].min()))
    best: np.ndarray | None = None
    lowest = _result_error(matrices, bits, size, squares, np.ones(squares.shape))
    for exponent in _EXPONENTS:
        factors = magnitudes**exponent
        factors = factors / np.exp(np.log(factors).mean())
        error = _result_error(matrices, bits, size, squares, factors)
        if error < lowest:
            best, lowest = factors, error
    return best


def _result_error(
    matrices: Sequence[np.ndarray], bits: int, size: int, squares: np.ndarray, factors: np.ndarray
) -> float:
    by = (squares / factors**2)[:, None]
    total = 0.0
    for matrix in matrices:
        scaled = (matrix * factors[:, None]).astype(np.float32)
        blocks = split_blocks(scaled, size)
        scales, zeros = block_ranges(blocks, bits)
        left = WeightBlocks(nearest(blocks, scales, zeros, bits), scales, zeros, matrix.shape[0]).floats
        total += float(((left - scaled) ** 2 * by).sum())
    return total


def _errors(blocks: np.ndarray, by: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    """Square error of the result, of channels that are not correlated, [blocks, n]."""
    left = (nearest(blocks, scales, zeros, bits).astype(np.float32) - zeros[:, None]) * scales[:, None]
    errors: np.ndarray = ((blocks - left) ** 2 * by).sum(axis=1)
    return errors
