"""Sparse matrices by chance."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array


def draw_matrix(rows: int, inputs: int, seed: int, share: float = 0.3) -> csr_array:
    """[rows, inputs] without an empty row or column."""
    draw = np.random.default_rng(seed)
    there = draw.random((rows, inputs)) < share
    for place in range(max(rows, inputs)):
        there[place % rows, place % inputs] = True
    there[0, 1] = False
    there[0, 0] = there[1, 1] = True
    return csr_array(np.where(there, draw.standard_normal((rows, inputs)), 0.0))
