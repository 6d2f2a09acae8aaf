"""Shockwave (Zheng, Pan, Dai, Shen, Wu, Akella, Venkataraman, NSDI'23; `uw-mad-dash/shockwave` @8a44f4a, MIT): a market over the
next rounds, whose equilibrium maximises the product of utilities.

Over `window` rounds of equal devices it maximises the mean of log((progress + planned) / epochs), less `k` times the longest time
that is left after them, such that each job, if it gets its fair part afterwards, ends within `rho_most` times its fair finish. If
that cannot be for all, the jobs that miss it count with rho^12 instead. Utilities change over time because jobs change their
batch size; what is left is expected by a Dirichlet posterior over batch sizes.

The published programme has a binary variable for each job and round. Here it has the number of rounds of each job, and devices
times rounds fit into all of the window. That is far smaller: HiGHS needs milliseconds where Gurobi was given 15 s. The published
solver may stop at 0.1 % of the objective, of which the term of the longest rest is nearly all: in this gap the whole start of a job
goes unnoticed. Here the optimum is computed first; of the plans in that gap then the one counts whose rounds go to jobs with least
left, so that they end soonest. The last programme, the least sum of weight times mean round, is an order: late
jobs that end within a round, who must run in every round that is left, then by weight over rounds and devices.

The published code counts whole epochs, each of whole seconds, so that jobs of short epochs look up to 27 % shorter. Here parts
of epochs count, and exact seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from scipy.optimize import LinearConstraint, OptimizeResult, milp
from scipy.sparse import coo_array

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.round_policies import fill_devices
from bricolage.cluster.target_policies import Apart, ClusterView, Target

_BASES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_GAP = 1e-3
"""Of the objective, relative: plans that close count as equal in the published solver's options."""
_EXACT = 1e-5
"""The same for the bound that plans are compared with."""
_NEARLY = 1e-2
"""The same for the choice among them."""
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
        limit_s: for each of HiGHS' two programmes; what it has by then counts.
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
    bounds = (
        np.concatenate([np.minimum(floor, most), np.full(n, -np.inf), [0.0]]),
        np.concatenate([most, np.zeros(n), [np.inf]]),
    )
    best = _solve(cost, rows, high, bounds, limit_s, _EXACT)
    if best.x is None:
        return None
    scale = max(float(np.abs(cost).max()), 1e-300)
    rows.append({column: float(value) / scale for column, value in enumerate(cost)})
    high.append((float(best.fun) + _GAP * abs(float(best.fun))) / scale)
    sooner = np.concatenate([-1.0 / np.maximum(left_s, round_s), np.zeros(n + 1)])
    soonest = _solve(sooner, rows, high, bounds, limit_s, _NEARLY)
    return [round(value) for value in (best.x if soonest.x is None else soonest.x)[:n]]


def _solve(
    cost: Matrix,
    rows: Sequence[dict[int, float]],
    high: Sequence[float],
    bounds: tuple[Matrix, Matrix],
    limit_s: float,
    gap: float,
) -> OptimizeResult:
    """Least cost with each row at most its limit; the first columns, one for each job, are whole."""
    entries = [(row, column, value) for row, coefficients in enumerate(rows) for column, value in coefficients.items()]
    at, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (at, columns)), shape=(len(rows), len(cost))).tocsr()
    jobs = len(cost) // 2
    return milp(
        cost,
        constraints=LinearConstraint(matrix, -np.inf, high),
        integrality=np.concatenate([np.ones(jobs), np.zeros(jobs + 1)]),
        bounds=bounds,
        options={"time_limit": limit_s, "mip_rel_gap": gap},
    )


@dataclass
class FairFinish:
    """When a job would end with its part of the devices: estimates, each of which holds until the next."""

    latest_s: float
    since_s: float
    """When the latest estimate was made."""
    integral: float = 0.0
    """Of those before, over the time that they held."""
    held_s: float = 0.0
    """That time."""

    def estimate(self, finish_s: float, now: float) -> None:
        """Another one, from now on."""
        held = now - self.since_s
        self.integral, self.held_s = self.integral + self.latest_s * held, self.held_s + held
        self.latest_s, self.since_s = finish_s, now

    def expected(self, now: float, momentum: float) -> float:
        """The mean over time counts `momentum`, the latest one the rest."""
        held = self.held_s + now - self.since_s
        if held <= 0.0:
            return self.latest_s
        mean = (self.integral + self.latest_s * (now - self.since_s)) / held
        return momentum * mean + (1.0 - momentum) * self.latest_s


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
    _fair: dict[int, FairFinish] = field(default_factory=dict)
    _plan: dict[int, int] = field(default_factory=dict)
    _priority: dict[int, tuple[bool, float]] = field(default_factory=dict)
    _left: int = 0
    _known: tuple[int, ...] = ()

    def target(self, view: ClusterView) -> Target:
        """The plan's next round; a new plan where jobs came or went, or the old one is over."""
        numbers = tuple(state.number for state in view.states)
        if numbers != self._known or self._left == 0:
            estimates, self._known = numbers != self._known, numbers
            self._left = min(self.again, self.window)
            self._plan = self._replan(view, estimates)
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

    def _replan(self, view: ClusterView, estimates: bool) -> dict[int, int]:
        states = view.states
        share = min(1.0, view.devices / len(states))
        left_s = np.array([expected_left_s(state) for state in states])
        for state, left in zip(states, left_s, strict=True) if estimates else ():
            latest = state.job.submit_s + (past_s(state) + float(left)) / share
            self._fair.setdefault(state.number, FairFinish(latest, view.now)).estimate(latest, view.now)
        fair = np.array([self._fair[state.number].expected(view.now, self.momentum) for state in states])
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
