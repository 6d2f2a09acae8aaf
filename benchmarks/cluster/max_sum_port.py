"""Most throughput as Shockwave's copy of Gavel has it, with which its comparison was made: the sum of steps a second, each job's
steps as they are at its present batch size. So jobs of small models come first, whatever their steps are worth.

`bricolage.cluster.policies.gavel.max_sum` counts each job's rate by its own best, as Gavel's paper does. The published solver
leaves to jobs without a share one that is tiny and larger where their rate is; devices that are left over go in that order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.history.batch_growth import LARGEST, SAMPLES
from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.shares import ShareProblem

_TINY = 1e-9


class MaxSumPort:
    """A rule for shares on one kind of devices.

    Args:
        jobs: of the trace; those whose batch sizes change count epochs.
        rates: steps a second at every batch size.
        kind: of device.
    """

    def __init__(self, jobs: Sequence[TrainingJob], rates: RateTable, kind: str) -> None:
        self._steps = [_steps(job, rates, kind) for job in jobs]

    def __call__(self, problem: ShareProblem) -> Matrix:
        """Devices to the most steps a second for each."""
        rate = np.array(
            [
                _nearest(self._steps[number], float(one))
                for number, one in zip(problem.numbers, problem.rates[:, 0], strict=True)
            ]
        )
        worth = rate / problem.gangs
        shares = _TINY * worth[:, None] / max(float(worth.max()), 1e-12)
        free = float(problem.capacity[0])
        for row in np.argsort(-worth, kind="stable"):
            part = min(1.0, free / float(problem.gangs[row]))
            shares[row, 0] = max(part, shares[row, 0])
            free -= part * float(problem.gangs[row])
        return np.asarray(shares)


def _steps(job: TrainingJob, rates: RateTable, kind: str) -> Mapping[float, float]:
    """Steps a second by the rate in the job's own unit; empty where it counts steps."""
    model, _, size = job.kind.partition(" (batch size ")
    if len(job.phases) == 1 or model not in SAMPLES:
        return {}
    found, batch = {}, int(size.rstrip(")"))
    while batch <= max(LARGEST.get(model, batch), int(size.rstrip(")"))):
        rate = rates.of(f"{model} (batch size {batch})", job.devices).get(kind)
        if rate is not None:
            found[rate / math.ceil(SAMPLES[model] / batch)] = rate
        batch *= 2
    return found


def _nearest(steps: Mapping[float, float], rate: float) -> float:
    return steps[min(steps, key=lambda one: abs(one - rate))] if steps else rate
