"""What fusion must know of the machine that kernels are generated for: limits, not how code is generated."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """The limits of a target. The generator of its code states them (`cpu.target`)."""

    l2_bytes: int
    """A core's second-level cache."""
    tile_rows: int
    """Most rows of a matrix product that are computed at once."""
    vector_lanes: tuple[int, int]
    """float32 elements of the narrowest and of the widest vector that a kernel may be compiled for: plans are for all of them."""
    vector_dtypes: frozenset[str]
    """Element types that vectors are loaded from."""
    grouped_taps: int
    """Longest row of kernel taps with which grouped convolutions go by vectors of channels."""

    @property
    def resident_bytes(self) -> int:
        """Of a tensor that is found in the second-level cache by the next kernel: half of it."""
        return self.l2_bytes // 2

    @property
    def score_columns(self) -> int:
        """Columns of float32 scores of which a tile of rows takes half of the second-level cache."""
        return self.resident_bytes // (4 * self.tile_rows)
