"""The two levels joined: layers as stages on groups of devices, and inside each group the layouts that take least.

Stages and groups are found by `search.sharding.alpa_stages`, from what `search.sharding.layout_programme` predicts for each; what
is returned ran on the simulator of pipelines as 1F1B, with transfers between stages, which the formula of the first level leaves
out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.alpa_stages import PlannedStage, StageCost, plan_stages, submeshes
from bricolage.search.sharding.sharding_problem import ShardingPlan, ShardingProblem
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import PipelineTimes, StageTimes, run_times

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
    shared: bool = False
    """Whether the devices of a host share one way to others."""
    collectives: Callable[[int, Link], Ring] | None = None
    """What was measured of collectives, among a number of devices on a link; None: rings of the links."""

    def ring(self, devices: int) -> Ring:
        """Of a number of them, on the slowest of its links."""
        link = self.inside if devices <= self.host else self.across
        if self.collectives is not None:
            return self.collectives(devices, link)
        return Ring.described(devices, link, self.copy_gbytes)

    def groups(self) -> list[int]:
        """Numbers of devices that a group may have so that groups lie in hosts or cover them whole (`place_groups`)."""
        sizes = submeshes(self.devices, self.host)
        return [size for size in sizes if size % self.host == 0 or self.host % size == 0]

    def message_ms(self, size: float, sender: range, receiver: range) -> float:
        """Of bytes from one group of devices to another, each of which sends and receives its part."""
        if {device // self.host for device in sender} == {device // self.host for device in receiver}:
            return self.inside.ms(size / min(len(sender), len(receiver)))
        return self.across.ms(size if self.shared else size / min(len(sender), len(receiver)))


def place_groups(groups: Sequence[int]) -> list[int]:
    """The first device of each group: large ones come first, so that powers of two lie in hosts, as in Alpa."""
    firsts, behind = [0] * len(groups), 0
    for number in sorted(range(len(groups)), key=lambda group: (-groups[group], group)):
        firsts[number] = behind
        behind += groups[number]
    return firsts


@dataclass(frozen=True)
class LayerRow:
    """Layers in a row, as problems of sharding for one micro-batch."""

    count: int
    choices: Callable[[int, int, Ring], tuple[ShardingProblem, Sequence[ShardingPlan]]]
    """Of layers from the first to before the second on a ring: the problem (forward passes, backward passes, updates that weigh
    less), and choices from the fastest to one that keeps little, none where nothing fits."""
    alike: Callable[[int, int], Hashable]
    """Two runs of layers of which this is equal have one problem, whatever `times` is."""
    forward_share: float
    """Part of the passes' time that is the forward pass."""
    sent_bytes: Callable[[int], float]
    """Of a micro-batch into a layer."""
    times: Callable[[int, int], float] = lambda _begin, _end: 1.0
    """How often a run has what its problem has: of layers that repeat a few are solved in the place of all, in their share of the
    memory."""


@dataclass(frozen=True)
class ShardedPipeline:
    """Stages on groups of devices. Times in milliseconds."""

    stages: tuple[PlannedStage, ...]
    firsts: tuple[int, ...]
    """By stage the first of its devices."""
    choices: tuple[ShardingPlan, ...]
    """By stage, of the problem that was solved for it."""
    step_ms: float
    """By the simulator."""
    formula_ms: float
    bubble: float
    peak_bytes: float
    solved: int
    """Problems of sharding."""
    messages_ms: tuple[float, ...]
    """Of a micro-batch, between each stage and the next."""


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
    stages = stage_plan.stages
    firsts = place_groups([stage.devices for stage in stages])
    ranges = [range(first, first + stage.devices) for first, stage in zip(firsts, stages, strict=True)]
    transfers = [
        hosts.message_ms(row.sent_bytes(after.begin), sender, receiver)
        for after, (sender, receiver) in zip(stages[1:], itertools.pairwise(ranges), strict=True)
    ]
    forward = [stage.cost.ms * row.forward_share for stage in stages]
    backward = [stage.cost.ms - ms for stage, ms in zip(stages, forward, strict=True)]
    ran = simulate_groups(forward, backward, transfers, micro_batches)
    step = max(pass_.end_ms for pass_ in ran.passes)
    choices = tuple(solver.choice(stage) for stage in stages)
    return ShardedPipeline(
        stages,
        tuple(firsts),
        choices,
        step_ms=step,
        formula_ms=stage_plan.ms,
        bubble=ran.bubble,
        peak_bytes=max(_held_bytes(stages, micro_batches)),
        solved=solver.solved,
        messages_ms=tuple(transfers),
    )


def _held_bytes(stages: Sequence[PlannedStage], micro_batches: int) -> list[float]:
    """On each device of each stage."""
    return [
        stage.cost.lasting_bytes + min(len(stages) - place, micro_batches) * stage.cost.kept_bytes
        for place, stage in enumerate(stages)
    ]


def simulate_groups(
    forward: Sequence[float], backward: Sequence[float], transfers: Sequence[float], micro_batches: int
) -> PipelineTimes:
    """1F1B on groups of devices, by milliseconds of passes of a micro-batch, and of messages between stages."""
    schedule = SCHEDULES["1f1b"](len(forward), micro_batches)
    return run_times(schedule, StageTimes(forward, backward, [0.0] * len(forward), transfers), prefetch=True)


class _Solver:
    """Costs of stages; runs of layers that are alike are solved once."""

    def __init__(self, row: LayerRow, hosts: Hosts, micro_batches: int) -> None:
        self._row, self._hosts, self._micro_batches = row, hosts, micro_batches
        self._known: dict[Hashable, tuple[StageCost, ...]] = {}
        self._plans: dict[tuple[Hashable, StageCost], ShardingPlan] = {}
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

    def choice(self, stage: PlannedStage) -> ShardingPlan:
        """The layouts of which a stage has the cost."""
        key = (self._row.alike(stage.begin, stage.end), stage.devices)
        times = self._row.times(stage.begin, stage.end)
        return next(
            self._plans[key, way]
            for way in self._known[key]
            if StageCost(times * way.ms, times * way.kept_bytes, times * way.lasting_bytes) == stage.cost
        )

    def _solve(self, begin: int, end: int, devices: int) -> tuple[StageCost, ...]:
        problem, plans = self._row.choices(begin, end, self._hosts.ring(devices))
        self.solved += 1
        stage_costs = []
        for sharding_plan in plans:
            lasting = lasting_bytes(problem, sharding_plan)
            cost = StageCost(sharding_plan.ms, max(0.0, sharding_plan.peak_bytes - lasting), lasting)
            stage_costs.append(cost)
            self._plans[(self._row.alike(begin, end), devices), cost] = sharding_plan
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
