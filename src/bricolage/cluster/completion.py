"""Speeds of pairs of jobs that were never run together, from those that were: matrix completion (Gavel, Narayanan et al., OSDI'20,
section 6, after Quasar): the matrix of relative speeds is near one of low rank, since few things make jobs slow each other.

Alternating least squares with ridge regression, on what is known less the means of rows and columns. Two jobs that exceed a
device's memory have the speed 0; such pairs are known to their owners from the sizes, and must be given as 0.
"""

from __future__ import annotations

import numpy as np

from bricolage.cluster.adaptive import Matrix

RANK = 4
_RIDGE = 0.1
_ROUNDS = 30


def complete_speeds(speeds: Matrix, rank: int = RANK, ridge: float = _RIDGE) -> Matrix:
    """The same with numbers from 0 to 1 where there are none (NaN).

    Args:
        speeds: (jobs, jobs) of the row's job with the column's, relative to that alone.
        rank: of what is added to the means.
        ridge: weight of the squares of its factors.
    """
    measured = np.isfinite(speeds)
    if measured.all() or not measured.any():
        return speeds
    n = len(speeds)
    mean = float(speeds[measured].mean())
    rows, columns = np.zeros(n), np.zeros(n)
    for _ in range(10):
        rows = _means(speeds - mean - columns[None, :], measured, 1)
        columns = _means(speeds - mean - rows[:, None], measured, 0)
    base = mean + rows[:, None] + columns[None, :]
    rest = np.where(measured, speeds - base, 0.0)
    draw = np.random.default_rng(0)
    left, right = 0.1 * draw.standard_normal((n, rank)), 0.1 * draw.standard_normal((n, rank))
    for _ in range(_ROUNDS):
        left = _solve_factors(rest, measured, right, ridge)
        right = _solve_factors(rest.T, measured.T, left, ridge)
    filled: Matrix = np.where(measured, speeds, np.clip(base + left @ right.T, 0.0, 1.0))
    return filled


def _means(values: Matrix, known: np.ndarray, axis: int) -> Matrix:
    """Of what is known, drawn a little to 0 where that is little."""
    means: Matrix = np.where(known, values, 0.0).sum(axis=axis) / (known.sum(axis=axis) + 1.0)
    return means


def _solve_factors(rest: Matrix, known: np.ndarray, factors: Matrix, ridge: float) -> Matrix:
    solutions = np.zeros_like(factors)
    for row, mask in enumerate(known):
        selected = factors[mask]
        solutions[row] = np.linalg.solve(
            selected.T @ selected + ridge * np.eye(factors.shape[1]), selected.T @ rest[row, mask]
        )
    return solutions
