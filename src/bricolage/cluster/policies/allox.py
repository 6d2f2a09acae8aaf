"""AlloX (Le, Sun, Chowdhury, Liu, EuroSys'20; `lenhattan86/allox_sim`): least sum of completion times on devices of several kinds.

The job that runs k-th from last on a device delays k jobs, itself included. So the least sum is a matching of jobs with pairs of
device and k, at the cost available + k times run time (Bruno, Coffman, Sethi 1974; Horn 1973). It is computed anew at each event,
and only those are started whose device is free and who come first on it; running jobs stay. The published policy gives each job one
device. A gang is matched here like any other job; once it comes first on a free device, devices of that kind are kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import ClusterView, Stateless, Target

_BEYOND = 2
"""Places on a device beyond an even spread of the jobs."""


def match_jobs(run_s: Matrix, available_s: Sequence[float], places: int) -> list[list[int]]:
    """For each device its jobs, first to last, such that the sum of completion times is least.

    Args:
        run_s: (jobs, devices) seconds; infinite where a job cannot run.
        available_s: of each device, from now.
        places: most jobs for a device.
    """
    devices = run_s.shape[1]
    far = 1e6 * max(float(run_s[np.isfinite(run_s)].max(initial=1.0)), max(available_s, default=0.0), 1.0)
    times = np.where(np.isfinite(run_s), run_s, far)
    cost = np.concatenate([np.asarray(available_s)[None, :] + k * times for k in range(1, places + 1)], axis=1)
    rows, columns = linear_sum_assignment(cost)
    assignments: list[list[tuple[int, int]]] = [[] for _ in range(devices)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if np.isfinite(run_s[row, column % devices]):
            assignments[column % devices].append((-(column // devices), row))
    return [[row for _, row in sorted(pairs)] for pairs in assignments]


@dataclass
class AlloX(Stateless):
    """The matching at work."""

    alpha: float = 1.0
    """Share of users, the least served first, whose jobs take part."""
    foresight: bool = True
    """Whether devices that are still busy take part with the time at which they are expected free; the port in Gavel's code
    looks at free ones only."""

    def target(self, view: ClusterView) -> Target:
        """Running jobs stay; free devices get the first of their queue."""
        running = {state.number: (state.held_kind, state.held) for state in view.states if state.held}
        waiting = self._taking_part([state for state in view.states if not state.held], view)
        devices: list[tuple[str, float]] = []
        free: dict[str, int] = {}
        for kind in view.capacity:
            busy = [state for state in view.states if state.held_kind == kind]
            free[kind] = view.capacity[kind] - sum(state.held for state in busy)
            devices += [(kind, 0.0)] * free[kind]
            devices += (
                [(kind, state.left_s(kind)) for state in busy for _ in range(state.held)] if self.foresight else []
            )
        if not waiting or all(available > 0.0 for _, available in devices):
            return running
        run_s = np.array([[_run_s(state, kind) for kind, _ in devices] for state in waiting])
        places = math.ceil(len(waiting) / len(devices)) + _BEYOND
        queues = match_jobs(run_s, [available for _, available in devices], min(places, len(waiting)))
        heads = [
            (queue[0], kind) for (kind, free_s), queue in zip(devices, queues, strict=True) if queue and free_s == 0.0
        ]
        for row, kind in sorted(heads):
            state = waiting[row]
            if state.job.devices <= free[kind]:
                running[state.number] = (kind, state.job.devices)
            free[kind] -= state.job.devices  # kept for it even where it does not fit yet
        return running

    def _taking_part(self, waiting: list[JobState], view: ClusterView) -> list[JobState]:
        served: dict[str, float] = {}
        for state in view.states:
            served[state.job.user] = served.get(state.job.user, 0.0) + state.attained_s
        users = sorted({state.job.user for state in waiting}, key=lambda user: (served[user], user))
        chosen = set(users[: math.ceil(self.alpha * len(users))])
        return [state for state in waiting if state.job.user in chosen]


def _run_s(state: JobState, kind: str) -> float:
    return state.left_s(kind) if state.rate_on(kind) > 0.0 else math.inf
