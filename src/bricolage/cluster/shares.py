"""Shares of time as rounds: Gavel's mechanism (Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, OSDI'20, section 5;
`stanford-futuredata/gavel` @c4fa400).

A policy gives each job a share of time on each kind of device. In a round, jobs are taken by how far they are behind their share:
share over the part of the time given out on that kind that the job had since the shares last changed. Those who never ran there
count as half a round. What fits is placed, kind by kind.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import Apart, ClusterView, Target


@dataclass(frozen=True)
class ShareProblem:
    """What shares are computed from: m jobs, k kinds of devices."""

    rates: Matrix
    """(m, k) steps a second of the gang; 0 where it cannot run."""
    gangs: Matrix
    """(m) devices of the gang."""
    capacity: Matrix
    """(k) devices."""
    weights: Matrix
    """(m)"""
    steps_left: Matrix
    """(m) as far as the policy knows."""
    elapsed_s: Matrix
    """(m) since submission."""
    isolated_s: Matrix
    """(m) that what is done would have taken on an exclusive part of the cluster, one for each job."""
    deadline_s: Matrix
    """(m) left until the deadline; infinite without one."""
    price: Matrix
    """(k) of a device and hour."""
    numbers: tuple[int, ...] = ()
    """(m) of the jobs, for rules that remember them."""
    minibatches: Matrix = field(default_factory=lambda: np.ones(1))
    """(m) in a step of each job, at its present batch size; one number counts for all."""
    entities: tuple[str, ...] = ()
    """(m) whom each belongs to: its queue, else its user."""

    @property
    def isolated_rates(self) -> Matrix:
        """(m) steps a second on that part: capacity / (m gang), rows that exceed one cut to it."""
        part = self.capacity[None, :] / (len(self.gangs) * self.gangs[:, None])
        part /= np.maximum(part.sum(axis=1, keepdims=True), 1.0)
        rates: Matrix = (self.rates * part).sum(axis=1)
        return rates


ShareRule = Callable[[ShareProblem], Matrix]
"""(m, k) shares of time, rows at most 1, columns weighted by gangs at most the capacity."""


class SharePolicy(Apart):
    """Rounds from a rule for shares.

    Args:
        rule: pure: shares from the problem.
        every_s: length of a round.
        recompute_s: shares are computed anew at most so often; jobs that came since then wait.
        aware: whether a round is filled kind by kind from the fastest on; for a rule that is blind to kinds their order is
        random, as
            in the published mechanism.
    """

    def __init__(
        self, rule: ShareRule, every_s: float, recompute_s: float = 0.0, aware: bool = True, seed: int = 0
    ) -> None:
        self.rule, self.every_s, self.recompute_s, self.aware = rule, every_s, recompute_s, aware
        self._shuffle = random.Random(seed)
        self._kinds: tuple[str, ...] = ()
        self._shares: dict[int, Matrix] = {}
        self._had: dict[int, Matrix] = {}
        self._deficit: dict[int, Matrix] = {}
        self._given: Matrix = np.zeros(0)
        self._order: list[int] = []
        self._reset_s = -math.inf
        self._known: tuple[object, ...] = ()
        self._ran: dict[int, tuple[int, float]] = {}
        self._isolated: dict[int, tuple[float, float, float]] = {}
        """By job: isolated seconds of what was done, and at the last look steps left and isolated rate."""

    def ended(self, state: JobState, now: float) -> None:
        """Its part of the last round counts, too."""
        self._account(state, now)
        for kept in (self._shares, self._had, self._deficit, self._ran, self._isolated):
            kept.pop(state.number, None)

    def target(self, view: ClusterView) -> Target:
        """Who runs in this round."""
        self._kinds = self._kinds or view.cluster.kinds
        if not len(self._given):
            self._given = np.zeros(len(self._kinds))
        for state in view.states:
            self._account(state, view.now)
        signature = tuple((state.number, state.phase) for state in view.states), tuple(view.capacity.items())
        if signature != self._known and view.now - self._reset_s >= self.recompute_s:
            self._known = signature
            self._reset(view)
        wanted = self._round(view)
        for number, (kind, _) in wanted.items():
            self._ran[number] = (self._kinds.index(kind), view.now)
        return wanted

    def _account(self, state: JobState, now: float) -> None:
        """Time that a job had since the last round began."""
        if state.number in self._ran:
            kind, since = self._ran.pop(state.number)
            self._had[state.number][kind] += now - since
            self._given[kind] += now - since

    def _reset(self, view: ClusterView) -> None:
        passed = 0.0 if self._reset_s == -math.inf else view.now - self._reset_s
        half = self.every_s / 2
        for state in view.states:
            number = state.number
            had = self._had.get(number)
            if had is not None and number in self._shares:
                owed = self._shares[number] * passed - (had - half)
                self._deficit[number] = self._deficit.get(number, np.zeros(len(self._kinds))) + owed
            self._had[number] = np.full(len(self._kinds), half)
        self._given = np.full(len(self._kinds), half * len(view.states))
        self._reset_s = view.now
        problem = self.problem(view)
        speed = (problem.rates / np.maximum(problem.rates.max(axis=1, keepdims=True), 1e-12)).mean(axis=0)
        self._order = [int(index) for index in np.argsort(-speed, kind="stable")]
        shares = self.rule(problem)
        self._shares = {state.number: shares[row] for row, state in enumerate(view.states)}

    def problem(self, view: ClusterView) -> ShareProblem:
        """What the rule is asked. Isolated time is brought up to date on the way."""
        states = view.states
        problem = share_problem(view, np.zeros(len(states)))
        rates = problem.isolated_rates
        isolated = np.zeros(len(states))
        for row, state in enumerate(states):
            spent, left, rate = self._isolated.get(state.number, (0.0, problem.steps_left[row], math.inf))
            isolated[row] = spent + max(left - problem.steps_left[row], 0.0) / rate
            self._isolated[state.number] = (isolated[row], problem.steps_left[row], rates[row] or math.inf)
        return share_problem(view, isolated)

    def _round(self, view: ClusterView) -> Target:
        none = np.zeros(len(self._kinds))
        free = [view.capacity[kind] for kind in self._kinds]
        wanted: dict[int, tuple[str, int]] = {}
        if not self.aware:
            self._shuffle.shuffle(self._order)
        for index in self._order:
            kind = self._kinds[index]
            queue: list[tuple[float, float, float, int]] = []
            for row, state in enumerate(view.states):
                share = self._shares.get(state.number, none)[index]
                if state.number in self._shares and state.rate_on(kind) > 0.0:
                    part = self._had[state.number][index] / self._given[index]
                    queue.append((share / part, self._deficit.get(state.number, none)[index], share, row))
            queue.sort(reverse=True)  # who has no share of this kind comes last: idle devices help no job
            for *_, row in queue:
                state = view.states[row]
                if not free[index]:
                    break
                if state.number not in wanted and state.job.devices <= free[index]:
                    wanted[state.number] = (kind, state.job.devices)
                    free[index] -= state.job.devices
        return wanted


def share_problem(view: ClusterView, isolated_s: Matrix) -> ShareProblem:
    """The arrays of a view."""
    kinds, states = view.cluster.kinds, view.states
    fits = np.array([[view.capacity[kind] >= s.job.devices for kind in kinds] for s in states], dtype=float)
    return ShareProblem(
        rates=np.array([[state.rate_on(kind) for kind in kinds] for state in states]) * fits,
        gangs=_array(state.job.devices for state in states),
        capacity=_array(view.capacity[kind] for kind in kinds),
        weights=_array(state.job.weight for state in states),
        steps_left=_array(state.predicted_left() for state in states),
        elapsed_s=_array(view.now - state.job.submit_s for state in states),
        isolated_s=isolated_s,
        deadline_s=_array(state.job.deadline_s - view.now for state in states),
        price=_array(view.cluster.price(kind) for kind in kinds),
        numbers=tuple(state.number for state in states),
        minibatches=_array(state.job.phases[state.phase].minibatches for state in states),
        entities=tuple(state.job.queue or state.job.user for state in states),
    )


def _array(values: Iterable[float]) -> Matrix:
    return np.fromiter(values, dtype=np.float64)
