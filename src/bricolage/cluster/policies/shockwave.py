"""Shockwave (Zheng, Pan, Dai, Shen, Wu, Akella, Venkataraman, NSDI'23; `uw-mad-dash/shockwave` @8a44f4a, MIT): a market over the
next rounds, whose equilibrium maximises the product of utilities.

Over `window` rounds of equal devices it maximises the mean of log((progress + planned) / epochs), less `k` times the longest time
that is left after them, such that each job, if it gets its fair part afterwards, ends within `rho_most` times its fair finish. If
that cannot be for all, the jobs that miss it count with rho^12 instead. Utilities change over time because jobs change their
batch size; what is left is expected by a Dirichlet posterior over batch sizes.

The published programme has a binary variable for each job and round. Here it has the number of rounds of each job, and devices
times rounds fit into all of the window. That is far smaller: HiGHS needs milliseconds where Gurobi was given 15 s. The second
programme, the least sum of weight times mean round, is an order: late jobs that end within a round, who must run in every round
that is left, then by weight over rounds and devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.round_policies import fill_devices
from bricolage.cluster.target_policies import Apart, ClusterView, Target

_BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_LOGS = (math.log(1e-6), *(math.log(base) for base in _BASES[1:]))
"""The logarithm is taken as lines between these points, as published: concave, so that the lowest line counts."""


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
        for (low_x, low_y), (high_x, high_y) in pairwise(zip(_BASES, _LOGS, strict=True)):
            slope = (high_y - low_y) / (high_x - low_x)
            rows.append({n + row: 1.0, row: -float(gain[row]) * slope})
            high.append(low_y + (float(done[row]) - low_x) * slope)
        rows.append({2 * n: -1.0, row: -round_s})
        high.append(-float(left_s[row]))
    cost = np.concatenate([np.zeros(n), -weights / (n * window), [k]])
    entries = [
        (number, column, value) for number, coefficients in enumerate(rows) for column, value in coefficients.items()
    ]
    numbers, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (numbers, columns)), shape=(len(rows), 2 * n + 1)).tocsr()
    low = np.concatenate([np.minimum(floor, most), np.full(n, -np.inf), [0.0]])
    top = np.concatenate([most, np.zeros(n), [np.inf]])
    solution = milp(
        cost,
        constraints=LinearConstraint(matrix, -np.inf, high),
        integrality=np.concatenate([np.ones(n), np.zeros(n + 1)]),
        bounds=(low, top),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-3},
    )
    return None if solution.x is None else [round(value) for value in solution.x[:n]]


@dataclass
class Shockwave(Apart):
    """The market at work, on one kind of devices."""

    every_s: float = 120.0
    window: int = 20
    k: float = 1e-3
    rho_most: float = 1.0
    momentum: float = 0.9
    power: float = 12.0
    again: int = 8
    """Rounds after which it is planned anew, where no job came or went."""
    _fair: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    """By job: the latest estimate of its fair finish, since when it holds, and the integral of those before."""
    _plan: dict[int, int] = field(default_factory=dict)
    _priority: dict[int, tuple[bool, float]] = field(default_factory=dict)
    _left: int = 0
    _known: tuple[int, ...] = ()

    def target(self, view: ClusterView) -> Target:
        """The plan's next round; a new plan where jobs came or went, or the old one is over."""
        numbers = tuple(state.number for state in view.states)
        if numbers != self._known or self._left == 0:
            self._known, self._left = numbers, min(self.again, self.window)
            self._plan = self._replan(view)
        slack = self._left + self.window - min(self.again, self.window)
        order = sorted(
            (state for state in view.states if self._plan.get(state.number, 0) > 0),
            key=lambda job_state: self._rank(job_state.number, slack),
        )
        self._left -= 1
        wanted = fill_devices(order, view)
        for number in wanted:
            self._plan[number] -= 1
        rest = sorted(view.states, key=lambda job_state: (-expected_left_s(job_state), job_state.number))
        return fill_devices(rest, view, wanted)

    def _rank(self, number: int, slack: int) -> tuple[bool, bool, float, int]:
        """Who is late and ends within a round, then who has to run in every round left, then by what an earlier round is worth."""
        ends, worth = self._priority[number]
        return not ends, self._plan[number] < slack, -worth, number

    def _fair_finish(self, state: JobState, share: float, left_s: float, now: float) -> float:
        """When it would end with its part of the devices: the mean over time of past estimates, and a tenth of the latest."""
        latest = state.job.submit_s + (past_s(state) + left_s) / share
        before, since, integral = self._fair.get(state.number, (latest, now, 0.0))
        integral += before * (now - since)
        self._fair[state.number] = (latest, now, integral)
        age = now - state.job.submit_s
        return latest if not integral else self.momentum * integral / age + (1.0 - self.momentum) * latest

    def _replan(self, view: ClusterView) -> dict[int, int]:
        states = view.states
        share = min(1.0, view.devices / len(states))
        left_s = np.array([expected_left_s(state) for state in states])
        fair = np.array([self._fair_finish(s, share, left, view.now) for s, left in zip(states, left_s, strict=True)])
        steps = np.array([state.steps_done + state.predicted_left() for state in states])
        done = np.array([state.steps_done for state in states])
        past = np.array([past_s(state) for state in states])
        now = np.array([state.rate_on(state.kinds[0]) for state in states])
        rate = np.where(done > 0.0, done / np.maximum(past, 1e-9), now)  # planned steps take the mean of those before
        rho = (view.now + left_s / share) / np.maximum(fair, 1.0)
        late = rho > self.rho_most
        weights = np.where(late, np.clip(rho, 1.0, 100.0) ** self.power, 1.0)
        last = late & (left_s < self.every_s)  # the published weight of these, rho^100, is beyond what HiGHS can scale
        # What is left after the window it gets done with its part of the devices; the rest must be inside.
        after = (self.rho_most * fair - view.now - self.window * self.every_s) * share
        floor = np.clip(np.ceil((left_s - np.maximum(after, 0.0)) / self.every_s), 0, self.window)
        gangs, plan = [state.job.devices for state in states], None
        for floors, weight in ((floor, np.ones(len(states))), (last.astype(float), weights)):
            if weight is weights or (after >= 0.0).all():  # who is to end within the window cannot be promised it
                plan = plan or planned_rounds(
                    gangs,
                    done / steps,
                    rate * self.every_s / steps,
                    left_s,
                    floors,
                    weight,
                    devices=view.devices,
                    window=self.window,
                    round_s=self.every_s,
                    k=self.k,
                )
        rounds = plan or [self.window] * len(states)
        # The published second programme: least sum of weight times mean round. One round of a job earlier is worth weight / rounds.
        self._priority = {
            state.number: (bool(end), float(weight) / (max(count, 1) * state.job.devices))
            for state, end, weight, count in zip(states, last, weights, rounds, strict=True)
        }
        return {state.number: count for state, count in zip(states, rounds, strict=True)}

    def ended(self, state: JobState, now: float) -> None:
        """It leaves the market."""
        del now
        self._fair.pop(state.number, None)
        self._plan.pop(state.number, None)


def past_s(state: JobState) -> float:
    """Seconds of running that what is done has taken, on the first of its kinds."""
    kind, phases = state.kinds[0], state.job.phases
    before = sum(phase.steps / phase.rates[kind] for phase in phases[: state.phase])
    return before + state.done / phases[state.phase].rates[kind]


def expected_left_s(state: JobState) -> float:
    """Seconds of running that are expected, on the first of its kinds: steps at each batch size as a Dirichlet posterior has them,
    whose prior is an equal part of all steps for each batch size that the job can have. Of a job with one batch size: what is left
    at its rate."""
    kind = state.kinds[0]
    phases = state.job.phases
    left = state.predicted_left()
    if len(phases) == 1:
        return left / state.rate_on(kind)
    seen: dict[float, float] = {phase.rates[kind]: 0.0 for phase in phases}
    for number, phase in enumerate(phases[: state.phase + 1]):
        seen[phase.rates[kind]] += phase.steps if number < state.phase else state.done
    whole, done = state.steps_done + left, state.steps_done
    prior = whole / len(seen)
    expected = {rate: max(whole * (prior + steps) / (whole + done) - steps, 0.0) for rate, steps in seen.items()}
    total = max(sum(expected.values()), 1e-12)
    return sum(steps / rate for rate, steps in expected.items()) * left / total / state.believed.get(kind, 1.0)
