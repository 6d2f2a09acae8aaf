"""Which program of a decoder is meant: what names a graph, and the compiled code of it, without either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CacheType = Literal["float16", "float32"]
PROMPT_ROWS = (32, 128)
"""Rows of programs for prompts."""


@dataclass(frozen=True)
class DecoderProgram:
    """Which program of a decoder."""

    rows: int
    """Tokens that it takes."""
    longest: int
    """Tokens of the longest sequence."""
    pool: int
    """Rows of a pool."""
    last_row_alone: bool = False
    """Whether it computes the logits of one row only."""
    cache: CacheType = "float16"
    in_bytes: bool = False
    """Whether rows may be rounded to bytes where weights are integers, as `low` allows."""

    @property
    def positions(self) -> int:
        """That there are."""
        return self.longest
