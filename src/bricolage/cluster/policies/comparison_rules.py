"""Rules for shares as the code of published comparisons has them, where that is not the policy of the paper that they are called
after: AlloX, Gandiva-fair and most throughput of `stanford-futuredata/gavel` @c4fa400 and of `uw-mad-dash/shockwave` @8a44f4a,
which grew from it (both MIT; `scheduler/policies/allox.py`, `gandiva_fair_proportional.py`, `max_sum_throughput.py`).

With these the tables of Gavel (OSDI'20) and of Shockwave (NSDI'23) were made. The policies of the papers are `allox.py` and, of
Gavel's own, `gavel.py`; of Gandiva-fair (Chaudhary et al., EuroSys'20) no code is public.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.policies.gavel import largest_sum
from bricolage.cluster.shares import ShareProblem

_TINY = 1e-9
"""Of a job that the largest sum leaves without devices."""


def equal_time(problem: ShareProblem) -> Matrix:
    """Gandiva-fair: of each kind the devices by the jobs as each job's share of time, whatever its gang, (m, k). Shares of gangs
    may add up to more than the devices; rounds give out what there is."""
    part = np.broadcast_to(problem.capacity / len(problem.gangs), problem.rates.shape)
    shares: Matrix = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
    return shares


def most_minibatches(problem: ShareProblem) -> Matrix:
    """Most throughput: the largest sum of mini-batches a second at the present batch sizes, whatever a mini-batch is worth, (m, k).
    So jobs of small models come first.

    The published solver leaves to jobs without devices a share that is tiny, and larger where their rate is. Devices that are left
    over go in that order; here it is a billionth of the rate by the largest."""
    rates = problem.rates * problem.minibatches[:, None]
    per_device = rates / problem.gangs[:, None]
    left_over = _TINY * per_device / max(float(per_device.max()), 1e-300)
    shares: Matrix = np.maximum(largest_sum(problem, rates), left_over)
    return shares


@dataclass
class AlloXShares:
    """AlloX: a share of 1 / gang for a job on one kind of devices, for good. It remembers whom it gave what.

    A matching as in `allox.match_jobs`, of free devices only, with the oldest jobs: `alpha` of those that wait, and at least as
    many as there are free devices. Devices that a gang lacks, and those that are left over, Gavel's rounds fill with jobs that have
    their share elsewhere. So it is preemptive in effect, unlike the policy of the paper.
    """

    alpha: float = 1.0
    """Gavel's is 1, that of Shockwave's copy 0.2."""
    _given: dict[int, Matrix] = field(default_factory=dict)

    def __call__(self, problem: ShareProblem) -> Matrix:
        """Shares of time, (m, k)."""
        shares = np.zeros_like(problem.rates)
        free = problem.capacity.astype(int)
        for row, number in enumerate(problem.numbers):
            if number in self._given:
                shares[row] = self._given[number]
                if shares[row].sum() == 1.0:
                    free -= shares[row].astype(int)
        kinds = np.repeat(np.arange(len(free)), np.maximum(free, 0))
        waiting = [row for row in range(len(shares)) if shares[row].sum() != 1.0]
        waiting.sort(key=lambda row: -problem.elapsed_s[row])
        waiting = waiting[: max(int(self.alpha * len(waiting)), len(kinds))]
        for row, device in self._heads(problem, waiting, kinds):
            shares[row, kinds[device]] = 1.0 / problem.gangs[row]
        self._given = {number: shares[row] for row, number in enumerate(problem.numbers) if shares[row].any()}
        return shares

    @staticmethod
    def _heads(problem: ShareProblem, waiting: list[int], kinds: npt.NDArray[np.intp]) -> list[tuple[int, int]]:
        """The first job of each device, with the device: the largest k of the cost k times run time."""
        if not waiting or not len(kinds):
            return []
        run_s = problem.steps_left[waiting, None] / np.maximum(problem.rates[waiting][:, kinds], 1e-10)
        cost = np.concatenate([k * run_s for k in range(1, len(waiting) + 1)], axis=1)
        first: dict[int, tuple[int, int]] = {}
        for row, column in zip(*(index.tolist() for index in linear_sum_assignment(cost)), strict=True):
            place = (-(column // len(kinds)), waiting[row])
            first[column % len(kinds)] = min(first.get(column % len(kinds), place), place)
        return [(row, device) for device, (_, row) in first.items()]
