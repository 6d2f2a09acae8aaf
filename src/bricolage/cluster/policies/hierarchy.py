"""Gavel's hierarchies (Narayanan et al., OSDI'20, section 4.3; `scheduler/policies/max_min_fairness_water_filling.py` @c4fa400,
MIT): entities share by weight, and each shares out its part among its jobs.

An entity is a queue of the history, or a user where there are no queues; its weight is the largest of its jobs'. It has a number of
points, its weight, and gives them to its jobs: to all alike (fairness), or to the first that is not finished (FIFO). Water filling
by these points does the rest: as a job can rise no more, its points go to the others of its entity, and only where none of them can
rise to other entities.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.policies.gavel import best_shares, can_rise
from bricolage.cluster.shares import ShareProblem, ShareRule

Inside = Literal["fairness", "fifo"]


def hierarchical(inside: Inside) -> ShareRule:
    """The rule with one way to share inside of entities."""

    def shares(problem: ShareProblem) -> Matrix:
        return water_filled(problem, inside)

    return shares


def water_filled(problem: ShareProblem, inside: Inside) -> Matrix:
    """Shares by entity.

    Args:
        problem: its jobs in order of submission.
        inside: how an entity's points go to its jobs.
    """
    equal = problem.capacity / problem.capacity.sum()
    rows = problem.rates * (problem.gangs / np.maximum((problem.rates * equal).sum(axis=1), 1e-12))[:, None]
    level, open_ = np.zeros(len(rows)), rows.max(axis=1) > 0
    shares: Matrix = np.zeros_like(rows)
    while open_.any():
        points = _points(problem, open_, inside)
        rising = points > 0
        scale = np.where(rising, points, 1.0)
        # Each rises from where it is, in proportion to its points.
        step, shares = best_shares(problem, rows, level, np.where(rising, scale, 0.0))
        # Never above what these shares give: floors must stay feasible, to the last digit.
        level = np.minimum(level + step * np.where(rising, scale, 0.0), (rows * shares).sum(axis=1))
        stuck = rising & ~can_rise(problem, rows, level, rising)
        if not stuck.any():  # by rounding: nobody is left behind for ever
            stuck = rising
        open_ &= ~stuck
    return shares


def _points(problem: ShareProblem, open_: np.ndarray, inside: Inside) -> Matrix:
    """Of each job that can still rise; the others' are with the rest of their entity."""
    points = np.zeros(len(open_))
    for entity in dict.fromkeys(problem.entities):
        mine = np.array([owner == entity for owner in problem.entities])
        rows = np.flatnonzero(mine & open_)
        if not len(rows):
            continue
        weight = float(problem.weights[mine].max())
        if inside == "fifo":
            points[rows[0]] = weight
        else:
            points[rows] = weight / len(rows)
    return points
