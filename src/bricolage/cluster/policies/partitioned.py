"""Rules for shares, computed in parts (POP: Narayanan, Kazhamiaka, Abuzaid, Kraft, Agrawal, Kandula, Boyd, Zaharia, "Solving
Large-Scale Granular Resource Allocation Problems Efficiently with POP", SOSP'21).

Jobs are dealt at random to parts, each of which has its part of the devices of every kind and solves the same problem alone. A
linear programme of a thousand jobs takes more than ten times what ten of a hundred take; the parts are alike, so that little is
lost. Jobs are dealt by the best of their rates relative to the mean, so that parts get as many of each sort (the client splitting
of the paper does it for jobs larger than a part, which there are none of here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.shares import ShareProblem, ShareRule

JOBS_OF_A_PART = 512


def partition_rule(rule: ShareRule, jobs: int = JOBS_OF_A_PART, seed: int = 0) -> ShareRule:
    """A rule that solves parts of at most so many jobs; up to that number it is the rule itself."""

    def shares(problem: ShareProblem) -> Matrix:
        return dealt(problem, rule, -(-len(problem.gangs) // jobs), seed)

    return shares


def dealt(problem: ShareProblem, rule: Callable[[ShareProblem], Matrix], parts: int, seed: int = 0) -> Matrix:
    """Shares of all jobs from `parts` problems.

    Args:
        problem: of m jobs and k kinds.
        rule: solves each part.
        parts: how many.
        seed: of the dealing.
    """
    m = len(problem.gangs)
    if parts <= 1:
        return rule(problem)
    # Ordered by what they ask for, and dealt in turns from a random one: each part gets as many of each sort.
    draw = np.random.default_rng(seed)
    best = problem.rates.argmax(axis=1)
    fastest = np.maximum(problem.rates.max(axis=1), 1e-12)
    gain = fastest / np.maximum(problem.rates.min(axis=1), 1e-9 * fastest)
    order = np.lexsort((draw.random(m), gain, best, -problem.gangs))
    shares = np.zeros_like(problem.rates)
    for part in range(parts):
        rows = np.sort(order[part::parts])
        part_problem = replace(
            problem,
            rates=problem.rates[rows],
            gangs=problem.gangs[rows],
            capacity=problem.capacity * problem.gangs[rows].sum() / problem.gangs.sum(),
            weights=problem.weights[rows],
            steps_left=problem.steps_left[rows],
            elapsed_s=problem.elapsed_s[rows],
            isolated_s=problem.isolated_s[rows],
            deadline_s=problem.deadline_s[rows],
            minibatches=np.broadcast_to(problem.minibatches, m)[rows],
            numbers=tuple(problem.numbers[row] for row in rows) if problem.numbers else (),
            entities=tuple(problem.entities[row] for row in rows) if problem.entities else (),
        )
        shares[rows] = rule(part_problem)
    return shares
