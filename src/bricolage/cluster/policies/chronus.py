"""Chronus (Gao, Ye, Sun, Wen, Zhang, SoCC'21; `S-Lab-System-Group/ChronusArtifact`, MIT), from its description: devices are leased,
and an integer programme packs jobs with deadlines into the grid of leases; the others share what is left, shortest first.

A job with a deadline needs so many leases before it; the programme keeps as many deadlines as it can, gangs counted, and gives
early leases where it is free to. Deadlines are hard ones here: the values of late ends, which soft deadlines have, are in no
history.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from bricolage.cluster.policies.round_policies import fill_devices
from bricolage.cluster.target_policies import Apart, ClusterView, Target


def packed_leases(
    gangs: Sequence[int], needed: Sequence[int], before: Sequence[int], devices: int, limit_s: float = 5.0
) -> list[set[int]]:
    """For each job the leases that it gets, by number from 0: as many as it needs and before its deadline, or none.

    Args:
        gangs: devices of each job.
        needed: leases that it needs.
        before: its leases must have smaller numbers.
        devices: of the cluster.
        limit_s: for HiGHS; what it has by then counts.
    """
    cells = [(row, lease) for row, most in enumerate(before) for lease in range(most) if needed[row] <= most]
    n, m = len(cells), len(gangs)
    if not n:
        return [set() for _ in gangs]
    horizon = max(lease for _, lease in cells) + 1
    rows, columns = np.array([row for row, _ in cells]), np.arange(n)
    leases = np.array([lease for _, lease in cells])
    # Columns: cells, then whether each job is kept. A job has as many cells as it needs where it is, and none where not.
    whole = coo_array(
        (np.concatenate([np.ones(n), -np.array(needed, dtype=float)]), (np.concatenate([rows, np.arange(m)]),
         np.concatenate([columns, n + np.arange(m)]))), shape=(m, n + m),
    )  # fmt: skip
    room = coo_array((np.array(gangs, dtype=float)[rows], (leases, columns)), shape=(horizon, n + m))
    worth = np.concatenate([1e-3 * leases / (horizon * n), -np.ones(m)])
    solution = milp(
        worth,
        constraints=[LinearConstraint(whole.tocsr(), 0, 0), LinearConstraint(room.tocsr(), -np.inf, devices)],
        integrality=np.ones(n + m),
        bounds=(0, 1),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-4},
    )
    chosen: list[set[int]] = [set() for _ in gangs]
    for column in np.flatnonzero(solution.x[:n] > 0.5) if solution.x is not None else ():
        chosen[rows[column]].add(int(leases[column]))
    return chosen


@dataclass
class Chronus(Apart):
    """The grid at work, on one kind of devices."""

    every_s: float = 600.0
    window: int = 48
    """Leases that are planned; a later deadline counts as that of the last, with what must be done by then."""

    def target(self, view: ClusterView) -> Target:
        """Who has a lease from now on."""
        due = [state for state in view.states if math.isfinite(state.job.deadline_s)]
        needed, before = [], []
        for state in due:
            left = state.fastest_left_s() + (view.cluster.restart_s if not state.held else 0.0)
            leases = math.ceil(left / self.every_s - 1e-9)
            room = int((state.job.deadline_s - view.now) // self.every_s)
            needed.append(max(leases - max(room - self.window, 0), 1))
            before.append(max(min(room, self.window), 0))
        plan = packed_leases([state.job.devices for state in due], needed, before, view.devices)
        first = [state for state, leases in zip(due, plan, strict=True) if 0 in leases]
        first.sort(key=lambda state: (state.job.deadline_s, state.number))
        kept = fill_devices(first, view)
        rest = [state for state in view.states if state.number not in kept]
        rest.sort(key=lambda state: (state.fastest_left_s(), state.number))
        return fill_devices(rest, view, kept)
