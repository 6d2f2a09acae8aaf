"""Gavel's policies as rules for shares (Narayanan et al., OSDI'20, section 4; `stanford-futuredata/gavel` @c4fa400, MIT), each a
linear programme or a row of them for HiGHS.

All have the same constraints: X >= 0, a job's row sums to at most one, and gangs times shares fit into the devices of each kind.
Space sharing (two jobs on one device) needs rates of pairs: `space_sharing.py`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack, vstack

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.shares import ShareProblem

_PRECISION = 1e-4
"""Relative, of a bisection."""
_RISE = 1e-5
"""Relative, below which a job counts as unable to rise."""
_SLACK = 1e-7
"""Of the least makespan, so that rounding leaves a solution."""


def blind(problem: ShareProblem) -> Matrix:
    """Rates of one wherever a job runs: what a policy sees that does not tell kinds apart."""
    unit_rates: Matrix = (problem.rates > 0).astype(float)
    return unit_rates


def max_min(problem: ShareProblem, rates: Matrix | None = None) -> Matrix:
    """Least attained service: max min (gang / weight) rate(X) / rate(equal shares). Equal shares are the part of the devices that
    each kind has, so that only their ratios count."""
    rates = problem.rates if rates is None else rates
    equal = problem.capacity / problem.capacity.sum()
    scale = problem.gangs / problem.weights / np.maximum((rates * equal).sum(axis=1), 1e-12)
    return _best(problem, rates * scale[:, None], np.zeros(len(scale)))[1]


def max_min_blind(problem: ShareProblem) -> Matrix:
    """The same without knowing that kinds differ."""
    return max_min(problem, blind(problem))


def makespan(problem: ShareProblem) -> Matrix:
    """Min max steps left / rate(X), as one programme in 1 / time. The published code bisects it, with up to 5 % slack. What that
    time leaves over, all get in equal parts of what would bring each to its best rate."""
    rows = problem.rates / problem.steps_left[:, None]
    value, shares = _best(problem, rows, np.zeros(len(rows)))
    return _spread(problem, rows / value, np.full(len(rows), 1.0 - _SLACK), shares)


def finish_time_fairness(problem: ShareProblem) -> Matrix:
    """Min max rho: (elapsed + left / rate(X)) / (isolated so far + left / isolated rate). For a given rho it is linear."""
    left = problem.steps_left
    isolated = problem.isolated_s + left / np.maximum(problem.isolated_rates, 1e-12)
    rate = problem.rates / left[:, None]
    low = float(np.max((problem.elapsed_s + 1.0 / np.maximum(rate.max(axis=1), 1e-12)) / isolated))
    high, shares = low, None
    while shares is None:
        shares = _feasible(problem, rate, 1.0 / np.maximum(high * isolated - problem.elapsed_s, 1e-9))
        low, high = (low, high) if shares is not None else (high, 2.0 * high)
    while high > low * (1.0 + _PRECISION):
        middle = (low + high) / 2
        trial = _feasible(problem, rate, 1.0 / np.maximum(middle * isolated - problem.elapsed_s, 1e-9))
        if trial is None:
            low = middle
        else:
            high, shares = middle, trial
    return _rest(problem, rate * np.maximum(high * isolated - problem.elapsed_s, 1e-9)[:, None], shares)


def finish_time_fairness_blind(problem: ShareProblem) -> Matrix:
    """The same with each job's rate on its fastest kind everywhere."""
    best = problem.rates.max(axis=1, keepdims=True) * (problem.rates > 0)
    return finish_time_fairness(_with(problem, best))


def minimise_price(problem: ShareProblem) -> Matrix:
    """Max sum rate(X) / price, rates relative to each job's best, with rates that meet the deadlines; where they cannot all be met,
    without."""
    best = problem.rates / np.maximum(problem.rates.max(axis=1, keepdims=True), 1e-12)
    worth = best / np.maximum(problem.price, 1e-9)[None, :]
    late = problem.deadline_s <= 0
    needed = np.where(
        np.isfinite(problem.deadline_s) & ~late, problem.steps_left / np.maximum(problem.deadline_s, 1.0), 0.0
    )
    scale = np.maximum(problem.rates.max(axis=1), 1e-12)
    shares = _most(problem, worth, problem.rates / scale[:, None], needed / scale)
    return shares if shares is not None else _most(problem, worth, best, np.zeros(len(needed)))  # type: ignore[return-value]


def max_sum(problem: ShareProblem) -> Matrix:
    """Max sum of rates, each relative to the sum of the job's rates on all kinds: a bound for throughput, without fairness."""
    worth = problem.rates / np.maximum(problem.rates.sum(axis=1, keepdims=True), 1e-12)
    return _even(problem, worth, largest_sum(problem, worth))


def largest_sum(problem: ShareProblem, worth: Matrix) -> Matrix:
    """Max sum of worth times share, both (m, k), without a floor for any job: a corner of the programme."""
    shares = _most(problem, worth, worth, np.zeros(len(problem.gangs)))
    assert shares is not None  # nothing is feasible
    return shares


def water_filling(problem: ShareProblem) -> Matrix:
    """Max-min repeated: who cannot rise any more is frozen at his level, and the others go on.

    The published code asks a mixed-integer programme who can still rise; here each of them is asked by itself whether he alone can,
    in one linear programme over the sum of what all can gain.
    """
    equal = problem.capacity / problem.capacity.sum()
    rows = (
        problem.rates
        * (problem.gangs / problem.weights / np.maximum((problem.rates * equal).sum(axis=1), 1e-12))[:, None]
    )
    level = np.zeros(len(rows))
    open_ = rows.max(axis=1) > 0
    shares: Matrix = np.zeros_like(rows)
    for _ in range(len(rows)):
        if not open_.any():
            break
        value, shares = _best(problem, rows * open_[:, None], level, rows, open_)
        level = np.where(open_, value, level)
        open_ &= can_rise(problem, rows, level, open_)
    return shares


def best_shares(problem: ShareProblem, rows: Matrix, floor: Matrix, points: Matrix) -> tuple[float, Matrix]:
    """Max t with each job's row at least its floor plus t times its points: (m, k), (m), (m)."""
    matrix, right = _limits(problem)
    scale = max(float(rows.max()), 1e-300)
    wanted = hstack([-_rows(rows / scale), coo_array(points[:, None] / scale)])
    cost = np.zeros(rows.size + 1)
    cost[-1] = -1.0
    block = vstack([hstack([matrix, coo_array((len(right), 1))]), wanted]).tocsr()
    for slack in (1e-8, 1e-6):  # floors are an earlier solution, which HiGHS may have let exceed its limits by 1e-7
        limits = np.concatenate([right, -floor * (1 - slack) / scale])
        solution = linprog(cost, A_ub=block, b_ub=limits, bounds=[*_bounds(problem), (0.0, None)], method="highs")
        if solution.x is not None:
            return float(solution.x[-1]), np.clip(solution.x[:-1].reshape(rows.shape), 0.0, 1.0)
    raise ArithmeticError(f"HiGHS: {solution.message}")


def can_rise(problem: ShareProblem, rows: Matrix, level: Matrix, asked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Of each job that is asked about, whether its row alone can exceed its level while no other falls below its own.

    Whoever can rise alone can rise a little together with all others that can, since solutions may be mixed. So one programme finds
    most of them, and only who does not rise there is asked alone."""
    rising = _rise_together(problem, rows, level, asked)
    for row in np.flatnonzero(asked & ~rising):
        wish = np.zeros_like(rows)
        wish[row] = rows[row]
        alone = _most(problem, wish, rows, level * (1 - 1e-9))
        gain = float((alone[row] * rows[row]).sum() - level[row]) if alone is not None else 0.0
        rising[row] = gain > _RISE * max(float(level[row]), 1e-9)
    return rising


def _rise_together(
    problem: ShareProblem, rows: Matrix, level: Matrix, asked: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Who rises where the sum of what each gains is largest, of which a little counts."""
    matrix, right = _limits(problem)
    m, scale = len(rows), max(float(rows.max()), 1e-300)
    little = np.where(asked, 10.0 * _RISE * np.maximum(level, 1e-9) / scale, 0.0)
    wanted = hstack([-_rows(rows / scale), coo_array((np.ones(m), (np.arange(m), np.arange(m))), shape=(m, m))])
    done = linprog(
        np.concatenate([np.zeros(rows.size), -1.0 / np.maximum(little, 1e-300) * asked * 1e-3]),
        A_ub=vstack([hstack([matrix, coo_array((len(right), m))]), wanted]).tocsr(),
        b_ub=np.concatenate([right, -level * (1 - 1e-9) / scale]),
        bounds=[*_bounds(problem), *((0.0, float(bound)) for bound in little)],
        method="highs",
    )
    if done.x is None:
        return np.zeros(m, dtype=bool)
    rising: npt.NDArray[np.bool_] = asked & (done.x[rows.size :] > 0.5 * little) & (little > 0)
    return rising


def proportional(problem: ShareProblem) -> Matrix:
    """Each job an equal part of the devices, whether it can use it or not (Gandiva-fair without its trades)."""
    part = problem.capacity[None, :] / (len(problem.gangs) * problem.gangs[:, None]) * (problem.rates > 0)
    shares: Matrix = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return shares


def _with(problem: ShareProblem, rates: Matrix) -> ShareProblem:
    return ShareProblem(**{**problem.__dict__, "rates": rates})


def _limits(problem: ShareProblem) -> tuple[csr_array, Matrix]:
    """Rows of jobs, then of kinds: matrix times X (job by job) is at most the right side."""
    m, k = problem.rates.shape
    cells = np.arange(m * k)
    jobs = coo_array((np.ones(m * k), (cells // k, cells)), shape=(m, m * k))
    kinds = coo_array((np.repeat(problem.gangs, k), (cells % k, cells)), shape=(k, m * k))
    return vstack([jobs, kinds]).tocsr(), np.concatenate([np.ones(m), problem.capacity])


def _rows(values: Matrix) -> csr_array:
    """One row for each job: the sum of its cells times `values`."""
    m, k = values.shape
    cells = np.arange(m * k)
    return coo_array((values.ravel(), (cells // k, cells)), shape=(m, m * k)).tocsr()


def _bounds(problem: ShareProblem) -> list[tuple[float, float]]:
    return [(0.0, 1.0 if rate > 0 else 0.0) for rate in problem.rates.ravel()]


def _best(
    problem: ShareProblem, rows: Matrix, floor: Matrix, floors: Matrix | None = None, rising: Matrix | None = None
) -> tuple[float, Matrix]:
    """Max t with sum of each rising job's row at least t, and of all at least their floor."""
    matrix, right = _limits(problem)
    m = len(rows)
    rises = np.ones(m) if rising is None else rising
    scale = max(float(rows.max()), 1e-300)
    wanted = hstack([-_rows(rows / scale), coo_array(rises.astype(float)[:, None])])
    blocks, rights = [hstack([matrix, coo_array((len(right), 1))]), wanted], [right, np.zeros(m)]
    if floors is not None:
        blocks.append(hstack([-_rows(floors / scale), coo_array((m, 1))]))
        rights.append(-floor / scale * (1 - 1e-9))
    cost = np.zeros(rows.size + 1)
    cost[-1] = -1.0
    bounds = [*_bounds(problem), (0.0, None)]
    solution = linprog(cost, A_ub=vstack(blocks).tocsr(), b_ub=np.concatenate(rights), bounds=bounds, method="highs")
    if solution.x is None:
        raise ArithmeticError(f"HiGHS: {solution.message}")
    return float(solution.x[-1]) * scale, np.clip(solution.x[:-1].reshape(rows.shape), 0.0, 1.0)


def _rest(problem: ShareProblem, rows: Matrix, shares: Matrix) -> Matrix:
    """Shares where every row is at least one, and those that can still rise do: the jobs whose best kind gives no more stay."""
    can = (rows.max(axis=1) > 1.0 + 1e-3).astype(float)
    if not can.any() or can.all():
        return shares
    return _best(problem, rows * can[:, None], np.full(len(rows), 1.0 - 1e-6), rows, can)[1]


def _spread(problem: ShareProblem, rows: Matrix, floor: Matrix, shares: Matrix) -> Matrix:
    """Every row at least its floor, and above it by one part, as large as can be, of what it lacks to its best."""
    room = np.maximum(rows.max(axis=1) - floor, 0.0)
    matrix, right = _limits(problem)
    wanted = hstack([-_rows(rows), coo_array(room[:, None])])
    block = vstack([hstack([matrix, coo_array((len(right), 1))]), wanted]).tocsr()
    cost = np.zeros(rows.size + 1)
    cost[-1] = -1.0
    bounds = [*_bounds(problem), (0.0, 1.0)]
    solution = linprog(cost, A_ub=block, b_ub=np.concatenate([right, -floor]), bounds=bounds, method="highs")
    return shares if solution.x is None else np.clip(solution.x[:-1].reshape(rows.shape), 0.0, 1.0)


def _even(problem: ShareProblem, worth: Matrix, shares: Matrix) -> Matrix:
    """Shares of the same total worth, in which all jobs that can have a share without a loss have the same least one."""
    matrix, right = _limits(problem)
    total = float((worth * shares).sum())
    first = linprog(-worth.ravel(), A_ub=matrix, b_ub=right, bounds=_bounds(problem), method="highs")
    free = (np.abs(first.lower.marginals + first.upper.marginals).reshape(worth.shape) < 1e-9) & (worth > 0)
    sharers = (free | (shares > 1e-9)).any(axis=1)
    if sharers.sum() <= 1:
        return shares
    wanted = hstack([-_rows(np.ones_like(worth)), coo_array(sharers.astype(float)[:, None])])
    all_ = coo_array(np.append(-worth.ravel(), 0.0)[None, :])
    block = vstack([hstack([matrix, coo_array((len(right), 1))]), wanted, all_]).tocsr()
    cost = np.zeros(worth.size + 1)
    cost[-1] = -1.0
    limits = np.concatenate([right, np.zeros(len(worth)), [-total * (1 - 1e-7)]])
    solution = linprog(cost, A_ub=block, b_ub=limits, bounds=[*_bounds(problem), (0.0, 1.0)], method="highs")
    return shares if solution.x is None else np.clip(solution.x[:-1].reshape(worth.shape), 0.0, 1.0)


def _most(problem: ShareProblem, worth: Matrix, rows: Matrix, floor: Matrix) -> Matrix | None:
    """Max sum of worth with each job's row at least its floor; None where that cannot be."""
    matrix, right = _limits(problem)
    block = vstack([matrix, -_rows(rows)]).tocsr()
    cost = -worth.ravel() / max(float(worth.max()), 1e-300)
    solution = linprog(cost, A_ub=block, b_ub=np.concatenate([right, -floor]), bounds=_bounds(problem), method="highs")
    return None if solution.x is None else np.clip(solution.x.reshape(worth.shape), 0.0, 1.0)


def _feasible(problem: ShareProblem, rows: Matrix, floor: Matrix) -> Matrix | None:
    return _most(problem, np.zeros_like(rows), rows / floor[:, None], np.ones(len(floor)))
