"""Which program of a decoder is meant: what names a graph, and the compiled code of it, without either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bricolage.frontends.decoders.decoder_description import DecoderDescription

CacheType = Literal["float16", "float32", "q8_0"]
SCALED = 32
"""Bytes of a cache of `q8_0` that share a scale, as of GGUF's blocks."""
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


def list_pools(decoder: DecoderDescription, cache: CacheType) -> list[tuple[int, np.dtype[np.generic]]]:
    """Width and type of each pool, in the order of a program's inputs: layer by layer, keys first, scales behind their bytes."""
    width = decoder.key_heads * decoder.head_size
    if cache != "q8_0":
        kind: np.dtype[np.generic] = np.dtype(np.float32) if cache == "float32" else np.dtype(np.float16)
        return [(width, kind)] * (2 * len(decoder.layers))
    of_each: list[tuple[int, np.dtype[np.generic]]] = [
        (width, np.dtype(np.int8)),
        (width // SCALED, np.dtype(np.float16)),
    ]
    return of_each * (2 * len(decoder.layers))
