"""Space sharing: two jobs on the same devices (Gavel, Narayanan et al., OSDI'20, section 3.1 and 5; `max_min_fairness_packed`
@c4fa400, MIT), and Gandiva's packing as Gavel's code has it (random pairs that are kept where they gain).

Gavel's programme has a variable for each pair of jobs and kind of device. Jobs that have the same rates, gang and weight are alike,
and some best solution treats them alike; so here it has one for each pair of *sorts* of jobs, which is exact and does not grow with
the jobs. Its value says how many devices of a kind shall run such a pair; rounds give them credit for it, largest first, and within
a sort the job runs that has had least. Rates of pairs come with the history's table of rates.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import Anywhere, ClusterView, Target

_GAIN = 1.0
"""Least sum of both relative speeds of a pair that is worth a variable."""
Sort = tuple[str, int, float, tuple[tuple[str, float], ...], int]


@dataclass(frozen=True)
class Combination:
    """One sort of jobs alone, or two together, on devices of a kind."""

    sorts: tuple[int, ...]
    kind: str
    rates: tuple[float, ...]
    """Of each of them."""


@dataclass
class PackedShares(Anywhere):
    """Max-min fairness with pairs, in rounds."""

    every_s: float = 360.0
    recompute_s: float = 0.0
    _known: tuple[object, ...] = ()
    _since: float = -1e18
    _wanted: list[tuple[Combination, float]] = field(default_factory=list)
    """With how many gangs shall run so."""
    _credit: dict[tuple[tuple[Sort, ...], str], float] = field(default_factory=dict)
    _had: dict[int, float] = field(default_factory=dict)
    """By job: what it has done, by what it would have on an equal share in a second."""
    _steps: dict[int, float] = field(default_factory=dict)
    _sorts: list[Sort] = field(default_factory=list)
    _pairs: list[tuple[int, int]] = field(default_factory=list)

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Of the last round."""
        return self._pairs

    def ended(self, state: JobState, now: float) -> None:
        """It leaves its sort."""
        del now
        self._had.pop(state.number, None)
        self._steps.pop(state.number, None)

    def target(self, view: ClusterView) -> Target:
        """Who runs in this round, and with whom."""
        by_sort: dict[Sort, list[JobState]] = {}
        for state in view.states:
            by_sort.setdefault(sort_of(state), []).append(state)
            done = state.steps_done - self._steps.get(state.number, state.steps_done)
            self._steps[state.number] = state.steps_done
            self._had[state.number] = self._had.get(state.number, 0.0) + done / max(_equal(state, view), 1e-12)
        signature = tuple((sort, len(states)) for sort, states in by_sort.items()), tuple(view.capacity.items())
        if signature != self._known and view.now - self._since >= self.recompute_s:
            self._known, self._since, self._sorts = signature, view.now, list(by_sort)
            self._wanted = packed_max_min(
                [states[0] for states in by_sort.values()], [len(s) for s in by_sort.values()], view
            )
        return self._round(view, by_sort)

    def _round(self, view: ClusterView, by_sort: Mapping[Sort, list[JobState]]) -> Target:
        waiting = {
            sort: sorted(states, key=lambda job_state: (-self._had[job_state.number], -job_state.number))
            for sort, states in by_sort.items()
        }  # the last one is next
        free, wanted = dict(view.capacity), dict[int, tuple[str, int]]()
        self._pairs = []
        order: list[tuple[float, int]] = []
        keys = []
        for at, (combination, gangs) in enumerate(self._wanted):
            key = tuple(self._sorts[row] for row in combination.sorts), combination.kind
            keys.append(key)
            self._credit[key] = min(self._credit.get(key, 0.0) + gangs, gangs + 1.0)
            order.append((self._credit[key], at))
        order.sort(reverse=True)
        alone_first = sorted(order, key=lambda entry: len(self._wanted[entry[1]][0].sorts))
        # First by credit; then no device stays idle while a job fits.
        for threshold, queue in ((1e-6, order), (-np.inf, alone_first)):
            for _, at in queue:
                combination, key = self._wanted[at][0], keys[at]
                while self._credit[key] > threshold and self._place(combination, key[0], waiting, free, wanted):
                    self._credit[key] -= 1.0
        for states in waiting.values():  # of sorts that came since
            for state in states:
                kind = next((kind for kind in state.kinds if free[kind] >= state.job.devices), "")
                if kind:
                    wanted[state.number] = kind, state.job.devices
                    free[kind] -= state.job.devices
        return wanted

    def _place(
        self, one: Combination, sorts: tuple[Sort, ...], waiting: dict[Sort, list[JobState]], free: dict[str, int],
        wanted: dict[int, tuple[str, int]],
    ) -> bool:  # fmt: skip
        """A gang of these sorts, if there are jobs and devices left."""
        if any(len(waiting.get(sort, ())) < sorts.count(sort) for sort in sorts):
            return False
        devices = sorts[0][1]
        if free[one.kind] < devices:
            return False
        free[one.kind] -= devices
        chosen = [waiting[sort].pop().number for sort in sorts]
        wanted |= dict.fromkeys(chosen, (one.kind, devices))
        if len(chosen) == 2:
            self._pairs.append((chosen[0], chosen[1]))
        return True


def sort_of(state: JobState) -> Sort:
    """What jobs have in common that a share cannot tell apart."""
    rates = tuple((kind, state.rate_on(kind)) for kind in sorted(state.kinds))
    # Jobs of one kind share the table of their pairs, unless a history says otherwise.
    shared = id(state.job.together) if state.job.together else 0
    return state.job.kind, state.job.devices, state.job.weight, rates, shared


def _equal(state: JobState, view: ClusterView) -> float:
    """Its rate on an equal share of the devices of each kind."""
    return sum(state.rate_on(kind) * count for kind, count in view.capacity.items()) / view.devices


def job_combinations(first: Sequence[JobState], counts: Sequence[int], view: ClusterView) -> list[Combination]:
    """All that are worth a variable; `first` is one job of each sort."""
    combinations = []
    for a, b in combinations_with_replacement(range(len(first)), 2):
        for kind, there in view.capacity.items():
            state, other = first[a], first[b]
            if a == b and there >= state.job.devices and state.rate_on(kind) > 0:
                combinations.append(Combination((a,), kind, (state.rate_on(kind),)))
            if (a == b and counts[a] < 2) or there < state.job.devices:
                continue
            speeds = state.slowed_by(other, kind), other.slowed_by(state, kind)
            if min(speeds) > 0.0 and sum(speeds) > _GAIN:
                rates = state.rate_on(kind) * speeds[0], other.rate_on(kind) * speeds[1]
                combinations.append(Combination((a, b), kind, rates))
    return combinations


def packed_max_min(
    first: Sequence[JobState], counts: Sequence[int], view: ClusterView
) -> list[tuple[Combination, float]]:
    """Max min over jobs of (gang / weight) rate / rate on equal shares: combinations with how many gangs run so.

    Args:
        first: one job of each sort.
        counts: jobs of each sort.
        view: with the devices.
    """
    combinations = job_combinations(first, counts, view)
    if not combinations:
        return []
    kinds, n, m = list(view.capacity), len(combinations), len(first)
    equal = [_equal(state, view) * state.job.weight / state.job.devices for state in first]
    rows, columns, values = list[int](), list[int](), list[float]()
    for at, combination in enumerate(combinations):
        for row, rate in zip(combination.sorts, combination.rates, strict=True):
            # A job runs once at a time; and all of a sort together have so many times its rate.
            rows += [row, m + row]
            columns += [at, at]
            values += [1.0, -rate / (equal[row] * counts[row])]
        rows.append(2 * m + kinds.index(combination.kind))
        columns.append(at)
        values.append(float(first[combination.sorts[0]].job.devices))
    rows += range(m, 2 * m)
    columns += [n] * m
    values += [1.0] * m
    matrix = coo_array((values, (rows, columns)), shape=(2 * m + len(kinds), n + 1)).tocsr()
    right = np.concatenate([np.array(counts, dtype=float), np.zeros(m), np.array(list(view.capacity.values()), float)])
    cost: Matrix = np.zeros(n + 1)
    cost[-1] = -1.0
    solution = linprog(cost, A_ub=matrix, b_ub=right, bounds=(0.0, None), method="highs")
    if solution.x is None:
        raise ArithmeticError(f"HiGHS: {solution.message}")
    return [
        (combination, float(value))
        for combination, value in zip(combinations, solution.x[:n], strict=True)
        if value > 1e-9
    ]


@dataclass
class RandomPacking(Anywhere):
    """Gandiva's packing as Gavel's code compares with it: under overload random pairs of waiting and running jobs share devices,
    and a pair that gains nothing is not tried again. Who has waited longest comes first."""

    every_s: float = 360.0
    seed: int = 0
    _bad: set[tuple[int, int]] = field(default_factory=set)
    _pairs: list[tuple[int, int]] = field(default_factory=list)

    def pairs(self) -> Sequence[tuple[int, int]]:
        """Of the last round."""
        return self._pairs

    def ended(self, state: JobState, now: float) -> None:
        """What was tried with it can go."""
        del now
        self._bad = {pair for pair in self._bad if state.number not in pair}

    def target(self, view: ClusterView) -> Target:
        """Who runs alone as long as all fit; then random pairs."""
        free, wanted = dict(view.capacity), dict[int, tuple[str, int]]()
        self._pairs = []
        order = sorted(
            view.states,
            key=lambda job_state: (
                job_state.held > 0,
                job_state.since_s if job_state.held else job_state.waits_since_s,
            ),
        )
        draw = random.Random(f"{self.seed}/{view.now}")
        over = sum(state.job.devices for state in view.states) > view.devices
        left = list(order)
        while left:
            state = left.pop(0)
            kinds = [kind for kind in state.kinds if free[kind] >= state.job.devices]
            if not kinds:
                continue
            kind = state.held_kind if state.held_kind in kinds else draw.choice(kinds)
            wanted[state.number] = kind, state.job.devices
            free[kind] -= state.job.devices
            mate = self._mate(state, left, kind, draw) if over else None
            if mate is not None:
                left.remove(mate)
                wanted[mate.number] = kind, state.job.devices
                self._pairs.append((state.number, mate.number))
        return wanted

    def _mate(self, state: JobState, others: Sequence[JobState], kind: str, draw: random.Random) -> JobState | None:
        """A random one that fits with it; what the pair gains is seen once it has run."""
        candidates = [
            other
            for other in others
            if other.job.devices == state.job.devices
            and _pair(state, other) not in self._bad
            and min(state.slowed_by(other, kind), other.slowed_by(state, kind)) > 0.0
        ]
        if not candidates:
            return None
        mate = state.mate if state.mate in candidates and state.held_kind == kind else draw.choice(candidates)
        if mate is not None and state.slowed_by(mate, kind) + mate.slowed_by(state, kind) <= 1.0:
            self._bad.add(_pair(state, mate))
        return mate


def _pair(a: JobState, b: JobState) -> tuple[int, int]:
    return min(a.number, b.number), max(a.number, b.number)
