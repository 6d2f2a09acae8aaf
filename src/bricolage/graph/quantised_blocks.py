"""Weights of 4 and 8 bits: integers in blocks along k, each block with a scale of its own.

A weight is scale · (integer - zero point). That is what `com.microsoft.MatMulNBits` and ONNX's DequantizeLinear with a `block_size`
(opset 21) hold, and, with zero points that are no integers, the blocks Q4_0, Q4_1 and Q8_0 of GGUF files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

BITS = (4, 8)


@dataclass(frozen=True, eq=False)
class QuantisedBlocks:
    """A matrix [n, k] of integers without a sign, in blocks along k."""

    packed: np.ndarray = field(repr=False)
    """uint8 [n, bytes]: integers of 8 bits, or two of 4 bits to a byte, the first one low. Rows are whole blocks: what lies behind
    k counts for nothing."""
    scales: np.ndarray = field(repr=False)
    """float32 [n, blocks]."""
    zeros: np.ndarray | None = field(repr=False)
    """float32 [n, blocks]: zero points; None where all are the middle of the integers, 8 or 128."""
    bits: int
    block: int
    """Integers in a block."""
    k: int

    def __post_init__(self) -> None:
        """Raises ValueError where sizes do not fit together."""
        n, blocks = self.scales.shape
        if self.bits not in BITS or self.block < 1 or blocks != -(-self.k // self.block):
            raise ValueError(f"{blocks} blocks of {self.block} for {self.k} numbers of {self.bits} bits")
        if self.packed.shape != (n, -(-blocks * self.block * self.bits // 8)):
            raise ValueError(f"{list(self.packed.shape)} bytes for {n} rows of {blocks} blocks")
        if self.zeros is not None and self.zeros.shape != self.scales.shape:
            raise ValueError(f"{list(self.zeros.shape)} zero points for {list(self.scales.shape)} scales")

    @property
    def n(self) -> int:
        """Rows."""
        return int(self.scales.shape[0])

    @property
    def middle(self) -> int:
        """Of the integers: the zero point unless others are given."""
        return 1 << (self.bits - 1)

    @cached_property
    def in_halves(self) -> bool:
        """Whether float16 holds every scale as it is."""
        with np.errstate(over="ignore"):
            return bool((self.scales.astype(np.float16) == self.scales).all())

    @cached_property
    def minima(self) -> np.ndarray | None:
        """float16 [n, blocks]: -scale · zero point, the weight of an integer 0. None where there are no zero points, or where
        float16 does not hold these numbers as the zero points have them."""
        if self.zeros is None:
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            minima = (-self.zeros * self.scales).astype(np.float16)
            zeros = np.divide(-minima, self.scales, out=np.zeros_like(self.scales), where=self.scales != 0)
        return minima if np.array_equal(zeros, self.zeros) else None

    @property
    def nbytes(self) -> int:
        """Bytes of integers, scales and zero points."""
        return self.packed.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    @property
    def packed_bytes(self) -> int:
        """Bytes in our engine's packing, at most: halves are looked for when they are packed."""
        return self.nbytes

    def take_rows(self, rows: np.ndarray) -> QuantisedBlocks:
        """Some rows, in their order."""
        zeros = None if self.zeros is None else self.zeros[rows]
        return QuantisedBlocks(self.packed[rows], self.scales[rows], zeros, self.bits, self.block, self.k)

    def integers(self) -> np.ndarray:
        """uint8 [n, blocks · block], one to a byte."""
        wide = self.scales.shape[1] * self.block
        if self.bits == 8:
            return self.packed
        return unpack_nibbles(self.packed)[:, :wide]

    def numbers(self) -> np.ndarray:
        """float32 [n, k]: the weights."""
        n, blocks = self.scales.shape
        zeros = np.float32(self.middle) if self.zeros is None else self.zeros[:, :, None]
        weights = (self.integers().reshape(n, blocks, self.block).astype(np.float32) - zeros) * self.scales[:, :, None]
        return np.ascontiguousarray(weights.reshape(n, -1)[:, : self.k])


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """uint8 [n, 2 · bytes]: the two integers of 4 bits in each byte [n, bytes], the low one first."""
    nibbles = np.empty((*packed.shape, 2), np.uint8)
    nibbles[:, :, 0], nibbles[:, :, 1] = packed & 15, packed >> 4
    return nibbles.reshape(len(packed), -1)


def blocks_of(
    integers: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, block: int
) -> QuantisedBlocks:
    """Blocks of integers without a sign [n, k], one to an element."""
    n, k = integers.shape
    middle = 1 << (bits - 1)
    wide = -(-k // block) * block
    whole = np.full((n, wide + wide % 2), middle, np.uint8)
    whole[:, :k] = integers
    packed = whole[:, :wide] if bits == 8 else whole[:, ::2] | whole[:, 1::2] << 4
    if zeros is not None and (zeros == middle).all():
        zeros = None
    return QuantisedBlocks(np.ascontiguousarray(packed), scales, zeros, bits, block, k)
