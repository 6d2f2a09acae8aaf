"""Policies that choose how many devices a job gets. Each job runs on one kind; which numbers it can run on, its scaling says."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import coo_array

from bricolage.cluster.adaptive import RunSetting
from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import Apart, ClusterView, Target

_GAP = 1e-3
"""That the sum of costs may be above the least one."""


def levels(state: JobState) -> tuple[tuple[int, float], ...]:
    """Numbers of devices, ascending, with their speed; those that are no faster than a smaller number are left out."""
    speed_levels: list[tuple[int, float]] = []
    for devices, speed in sorted(state.job.scaling or ((state.job.devices, 1.0),)):
        if not speed_levels or speed > speed_levels[-1][1]:
            speed_levels.append((devices, speed))
    return tuple(speed_levels)


def speeds(state: JobState, kind: str, node: int) -> list[tuple[int, float, float]]:
    """Numbers of devices of a kind that a job can run on, each with its speed relative to that on its own number, and the batch
    size that gives it, relative to the initial one. With a profile the speed is goodput at the best batch size.

    Args:
        state: of the job.
        kind: of device.
        node: devices of the largest node of the kind.
    """
    batches, noise = state.known_batches()
    if batches is None or kind not in batches.times:
        return [(devices, speed, 1.0) for devices, speed in levels(state)]
    requested, choices = state.job.devices, list[tuple[int, float, float]]()
    base = batches.goodput(kind, requested, requested > node, 1.0, noise)
    for devices, _ in sorted(state.job.scaling or ((requested, 1.0),)):
        if state.fit is not None and devices > state.fit.allowed:
            break
        goodput, scale = batches.best(kind, devices, devices > node, noise)
        if not choices or goodput / base > choices[-1][1]:
            choices.append((devices, goodput / base, scale))
    return choices


class Adapting(Apart):
    """A target policy that chooses batch sizes, too."""

    def __init__(self) -> None:
        self.batches: dict[int, float] = {}

    def settings(self) -> Mapping[int, RunSetting]:
        """Of each job with a profile that runs; said anew in each round, since its noise has changed."""
        return {number: RunSetting(scale) for number, scale in self.batches.items()}

    def adapt(self, view: ClusterView, target: Target) -> Target:
        """Chooses the batch sizes of a target, and gives it back."""
        self.batches = {}
        for state in view.states:
            kind, devices = target.get(state.number, ("", 0))
            if kind and state.job.batches is not None and kind in state.job.batches.times:
                choices = speeds(state, kind, max(view.cluster.nodes(kind)))
                self.batches[state.number] = next(scale for count, _, scale in choices if count == devices)
        return target


@dataclass
class Optimus(Apart):
    """Optimus (Peng, Bao, Chen, Wu, Guo, EuroSys'18; `pengyanghua/optimus`): every 600 s each job gets its least number of
    devices in order of submission; then, again and again, the job gets more whose remaining time falls most for each device more.

    The published form adds workers or parameter servers by the dominant resource; with all-reduce there are only devices.
    """

    every_s: float = 600.0

    def target(self, view: ClusterView) -> Target:
        """Least numbers first, then the largest gains."""
        free = dict(view.capacity)
        at: dict[int, tuple[str, int]] = {}
        for state in view.states:
            least = levels(state)[0][0]
            kinds = sorted(state.kinds, key=lambda kind, s=state: kind != s.held_kind)  # type: ignore[misc]
            kind = next((kind for kind in kinds if free[kind] >= least), "")
            if kind:
                at[state.number] = (kind, 0)
                free[kind] -= least
        heap = [gain for state in view.states if state.number in at for gain in _gain(state, *at[state.number])]
        heapq.heapify(heap)
        by_number = {state.number: state for state in view.states}
        while heap:
            _, number, more = heapq.heappop(heap)
            kind, level = at[number]
            if more <= free[kind]:
                free[kind] -= more
                at[number] = (kind, level + 1)
                for gain in _gain(by_number[number], kind, level + 1):
                    heapq.heappush(heap, gain)
        return {number: (kind, levels(by_number[number])[level][0]) for number, (kind, level) in at.items()}


def _gain(state: JobState, kind: str, level: int) -> list[tuple[float, int, int]]:
    """Seconds that the next level saves for each device more, negative; nothing at the top."""
    speed_levels = levels(state)
    if level + 1 >= len(speed_levels):
        return []
    (now, slow), (then, fast) = speed_levels[level : level + 2]
    left = state.left_s(kind)
    return [(-(left / slow - left / fast) / (then - now), state.number, then - now)]


def satisfactory_share(
    steps: float, rates: Sequence[tuple[int, float]], slots_s: Sequence[float], free: Sequence[int]
) -> list[int] | None:
    """ElasticFlow's minimum satisfactory share: devices in each slot until the deadline, so that the steps are done in time; None
    where they cannot be.

    For a level, slots are filled backwards from the deadline, each with the largest level up to it that is free there; once the
    steps suffice, slots before run at the level below. The least level that works is the share.

    Args:
        steps: to do.
        rates: (devices, steps a second), ascending.
        slots_s: length of each slot up to the deadline.
        free: devices in each slot.
    """
    for top in range(len(rates)):
        plan, left = [0] * len(slots_s), steps
        for slot in reversed(range(len(slots_s))):
            level = top if left > 0 else top - 1
            while level >= 0 and rates[level][0] > free[slot]:
                level -= 1
            if level >= 0:
                plan[slot] = rates[level][0]
                left -= rates[level][1] * slots_s[slot]
        if left <= 1e-9 * steps:
            return plan
    return None


@dataclass
class ElasticFlow(Apart):
    """ElasticFlow (Gu et al., ASPLOS'23; `pkusys/ElasticFlow` @04a0109): jobs with deadlines get their minimum satisfactory share,
    by deadline; a newcomer with whom not all fit is declined. Devices that are left go where a level more saves most for each
    device.

    Declined jobs, and those without a deadline, run on what is left: here every job ends. The published code hands out surplus to
    the least efficient first; here it is the most efficient, as the paper says. One kind of device.
    """

    every_s: float = 240.0
    horizon: int = 400
    """Slots that are planned; a later deadline counts as that far away."""
    declined: set[int] = field(default_factory=set)
    _admitted: set[int] = field(default_factory=set)

    def target(self, view: ClusterView) -> Target:
        """Shares of this slot, then surplus."""
        ((kind, devices),) = view.capacity.items()
        for state in view.states:
            decided = state.number in self.declined or state.number in self._admitted
            if not decided and np.isfinite(state.job.deadline_s):
                trial = [other for other in view.states if other.number in self._admitted] + [state]
                (self._admitted if self._plans(trial, view, kind, devices) is not None else self.declined).add(
                    state.number
                )
        admitted = [state for state in view.states if state.number in self._admitted]
        plans = self._plans(admitted, view, kind, devices) or {}
        at = {number: count for number, count in plans.items() if count}
        left = devices - sum(at.values())
        for state in [*admitted, *(other for other in view.states if other.number not in self._admitted)]:
            least = levels(state)[0][0]
            if state.number not in at and least <= left:
                at[state.number] = least
                left -= least
        return {number: (kind, count) for number, count in self._with_surplus(at, left, view, kind).items()}

    def _plans(
        self, states: Sequence[JobState], view: ClusterView, kind: str, devices: int
    ) -> Mapping[int, int] | None:
        free = [devices] * self.horizon
        plans: dict[int, int] = {}
        for state in sorted(states, key=lambda job_state: (job_state.job.deadline_s, job_state.number)):
            slots = min(int((state.job.deadline_s - view.now) / self.every_s), self.horizon)
            rates = [(count, speed * state.rate_on(kind)) for count, speed in levels(state)]
            plan = satisfactory_share(
                state.predicted_left(), rates, [self.every_s] * max(slots, 0), free[: max(slots, 0)]
            )
            if plan is None:
                if state.number in self._admitted:
                    continue  # it was promised, and something failed since: it takes what is left
                return None
            for slot, count in enumerate(plan):
                free[slot] -= count
            plans[state.number] = plan[0] if plan else 0
        return plans

    def _with_surplus(self, at: dict[int, int], left: int, view: ClusterView, kind: str) -> dict[int, int]:
        states = {state.number: state for state in view.states}
        while left:
            best: tuple[float, int, int] | None = None
            for number, count in at.items():
                speed_levels = levels(states[number])
                level = next(index for index, (devices, _) in enumerate(speed_levels) if devices == count)
                for gain in _gain(states[number], kind, level):
                    if gain[2] <= left and (best is None or gain < best):
                        best = gain
            if best is None:
                break
            at[best[1]] += best[2]
            left -= best[2]
        return at

    def ended(self, state: JobState, now: float) -> None:
        """Its promise is kept, or not."""
        del now
        self._admitted.discard(state.number)


def best_configurations(
    view: ClusterView, costs: Sequence[Sequence[tuple[str, int, float]]], waiting: float, limit_s: float
) -> Target:
    """One configuration for each job, or none, such that the sum of costs is least (an integer programme on HiGHS, within 0.1 %).
    Where the present configurations are as good, they stay.

    Args:
        view: jobs and devices.
        costs: of each job its configurations: kind, number of devices, cost.
        waiting: cost of a job without devices.
        limit_s: seconds after which the best that is known by then is taken.
    """
    choices = [list(_drop_dominated(configs, waiting)) for configs in costs]
    best = {
        state.number: min(configs, key=lambda config: config[2])[:2]
        for state, configs in zip(view.states, choices, strict=True)
        if configs
    }
    if _fits(best, view.capacity):
        return best
    columns = [(row, *config) for row, configs in enumerate(choices) for config in configs]
    m, kinds = len(view.states), list(view.capacity)
    number = np.arange(len(columns))
    one_each = coo_array((np.ones(len(columns)), ([row for row, *_ in columns], number)), shape=(m, len(columns)))
    held = coo_array(
        ([count for *_, count, _ in columns], ([kinds.index(kind) for _, kind, *_ in columns], number)),
        shape=(len(kinds), len(columns)),
    )
    gains = np.array([cost - waiting for *_, cost in columns])
    solution = milp(
        gains,
        constraints=[
            LinearConstraint(one_each, -np.inf, 1),
            LinearConstraint(held, -np.inf, list(view.capacity.values())),
        ],
        integrality=np.ones(len(columns)),
        bounds=(0, 1),
        options={"time_limit": limit_s, "mip_rel_gap": _GAP},
    )
    now = {state.number: (state.held_kind, state.held) for state in view.states if state.held}
    if solution.x is None:
        return now
    chosen = [columns[index] for index in np.flatnonzero(solution.x > 0.5)]
    if now and _total(view, costs, now, waiting) <= sum(cost - waiting for *_, cost in chosen) + 1e-9:
        return now
    return {view.states[row].number: (kind, count) for row, kind, count, _ in chosen}


def _drop_dominated(some: Sequence[tuple[str, int, float]], waiting: float) -> Iterator[tuple[str, int, float]]:
    """Without configurations that cost no less than waiting, or than fewer devices of the same kind: no best choice has them."""
    least: dict[str, float] = {}
    for kind, count, cost in sorted(some, key=lambda config: (config[1], config[2])):
        if cost < least.get(kind, waiting):
            least[kind] = cost
            yield kind, count, cost


def _total(
    view: ClusterView, costs: Sequence[Sequence[tuple[str, int, float]]], target: Target, waiting: float
) -> float:
    """Of the costs above waiting; infinite where a job is to have what it cannot."""
    total = 0.0 if _fits(target, view.capacity) else math.inf
    for state, configs in zip(view.states, costs, strict=True):
        if state.number in target:
            kind, count = target[state.number]
            cost = next(
                (cost for config_kind, devices, cost in configs if (config_kind, devices) == (kind, count)), math.inf
            )
            total += cost - waiting
    return total


def _fits(target: Target, capacity: Mapping[str, int]) -> bool:
    used: dict[str, int] = {}
    for kind, count in target.values():
        used[kind] = used.get(kind, 0) + count
    return all(count <= capacity.get(kind, 0) for kind, count in used.items())


@dataclass
class Sia(Adapting):
    """Sia (Jayaram Subramanya, Arfeen, Lin, Qiao, Jia, Ganger, SOSP'23), from its description: each round an integer programme
    gives each job one configuration of kind and number of devices, or none: least sum of goodput^p, and lambda for each that
    waits.

    Goodput is that of a job's profile at its best batch size (`adaptive.py`), each relative to its slowest configuration; of a job
    without one it is throughput. A running job's other configurations count less by the restart factor (age - restarts * cost) /
    (age + cost); a job at most doubles its devices in a round.
    """

    every_s: float = 60.0
    power: float = -0.5
    waiting: float = 1.1
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        super().__init__()

    def target(self, view: ClusterView) -> Target:
        """The best configurations, and batch sizes."""
        return self.adapt(view, self._choose_configurations(view))

    def _choose_configurations(self, view: ClusterView) -> Target:
        costs = [self.configurations(state, view) for state in view.states]
        return best_configurations(view, costs, self.waiting, self.limit_s)

    def configurations(self, state: JobState, view: ClusterView) -> list[tuple[str, int, float]]:
        """Kinds and numbers of devices that a job can have, with their costs."""
        per_kind = {kind: speeds(state, kind, max(view.cluster.nodes(kind))) for kind in state.kinds}
        most = max(2 * state.held, *(kind_speeds[0][0] for kind_speeds in per_kind.values()))
        choices = [
            (kind, devices, state.rate_on(kind) * speed)
            for kind, kind_speeds in per_kind.items()
            for devices, speed, _ in kind_speeds
            if devices <= min(view.capacity[kind], most)
        ]
        age, cost = max(view.now - state.job.submit_s, self.every_s), view.cluster.restart_s
        factor = max((age - state.restarts * cost) / (age + cost), 0.01)
        least = min((rate for *_, rate in choices), default=1.0)
        costs = []
        for kind, devices, rate in choices:
            stays = not state.held or (kind, devices) == (state.held_kind, state.held)
            costs.append((kind, devices, (rate / least * (1.0 if stays else factor)) ** self.power))
        return costs
