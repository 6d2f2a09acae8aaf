"""Rows of a cache on their way from one backend's layout to another's."""

from __future__ import annotations

import numpy as np


def take_cache_rows(cache: np.ndarray, first: int, end: int) -> np.ndarray:
    """Rows [end - first, key_heads · head_size] of some tokens, of a cache [1, key_heads, tokens, head_size]."""
    part = cache[0, :, first:end].swapaxes(0, 1)
    return np.asarray(part.reshape(end - first, -1))


def put_cache_rows(cache: np.ndarray, first: int, rows: np.ndarray) -> None:
    """Writes rows, as `take_cache_rows` gives them, into a cache [1, key_heads, tokens, head_size] from the token `first` on."""
    _, heads, _, size = cache.shape
    cache[0, :, first : first + len(rows)] = rows.reshape(len(rows), heads, size).swapaxes(0, 1)
