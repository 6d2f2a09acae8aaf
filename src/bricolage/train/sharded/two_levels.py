"""The two levels joined: layers as stages on groups of devices, and inside each group the layouts that take least.

Stages and groups are found by `search.sharding.alpa_stages`, from what `search.sharding.layout_programme` predicts for each; what
is returned ran on the simulator of pipelines as 1F1B, with transfers between stages, which the formula of the first level leaves
out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.alpa_stages import PlannedStage, StageCost, plan_stages, submeshes
from bricolage.search.sharding.layout_programme import best_sharding, frontier
from bricolage.search.sharding.sharding_problem import ShardingPlan, ShardingProblem
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import StageTimes, run_times

_DEPTHS = (1, 2, 4)
"""Of the micro-batches that may be on their way at most, parts for which a stage has a way that fits."""


@dataclass(frozen=True)
class Hosts:
    """Devices in hosts: links within one, and between two."""

    devices: int
    host: int
    """Devices of one."""
    inside: Link
    across: Link
    copy_gbytes: float = math.inf
    """10⁹ bytes a second that a device copies within its memory."""
    memory_bytes: float = math.inf

    def ring(self, devices: int) -> Ring:
        """Of a number of them, on the slowest of its links."""
        return Ring.described(devices, self.inside if devices <= self.host else self.across, self.copy_gbytes)


@dataclass(frozen=True)
class LayerRow:
    """Layers in a row, as problems of sharding for one micro-batch."""

    count: int
    problem: Callable[[int, int, Ring], ShardingProblem]
    """Of layers from the first to before the second on a ring: forward passes, backward passes, updates that weigh less."""
    alike: Callable[[int, int], Hashable]
    """Two runs of layers of which this is equal have one problem, whatever `times` is."""
    forward_share: float
    """Part of the passes' time that is the forward pass."""
    sent_bytes: float
    """Of a micro-batch between two layers."""
    times: Callable[[int, int], float] = lambda _begin, _end: 1.0
    """How often a run has what its problem has: of layers that repeat a few are solved in the place of all, in their share of the
    memory."""


@dataclass(frozen=True)
class ShardedPipeline:
    """Stages on groups of devices. Times in milliseconds."""

    stages: tuple[PlannedStage, ...]
    step_ms: float
    """By the simulator."""
    formula_ms: float
    bubble: float
    peak_bytes: float
    solved: int
    """Problems of sharding."""


def plan_sharded(
    row: LayerRow,
    hosts: Hosts,
    micro_batches: int,
    *,
    groups: Sequence[int] | None = None,
    most_stages: int | None = None,
    tolerance: float = 1e-3,
) -> ShardedPipeline:
    """The best stages on groups of devices.

    Args:
        row: the layers.
        hosts: the devices.
        micro_batches: of a step.
        groups: numbers of devices that a stage may have; by default powers of two and whole hosts.
        most_stages: at most.
        tolerance: of the first level, a part of the step.

    Raises:
        NoShardingPlan: no stages fit.
    """
    solver = _Solver(row, hosts, micro_batches)
    stage_plan = plan_stages(
        solver.cost,
        row.count,
        hosts.devices,
        micro_batches,
        groups or submeshes(hosts.devices, hosts.host),
        hosts.memory_bytes,
        most_stages=most_stages,
        tolerance=tolerance,
    )
    if stage_plan is None:
        raise NoShardingPlan(workers=hosts.devices, memory=f"{hosts.memory_bytes / 1e9:.3g} GB")
    times = [stage.cost.ms for stage in stage_plan.stages]
    depth = len(times)
    transfers = [
        (hosts.inside if hosts.devices <= hosts.host else hosts.across).ms(
            row.sent_bytes / min(sender.devices, other.devices)
        )
        for sender, other in zip(stage_plan.stages, stage_plan.stages[1:], strict=False)
    ]
    forward = [ms * row.forward_share for ms in times]
    backward = [ms - way for ms, way in zip(times, forward, strict=True)]
    ran = run_times(SCHEDULES["1f1b"](depth, micro_batches), StageTimes(forward, backward, [0.0] * depth, transfers))
    peak = max(
        sharded_stage.cost.lasting_bytes + min(depth - place, micro_batches) * sharded_stage.cost.kept_bytes
        for place, sharded_stage in enumerate(stage_plan.stages)
    )
    step = max(pass_.end_ms for pass_ in ran.passes)
    return ShardedPipeline(stage_plan.stages, step, stage_plan.ms, ran.bubble, peak, solver.solved)


class _Solver:
    """Costs of stages; runs of layers that are alike are solved once."""

    def __init__(self, row: LayerRow, hosts: Hosts, micro_batches: int) -> None:
        self._row, self._hosts, self._micro_batches = row, hosts, micro_batches
        self._known: dict[Hashable, tuple[StageCost, ...]] = {}
        self.solved = 0

    def cost(self, begin: int, end: int, devices: int) -> tuple[StageCost, ...]:
        """For one micro-batch and for more that are on their way, up to as many as there may be, the fastest way that fits."""
        key = (self._row.alike(begin, end), devices)
        if key not in self._known:
            self._known[key] = self._solve(begin, end, devices)
        times = self._row.times(begin, end)
        deepest = min(self._micro_batches, self._row.count - end + begin + 1)
        depths = sorted({1, *(deepest // part for part in _DEPTHS if deepest >= part)})
        stage_costs = []
        for depth in depths:
            able = [
                stage_cost
                for stage_cost in self._known[key]
                if times * (stage_cost.lasting_bytes + depth * stage_cost.kept_bytes) <= self._hosts.memory_bytes
            ]
            if able:
                stage_costs.append(min(able, key=lambda stage_cost: stage_cost.ms))
        ways = dict.fromkeys(stage_costs)
        return tuple(StageCost(times * way.ms, times * way.kept_bytes, times * way.lasting_bytes) for way in ways)

    def _solve(self, begin: int, end: int, devices: int) -> tuple[StageCost, ...]:
        problem = self._row.problem(begin, end, self._hosts.ring(devices))
        self.solved += 1
        stage_costs = []
        for sharding_plan in frontier(problem):
            lasting = lasting_bytes(problem, sharding_plan)
            stage_costs.append(StageCost(sharding_plan.ms, max(0.0, sharding_plan.peak_bytes - lasting), lasting))
        return tuple(stage_costs)


def lasting_bytes(problem: ShardingProblem, plan: ShardingPlan) -> float:
    """On each device, of what lasts beyond a step."""
    total = 0.0
    for tensor, divided_tensor in enumerate(problem.tensors):
        writer, output = problem.writer[tensor]
        if divided_tensor.lasting_bytes and writer >= 0:
            layout = problem.operators[writer].signatures[plan.choices[writer]].outputs[output]
            total += problem.bytes_of(tensor, layout)
    return total


def data_parallel(problem: ShardingProblem, weights: Sequence[int], samples: Sequence[int]) -> ShardingPlan | None:
    """Plain data parallelism: weights whole, samples divided, the rest as it takes least; None where it does not fit.

    Args:
        problem: the step.
        weights: operators that bring them.
        samples: operators that bring these.
    """
    operators = list(problem.operators)
    for numbers, wanted in ((weights, "R"), (samples, "S(0)")):
        for number in numbers:
            ways = tuple(signature for signature in operators[number].signatures if signature.outputs[0] == wanted)
            operators[number] = replace(operators[number], signatures=ways or operators[number].signatures[:1])
    try:
        return best_sharding(replace(problem, operators=tuple(operators)), limit_s=0.0)
    except NoShardingPlan:
        return None
