"""Shockwave (Zheng, Pan, Dai, Shen, Wu, Akella, Venkataraman, NSDI'23; `uw-mad-dash/shockwave` @8a44f4a, MIT): a market over the next
rounds, whose equilibrium maximises the product of utilities.

Over `window` rounds of equal devices it maximises the mean of log((progress + planned) / epochs), less `k` times the longest time
that is left after them, such that each job, if it gets its fair part afterwards, ends within `rho_most` times its fair finish. If
that cannot be, the jobs that miss it count with rho^12 instead. Utilities change over time because jobs change their batch size;
what is left is expected from the rate of the present phase.

The published programme has a binary variable for each job and round. Here it has the number of rounds of each job, and devices times
rounds fit into all of the window: a row of rounds with these numbers is found by taking those first that have the most left to take.
That is the same where gangs divide nodes, and far smaller: HiGHS needs milliseconds where Gurobi was given 15 s. The second programme,
which moves jobs of high rho to early rounds, is an order: high rho first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.rounds import filled
from bricolage.cluster.shares import Matrix
from bricolage.cluster.target import ClusterView, Target

_TANGENTS = 12
"""Lines that bound the logarithm from above."""


def planned_rounds(
    gangs: Sequence[int],
    done: Matrix,
    gain: Matrix,
    left_s: Matrix,
    floor: Matrix,
    weights: Matrix,
    *,
    devices: int,
    window: int,
    round_s: float,
    k: float,
    limit_s: float = 10.0,
) -> list[int] | None:
    """How many of the next rounds each job runs; None where the floors cannot be met.

    Args:
        gangs: devices of each job.
        done: share of the job that is done.
        gain: share that one round adds.
        left_s: seconds of running that are left.
        floor: rounds that it must get.
        weights: of the logarithms.
        devices: of the cluster.
        window: rounds.
        round_s: seconds of a round.
        k: weight of the longest rest, in 1 / seconds.
        limit_s: for HiGHS; what it has by then counts.
    """
    n = len(gangs)
    most = np.minimum(window, np.ceil(left_s / round_s - 1e-9))
    # Columns: rounds of each job, its logarithm, the longest rest.
    rows: list[dict[int, float]] = [{row: float(gang) for row, gang in enumerate(gangs)}]
    high = [float(devices * window)]
    for row in range(n):
        start = max(float(done[row]), 1e-6)
        end = min(max(float(done[row] + gain[row] * most[row]), start * (1 + 1e-9)), 1.0) if start < 1 else start
        for at in np.geomspace(start, max(end, start * (1 + 1e-9)), _TANGENTS):
            rows.append({n + row: 1.0, row: -float(gain[row]) / at})  # log(x) <= log(at) + (x - at) / at
            high.append(math.log(at) + (start - at) / at)
        rows.append({2 * n: -1.0, row: -round_s})
        high.append(-float(left_s[row]))
    cost = np.concatenate([np.zeros(n), -weights / (n * window), [k]])
    entries = [(number, column, value) for number, one in enumerate(rows) for column, value in one.items()]
    numbers, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (numbers, columns)), shape=(len(rows), 2 * n + 1)).tocsr()
    low = np.concatenate([np.minimum(floor, most), np.full(n, -np.inf), [0.0]])
    top = np.concatenate([most, np.full(n, np.inf), [np.inf]])
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, -np.inf, high),
        integrality=np.concatenate([np.ones(n), np.zeros(n + 1)]),
        bounds=(low, top),  # type: ignore[arg-type]
        options={"time_limit": limit_s, "mip_rel_gap": 1e-3},
    )
    return None if found.x is None else [round(value) for value in found.x[:n]]


@dataclass
class Shockwave:
    """The market at work, on one kind of devices."""

    every_s: float = 120.0
    window: int = 20
    k: float = 1e-3
    rho_most: float = 1.05
    momentum: float = 0.9
    power: float = 12.0
    _target_s: dict[int, float] = field(default_factory=dict)
    _plan: dict[int, int] = field(default_factory=dict)
    _left: int = 0
    _known: tuple[tuple[int, int], ...] = ()

    def target(self, view: ClusterView) -> Target:
        """The plan's next round; a new plan where jobs came, went or changed, or the old one is over."""
        known = tuple((state.number, state.phase) for state in view.states)
        if known != self._known or self._left == 0:
            self._known, self._left = known, self.window
            self._plan = self._replan(view)
        self._left -= 1
        order = sorted(view.states, key=lambda one: (-self._plan.get(one.number, 0), -self._rho(one, view), one.number))
        planned = [one for one in order if self._plan.get(one.number, 0) > 0]
        wanted = filled(planned, view)
        for number in wanted:
            self._plan[number] -= 1
        rest = sorted(view.states, key=lambda one: (-one.left_s(one.kinds[0]), one.number))
        return filled(rest, view, wanted)

    def _fair_s(self, state: JobState, view: ClusterView) -> float:
        """Its finish time on its fair part, from submission: a moving mean of estimates."""
        share = min(1.0, view.devices / sum(one.job.devices for one in view.states))
        whole = (state.steps_done + state.predicted_left()) / state.rate_on(state.kinds[0]) / share
        before = self._target_s.get(state.number)
        found = whole if before is None else self.momentum * before + (1.0 - self.momentum) * whole
        self._target_s[state.number] = found
        return found

    def _rho(self, state: JobState, view: ClusterView) -> float:
        left = state.left_s(state.kinds[0])
        share = min(1.0, view.devices / sum(one.job.devices for one in view.states))
        return (view.now - state.job.submit_s + left / share) / self._target_s.get(state.number, left)

    def _replan(self, view: ClusterView) -> dict[int, int]:
        states = view.states
        fair = np.array([self._fair_s(state, view) for state in states])
        left_s = np.array([state.left_s(state.kinds[0]) for state in states])
        steps = np.array([state.steps_done + state.predicted_left() for state in states])
        rate = np.array([state.rate_on(state.kinds[0]) for state in states])
        share = min(1.0, view.devices / sum(one.job.devices for one in states))
        age = np.array([view.now - state.job.submit_s for state in states])
        # After the window it goes on with its share; what it must do inside so as to end in time.
        horizon = self.window * self.every_s
        due = self.rho_most * fair - age - horizon
        floor = np.clip(np.ceil((left_s - np.maximum(due, 0.0) * share) / self.every_s), 0, self.window)
        late = age + left_s / share > self.rho_most * fair
        weights = np.where(late, np.array([max(self._rho(state, view), 1.0) for state in states]) ** self.power, 1.0)
        done = np.array([state.steps_done for state in states]) / steps
        gangs = [state.job.devices for state in states]
        given = {"devices": view.devices, "window": self.window, "round_s": self.every_s, "k": self.k}
        plan = planned_rounds(gangs, done, rate * self.every_s / steps, left_s, floor * ~late, np.ones(len(states)), **given)  # type: ignore[arg-type]
        if plan is None or late.any():
            relaxed = planned_rounds(gangs, done, rate * self.every_s / steps, left_s, 0 * floor, weights, **given)  # type: ignore[arg-type]
            plan = relaxed or plan or [self.window] * len(states)
        return {state.number: count for state, count in zip(states, plan, strict=True)}

    def ended(self, state: JobState, now: float) -> None:
        """It leaves the market."""
        del now
        self._target_s.pop(state.number, None)
        self._plan.pop(state.number, None)
