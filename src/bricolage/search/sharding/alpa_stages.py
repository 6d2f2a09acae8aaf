"""A row of layers as stages of a pipeline, each on a group of devices that shares it: Alpa's outer dynamic programme.

Zheng et al., OSDI 2022, section 5. For N micro-batches a pipeline takes the sum of its stages' times and N - 1 times that of the
slowest. Limits of the slowest are tried in ascending order; for each the least sum is found by a dynamic programme over stages,
first layer and devices that are left, in which a stage keeps the activations of as many micro-batches as there are stages from it
on (1F1B). The search ends when no larger limit can pay: Alpa's rule, N t ≥ the best so far, with the least sum of all instead of
t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StageCost:
    """Of some layers on a group of devices."""

    ms: float
    """Of a micro-batch, forward and backward."""
    kept_bytes: float = 0.0
    """On each device for each micro-batch that is on its way."""
    lasting_bytes: float = 0.0
    """On each device."""


StageCosts = Callable[[int, int, int], Sequence[StageCost]]
"""First layer, the layer behind the last, devices: ways to run them, as one that is fast and one that keeps little; none where it
does not run so."""


@dataclass(frozen=True)
class PlannedStage:
    """Layers from `begin` to before `end` on `devices` devices."""

    begin: int
    end: int
    devices: int
    cost: StageCost


@dataclass(frozen=True)
class StagedPlan:
    """Stages in order. `ms` is the formula's: the sum, and N - 1 times the slowest."""

    stages: tuple[PlannedStage, ...]
    ms: float
    tried: int
    """Limits of the slowest stage."""


def submeshes(devices: int, host: int) -> list[int]:
    """Numbers of devices of a group: powers of two up to a host's, then whole hosts, as in Alpa."""
    powers = [1 << power for power in range(max(host, 1).bit_length()) if 1 << power <= min(host, devices)]
    return powers + [count * host for count in range(2, devices // host + 1)]


def plan_stages(
    costs: StageCosts,
    layers: int,
    devices: int,
    micro_batches: int,
    groups: Sequence[int],
    memory_bytes: float = math.inf,
    *,
    most_stages: int | None = None,
    tolerance: float = 0.0,
) -> StagedPlan | None:
    """The stages that take least; None where none fit.

    Args:
        costs: of stages; asked once for each.
        layers: in the row.
        devices: that are used at most.
        micro_batches: in a step.
        groups: numbers of devices that a stage may have.
        memory_bytes: of each device.
        most_stages: at most; by default as many as layers or devices allow.
        tolerance: part of the step by which the plan may be longer than the best: limits that differ by less are not all tried.
    """
    unit = math.gcd(*groups)
    deepest = min(layers, devices // unit, most_stages or layers)
    table = _Table(costs, layers, groups)
    if not len(table.limits):
        return None

    def solve(limit: float) -> tuple[float, list[tuple[int, int, int, int]]] | None:
        return table.solve(limit, deepest, devices // unit, micro_batches, memory_bytes)

    free = solve(math.inf)
    if free is None:
        return None
    tried, best, chosen = 1, math.inf, free[1]
    first, last = 0, len(table.limits) - 1  # the smallest limit that can be kept
    while first < last:
        middle = (first + last) // 2
        tried += 1
        if solve(table.limits[middle]) is None:
            first = middle + 1
        else:
            last = middle
    while first < len(table.limits):
        limit = table.limits[first]
        if free[0] + (micro_batches - 1) * limit >= best * (1.0 - tolerance):
            break
        tried += 1
        solution = solve(limit)
        if solution is not None:
            slowest = max(table.cost[stage_key].ms for stage_key in solution[1])
            total = solution[0] + (micro_batches - 1) * slowest
            if total < best:
                best, chosen = total, solution[1]
        step = limit + tolerance * best / max(1, micro_batches - 1) if math.isfinite(best) else limit
        first = max(first + 1, int(np.searchsorted(table.limits, step)))
    stages = tuple(PlannedStage(*stage_key[:3], table.cost[stage_key]) for stage_key in chosen)
    total = math.fsum(stage.cost.ms for stage in stages) + (micro_batches - 1) * max(stage.cost.ms for stage in stages)
    return StagedPlan(stages, total, tried)


class _Table:
    """Costs of all stages as arrays, by number of devices: [first layer, layer behind the last]."""

    def __init__(self, costs: StageCosts, layers: int, groups: Sequence[int]) -> None:
        self.cost: dict[tuple[int, int, int, int], StageCost] = {}
        unit = math.gcd(*groups)
        stage_costs = {
            (begin, end, group): costs(begin, end, group)
            for group in groups
            for begin in range(layers)
            for end in range(begin + 1, layers + 1)
        }
        ways = max(map(len, stage_costs.values()), default=0)
        self._layers, self._unit = layers, unit
        self._ways = [(group // unit, way) for group in groups for way in range(ways)]
        place = {way_key: number for number, way_key in enumerate(self._ways)}
        shape = (len(self._ways), layers + 1, layers + 1)
        self._ms, self._kept, self._lasting = (np.full(shape, math.inf) for _ in range(3))
        for (begin, end, group), several in stage_costs.items():
            for way, cost in enumerate(several):
                self.cost[begin, end, group, way] = cost
                where = place[group // unit, way], begin, end
                self._ms[where], self._kept[where], self._lasting[where] = cost.ms, cost.kept_bytes, cost.lasting_bytes
        self.limits: np.ndarray = np.array(sorted({cost.ms for cost in self.cost.values()}))

    def solve(
        self, limit: float, deepest: int, devices: int, micro_batches: int, memory: float
    ) -> tuple[float, list[tuple[int, int, int, int]]] | None:
        """The least sum of stages of which none takes longer than the limit, and the stages; devices count in what all groups
        are multiples of."""
        layers = self._layers
        behind = np.full((layers + 1, devices + 1), math.inf)
        behind[layers] = 0.0  # devices may be left
        chosen: list[np.ndarray] = []
        best: tuple[float, int] = (math.inf, 0)
        with np.errstate(invalid="ignore"):  # what cannot run has no memory either
            for stages in range(1, deepest + 1):
                fits = self._lasting + min(stages, micro_batches) * self._kept <= memory
                times = np.where(fits & (self._ms <= limit), self._ms, math.inf)
                now = np.full((layers + 1, devices + 1), math.inf)
                how = np.zeros((layers + 1, devices + 1, 2), np.int64)
                for place, (group, _) in enumerate(self._ways):
                    if group > devices:
                        continue
                    for begin in range(layers):
                        sums = times[place, begin][:, None] + behind[:, : devices + 1 - group]
                        ends = sums.argmin(axis=0)
                        least = sums[ends, np.arange(len(ends))]
                        better = least < now[begin, group:]
                        now[begin, group:][better] = least[better]
                        how[begin, group:][better] = np.stack([ends, np.full(len(ends), place)], axis=1)[better]
                chosen.append(how)
                best = min(best, (float(now[0, devices]), stages))
                behind = now
        if math.isinf(best[0]):
            return None
        return best[0], self._walk(chosen[: best[1]], devices)

    def _walk(self, chosen: Sequence[np.ndarray], devices: int) -> list[tuple[int, int, int, int]]:
        stages, begin = [], 0
        for how in reversed(chosen):
            end, place = (int(number) for number in how[begin, devices])
            group, way = self._ways[place]
            stages.append((begin, end, group * self._unit, way))
            begin, devices = end, devices - group
        assert begin == self._layers
        return stages
