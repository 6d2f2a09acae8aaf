"""Scales and minima, in float16, of GGUF's blocks of 32 weights: Q4_0 and Q8_0 (scale · (q - middle)), Q4_1 (scale · q + minimum).

A grid follows from a block's range, or is searched: ranges that are shorter or longer by a few shares are tried, and the one with
the least square error is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

from bricolage.graph.quantised_blocks import QuantisedBlocks, blocks_of
from bricolage.quantization.block_quantization import BlockGrid, WeightBlocks, quantize_gptq, split_blocks

GgufFormat = Literal["q4_0", "q4_1", "q8_0"]
BITS = {"q4_0": 4, "q4_1": 4, "q8_0": 8}
SIZE = 32
_SHARES = (1.0, 0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.75, 0.71)
"""Of a block's range."""
_ROWS = 256
"""That are rounded at a time: what a cache holds."""


def choose_grid(form: GgufFormat, *, searched: bool) -> BlockGrid:
    """What finds the scales of a format."""
    shares = _SHARES if searched and form != "q8_0" else (1.0,)
    candidates = _with_minima if form == "q4_1" else _symmetric

    def search(blocks: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
        best: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        for scales, zeros in candidates(blocks, bits, shares):
            integers = np.clip(np.rint(blocks / scales[:, None] + zeros[:, None]), 0, 2**bits - 1)
            errors = ((blocks - (integers - zeros[:, None]) * scales[:, None]) ** 2).sum(axis=1)
            if best is None:
                best = scales, zeros, errors
                continue
            better = errors < best[2]
            best = (
                np.where(better, scales, best[0]),
                np.where(better, zeros, best[1]),
                np.minimum(errors, best[2]),
            )
        assert best is not None
        return best[0], best[1]

    return search


def _symmetric(blocks: np.ndarray, bits: int, shares: tuple[float, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The largest number is the lowest integer, whatever its sign: that side has an integer more."""
    middle = 1 << (bits - 1)
    at = np.abs(blocks).argmax(axis=1)[:, None]
    extreme = np.take_along_axis(blocks, at, axis=1)[:, 0]
    # In 8 bits an integer more is nothing, and a scale without a sign is what readers expect.
    full = np.abs(extreme) / (middle - 1) if bits == 8 else -extreme / middle
    zeros = np.full(full.shape, middle, np.float32)
    for share in shares:
        yield _in_halves(full * np.float32(share)), zeros
        if len(shares) > 1:
            yield _in_halves(full * np.float32(-share)), zeros


def _with_minima(blocks: np.ndarray, bits: int, shares: tuple[float, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The range in equal steps, about its middle. A block of equal numbers is its minimum."""
    low, high = blocks.min(axis=1), blocks.max(axis=1)
    steps = 2**bits - 1
    for share in shares:
        scales = _in_halves((high - low) * np.float32(share / steps))
        minima = ((low + high) / 2 - (high - low) * np.float32(share / 2)).astype(np.float16).astype(np.float32)
        yield scales, -minima / scales


def _in_halves(scales: np.ndarray) -> np.ndarray:
    """As float16 holds them; 1 where that is zero."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16).astype(np.float32)
    return np.where(halves == 0, np.float32(1), halves)


def round_matrix(
    matrix: np.ndarray, form: GgufFormat, grid: BlockGrid, hessian: np.ndarray | None = None
) -> QuantisedBlocks:
    """A matrix in blocks.

    Args:
        matrix: floats [n, k], k a multiple of 32.
        form: of the blocks.
        grid: their scales.
        hessian: [k, k] for GPTQ; None rounds each weight to the nearest.

    Raises:
        ValueError: a scale is beyond float16.
    """
    bits = BITS[form]
    # The rows of an embedding in one piece would take several times the memory of the whole model.
    pieces = [matrix] if hessian is not None else [matrix[i : i + _ROWS] for i in range(0, len(matrix), _ROWS)]
    rounded = [_round_columns(np.asarray(piece, np.float32).T, bits, grid, hessian) for piece in pieces]
    integers, scales, zeros = (
        np.concatenate([part.reshape(-1, part.shape[-1]).T for part in parts])
        for parts in zip(*((blocks.integers, blocks.scales, blocks.zeros) for blocks in rounded), strict=True)
    )
    if not (np.isfinite(scales).all() and np.isfinite(zeros).all()):
        raise ValueError("a weight is not finite, or too large for a scale of float16")
    scales = np.ascontiguousarray(scales, np.float32)
    minima = np.ascontiguousarray(zeros, np.float32) if form == "q4_1" else None
    return blocks_of(integers, scales, minima, bits, SIZE)


def _round_columns(columns: np.ndarray, bits: int, grid: BlockGrid, hessian: np.ndarray | None) -> WeightBlocks:
    """Of weights [k, n]."""
    if hessian is not None:
        return quantize_gptq(columns, bits, SIZE, hessian, grid)
    blocks = split_blocks(columns, SIZE)
    scales, zeros = grid(blocks, bits)
    integers = np.clip(np.rint(blocks / scales[:, None] + zeros[:, None]), 0, 2**bits - 1).astype(np.uint8)
    return WeightBlocks(integers, scales, zeros, len(columns))
