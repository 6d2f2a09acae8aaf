"""AlloX as Gavel's code has it, with which both published tables were made: a share of one for a job on one kind of devices, for
good.

It looks at free devices only, takes the oldest jobs first and as many as `alpha` of them or as there are free devices (Gavel's
default is all, that of Shockwave's copy a fifth), and gives a
gang of s devices (in Shockwave's copy) a share of 1/s. What devices are left over Gavel's rounds fill with jobs that have their
share elsewhere: so it is preemptive in effect, unlike the policy of the paper, which is `bricolage.cluster.policies.allox`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linear_sum_assignment

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.shares import ShareProblem


@dataclass
class AlloXPort:
    """A rule for shares that remembers whom it gave what."""

    alpha: float = 1.0
    _given: dict[int, Matrix] = field(default_factory=dict)

    def __call__(self, problem: ShareProblem) -> Matrix:
        shares = np.zeros_like(problem.rates)
        free = problem.capacity.astype(int).copy()
        for row, number in enumerate(problem.numbers):
            if number in self._given:
                shares[row] = self._given[number]
                if shares[row].sum() == 1.0:
                    free -= shares[row].astype(int)
        devices = np.repeat(np.arange(len(free)), np.maximum(free, 0))
        waiting = [row for row in range(len(shares)) if shares[row].sum() != 1.0]
        waiting.sort(key=lambda row: -problem.elapsed_s[row])
        waiting = waiting[: max(int(self.alpha * len(waiting)), len(devices))]
        if waiting and len(devices):
            run = problem.steps_left[waiting, None] / np.maximum(problem.rates[waiting][:, devices], 1e-10)
            cost = np.concatenate([k * run for k in range(1, len(waiting) + 1)], axis=1)
            first: dict[int, tuple[int, int]] = {}
            for row, column in zip(*linear_sum_assignment(cost), strict=True):
                place = (-(column // len(devices)), waiting[row])
                first[column % len(devices)] = min(first.get(column % len(devices), place), place)
            for device, (_, row) in first.items():
                shares[row, devices[device]] = 1.0 / problem.gangs[row]
        self._given = {number: shares[row] for row, number in enumerate(problem.numbers) if shares[row].any()}
        return shares
