"""The best pipeline for a row of layers: stages, replicas, schedule, micro-batches and recomputation, all tried, each simulated.

PipeDream, DAPPLE and 2BW plan by formulas of their one schedule; here every choice is a table on the simulator (`work/pipeline`),
so that transfers, unequal stages and what is left of a bubble count as they fall. For a number of stages they are cut so that the
slowest is fastest (`search.placement.contiguous_partition`). A choice is left out without being simulated when a bound of it is as
long as the best plan of its shape takes, or a quarter longer than the best plan of all; and when its memory does not suffice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bricolage.errors import NoPipelinePlan
from bricolage.train.pipeline.layers import even_blocks, in_blocks
from bricolage.train.pipeline.pipeline_problem import DIVIDABLE, PipelinePlan, PipelineProblem, divisors
from bricolage.train.pipeline.stage_cuts import StageCut, peak_of_passes, stages_of
from bricolage.train.pipeline.unlike_groups import GroupedStages, best_groups
from bricolage.train.sharded.fsdp import DividedStages
from bricolage.work.liveness import Lifetime, curve
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import Pass, PipelineSchedule, PipelineTimes, run_times

ASYNCHRONOUS = ("pipedream", "2bw", "pipemare")
"""Schedules that update weights between micro-batches: other training, so only where they are asked for."""
PLANNED = ("1f1b", "dapple", "gpipe", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe-v", "chimera")
"""Schedules with one update a step, those that keep least first."""
_RUNNER_UP = 1.25
"""Times the best plan: slower ones are not looked for, but for those on one device a replica."""
_BLOCKS, _ALL_DEVICES, _FEW_DEVICES = 128, 64, 16
"""Layers in a row, and devices, of which all choices are tried; and devices of a replica where there are more."""
_TWO_STAGES = frozenset({"interleaved", "zb-v", "dualpipe-v"})


def best_plans(
    problem: PipelineProblem, schedules: Sequence[str] = PLANNED, *, count: int = 5, max_micro_batches: int = 64
) -> list[PipelinePlan]:
    """The fastest plans, each of another shape (schedule and replicas), the fastest first; and plain data parallelism, and the
    fastest on one device, where they fit.

    Where devices are unlike, stages are also put on groups of them (`unlike_groups`). All other plans take them as alike, as the
    slowest of them, with the slowest link.

    Of more than 128 layers, stages begin between 128 blocks of them that are as even as can be. On more than 64 devices a replica
    has at most 16, or a power of two, or a divisor of their number. The bound is that of all plans all the same.

    Raises:
        NoPipelinePlan: none fits into the devices' memory.
    """
    if problem.unlike is not None:
        return _best_unlike(problem, schedules, count, max_micro_batches)
    blocks = even_blocks(problem.layer_ms, _BLOCKS)
    if len(blocks) < len(problem.layers):
        rough = replace(problem, layers=in_blocks(problem.layers, blocks))
        rough_plans = best_plans(rough, schedules, count=count, max_micro_batches=max_micro_batches)
        begins = [begin for begin, _ in blocks]
        return [
            replace(rough_plan, begins=tuple(begins[stage] for stage in rough_plan.begins), bound_ms=problem.bound_ms)
            for rough_plan in rough_plans
        ]
    best: dict[tuple[str, bool, int], PipelinePlan] = {}
    least = math.inf
    choices = [(choice.least_ms, choice) for choice in _choices(problem, schedules, max_micro_batches)]
    for bound, choice in sorted(choices, key=lambda bounded_choice: bounded_choice[0]):
        key = (choice.name, choice.devices > 1, choice.replicas)
        incumbent = best.get(key)
        if incumbent is not None and bound >= incumbent.step_ms:
            continue
        if bound > (_RUNNER_UP if count > 1 else 1.0) * least and choice.devices > 1:
            continue
        plan = choice.plan()
        if plan is not None and (incumbent is None or plan.step_ms < incumbent.step_ms):
            best[key] = plan
            least = min(least, plan.step_ms)
    if not best:
        raise NoPipelinePlan(devices=problem.devices, memory=f"{problem.memory_bytes / 1e9:.3g} GB")
    plans = sorted(best.values(), key=lambda candidate: (candidate.step_ms, candidate.peak_bytes))
    plain = [candidate for candidate in plans if candidate.is_data_parallel]
    return plans[:count] + [
        candidate
        for candidate in plans[count:]
        if candidate in (plain[:1] + [other for other in plain if other.replicas in (1, problem.devices)])
    ]


def _best_unlike(
    problem: PipelineProblem, schedules: Sequence[str], count: int, max_micro_batches: int
) -> list[PipelinePlan]:
    """Those on groups of unlike devices, and those that take them as alike."""
    assert problem.unlike is not None
    plans = best_groups(problem, count=count, max_micro_batches=max_micro_batches)
    try:
        plans += best_plans(replace(problem, unlike=None), schedules, count=count, max_micro_batches=max_micro_batches)
    except NoPipelinePlan:
        if not plans:
            sizes = [problem.unlike.memory(device) / 1e9 for device in range(problem.devices)]
            memory = f"{min(sizes):.3g} to {max(sizes):.3g} GB"
            raise NoPipelinePlan(devices=problem.devices, memory=memory) from None
    plans = [replace(plan, bound_ms=problem.bound_ms) for plan in plans]
    return sorted(plans, key=lambda candidate: (candidate.step_ms, candidate.peak_bytes))


def simulate_plan(problem: PipelineProblem, plan: PipelinePlan) -> tuple[PipelineTimes, list[list[tuple[float, int]]]]:
    """When the passes of a plan's first replica run, and by device the bytes that it holds from a moment on, milliseconds."""
    if plan.groups:
        grouped_stages = GroupedStages.of_plan(problem, plan)
        times = grouped_stages.times()
        return times, _held_bytes(times, grouped_stages.lasting, grouped_stages.kept, lambda _stage: 0.0)
    name = plan.schedule if plan.devices > 1 else "1f1b"
    cut = StageCut.at(problem.layers, plan.begins, recompute=plan.recompute)
    choice = _Choice(problem, name, plan.devices, plan.replicas, plan.micro_batches, cut).with_divided(
        frozenset(plan.divided)
    )
    times = choice.times(SCHEDULES[name](plan.devices, plan.micro_batches))
    return times, _held_bytes(times, choice.lasting, choice.kept, choice.gathered)


def _held_bytes(
    times: PipelineTimes,
    lasting: Callable[[int], float],
    kept_of: Callable[[int], tuple[float, float]],
    gathered: Callable[[int], float],
) -> list[list[tuple[float, int]]]:
    """By device the bytes that it holds from a moment on."""
    held: list[list[Lifetime]] = [
        [Lifetime(int(lasting(stage)), 0.0) for stage in stages_of(row)] for row in times.schedule.rows
    ]
    begun: dict[tuple[int, int, int], float] = {}
    for device, stage_pass, start, end in times.passes:
        full, kept = kept_of(stage_pass.stage)
        key = device, stage_pass.stage, stage_pass.micro_batch
        if stage_pass.kind == "F":
            begun[key] = start
        if stage_pass.kind in "BW":
            held[device].append(Lifetime(int(kept), begun.pop(key), end))
        held[device].append(Lifetime(int(full - kept + gathered(stage_pass.stage)), start, end))
    return [curve(lifetimes) for lifetimes in held]


def _choices(problem: PipelineProblem, schedules: Sequence[str], most: int) -> Iterator[_Choice]:
    most_stages = min(len(problem.layers), 2 * problem.devices)
    cuts = {recompute: StageCut.all(problem, most_stages, recompute=recompute) for recompute in (False, True)}
    for replicas in range(1, problem.devices + 1):
        if problem.batch % replicas:
            continue
        for devices in _counts(problem.devices, problem.devices // replicas):
            for name in schedules if devices > 1 else ("1f1b",):
                stages = devices * 2 if name in _TWO_STAGES else devices
                if stages > len(problem.layers):
                    continue
                for recompute in (False, True):
                    cut = cuts[recompute][stages - 1]
                    for micro in divisors(problem.batch // replicas):
                        if micro <= most:
                            yield _Choice(problem, name, devices, replicas, micro, cut)


def _counts(devices: int, most: int) -> Sequence[int]:
    """Devices that a replica may have."""
    if devices <= _ALL_DEVICES:
        return range(1, most + 1)
    counts = {*range(1, _FEW_DEVICES + 1), *divisors(devices), *(1 << power for power in range(most.bit_length()))}
    return sorted(count for count in counts if count <= most)


@dataclass(frozen=True)
class _Choice:
    problem: PipelineProblem
    name: str
    devices: int
    replicas: int
    micro_batches: int
    cut: StageCut
    divided: frozenset[int] = frozenset()
    """Stages whose weights lie divided among replicas."""

    @property
    def samples(self) -> int:
        """Of a micro-batch."""
        return self.problem.batch // self.replicas // self.micro_batches

    @property
    def cores(self) -> float:
        """That a replica has."""
        return self.problem.cores / self.replicas

    @property
    def least_ms(self) -> float:
        """What the simulator cannot fall below: the mean of what devices are busy for; and for each stage its way in, its passes,
        and then either its exchange and update, or the way back."""
        times = self.cut.times(self.problem, self.samples)
        forward, inner, weight = times.forward, times.input_gradient, times.weight_gradient
        at_once = min(self.devices, self.cores)
        best = self.micro_batches * (sum(forward) + sum(inner) + sum(weight)) / at_once
        both = self.name == "chimera"
        micro = self.micro_batches // 2 if both else self.micro_batches
        way_in = way_back = 0.0
        for stage in range(len(self.cut.stages)):
            exchange = self._exchange_ms(stage, self.replicas * (2 if both else 1))
            update, weights = self.cut.sums["update_ms"][stage], micro * weight[stage]
            after = max(weights + exchange + update, way_back)
            if self.can_divide:
                moving = micro * sum(self.dividing.moving_ms(stage))
                after = min(after, moving + max(weights + update / self.replicas, way_back))
            best = max(best, way_in + micro * (forward[stage] + inner[stage]) + after)
            way_in, way_back = way_in + forward[stage], way_back + inner[stage]
        return best

    def plan(self) -> PipelinePlan | None:
        """What the simulator says; None where the schedule does not take so many micro-batches, or memory does not suffice."""
        parts = self.replicas if self.can_divide else 1
        if math.fsum(self.cut.sums["lasting_bytes"]) > parts * self.devices * self.problem.memory_bytes:
            return None
        try:
            schedule = _table(self.name, self.devices, self.micro_batches)
        except ValueError:
            return None
        needed = self._choose_divided(schedule)
        if needed is None:
            return None
        plan = self.with_divided(needed)._simulate_plan(schedule)
        gaining = needed | {stage for stage in range(len(self.cut.stages)) if self.can_divide and self._gains(stage)}
        if plan is None or gaining == needed:
            return plan
        other = self.with_divided(gaining)
        if max(other._peak(row) for row in schedule.rows) > self.problem.memory_bytes:
            return plan
        return min(plan, other._simulate_plan(schedule) or plan, key=lambda candidate: candidate.step_ms)

    def _gains(self, stage: int) -> bool:
        """Whether dividing a stage spares more of the exchange and the update behind its passes than it adds to these."""
        update = self.crowd * self.cut.sums["update_ms"][stage] * (1.0 - 1.0 / self.replicas)
        moving = self.micro_batches * sum(self.dividing.moving_ms(stage))
        return self._exchange_ms(stage, self.replicas) + update > moving

    def _choose_divided(self, schedule: PipelineSchedule) -> frozenset[int] | None:
        """Stages that are divided among replicas: of each device that cannot hold its stages whole as many as it takes, those first
        that keep most. None where that does not suffice."""
        divided_stages: frozenset[int] = frozenset()
        for row in schedule.rows:
            waiting = sorted(stages_of(row), key=lambda stage: self.cut.sums["lasting_bytes"][stage])
            while self.with_divided(divided_stages)._peak(row) > self.problem.memory_bytes:
                if not self.can_divide or not waiting:
                    return None
                divided_stages |= {waiting.pop()}
        return divided_stages

    @property
    def can_divide(self) -> bool:
        """Whether stages may lie divided among replicas."""
        return self.devices > 1 and self.replicas > 1 and self.name in DIVIDABLE

    def with_divided(self, stages: frozenset[int]) -> _Choice:
        """The same with these stages divided."""
        return self if stages == self.divided else replace(self, divided=stages)

    @cached_property
    def dividing(self) -> DividedStages:
        """What dividing stages takes and spares."""
        return DividedStages(self.cut.units, self.divided, self.problem.ring_among(self.replicas))

    @property
    def crowd(self) -> float:
        """The factor by which what all devices do at once takes longer, since they share cores."""
        return max(1.0, min(self.devices * self.replicas / self.problem.cores, self.devices * self.replicas))

    def _simulate_plan(self, schedule: PipelineSchedule) -> PipelinePlan | None:
        peak = max(self._peak(row) for row in schedule.rows)
        pipeline_times = self.times(schedule)
        ends = [0.0] * self.devices
        for pass_ in pipeline_times.passes:
            ends[pass_.device] = max(ends[pass_.device], pass_.end_ms)
        if not schedule.synchronous and self.replicas > 1:
            return None  # replicas would exchange gradients at every update
        exchanges = self._exchanges(schedule)
        updates = [
            self.crowd * math.fsum(self.cut.sums["update_ms"][stage] / self._parts(stage) for stage in stages_of(row))
            for row in schedule.rows
        ]
        step = max(map(sum, zip(ends, exchanges, updates, strict=True)))
        return PipelinePlan(
            self.name if self.devices > 1 else "data parallel" if self.replicas > 1 else "one device",
            len(self.cut.stages),
            devices=self.devices,
            replicas=self.replicas,
            micro_batches=self.micro_batches,
            recompute=self.cut.recompute,
            begins=self.cut.begins,
            step_ms=step,
            bubble=pipeline_times.bubble,
            exchange_ms=max(exchanges),
            peak_bytes=peak,
            bound_ms=self.problem.bound_ms,
            divided=tuple(sorted(self.divided)),
        )

    def _exchanges(self, schedule: PipelineSchedule) -> list[float]:
        """By device the all-reduces of its gradients behind its last pass, in a ring: 2 (p - 1) messages of a pth of the bytes."""
        holders: dict[int, int] = {}
        for row in schedule.rows:
            for stage in stages_of(row):
                holders[stage] = holders.get(stage, 0) + 1
        return [
            sum(
                self._exchange_ms(stage, holders[stage] * self.replicas)
                for stage in stages_of(row)
                if stage not in self.divided
            )
            for row in schedule.rows
        ]

    def times(self, schedule: PipelineSchedule) -> PipelineTimes:
        """When the passes of one replica run."""
        stages = self.cut.times(self.problem, self.samples, self.dividing)
        return run_times(schedule, stages, cores=self.cores, prefetch=self.problem.prefetch)

    def _exchange_ms(self, stage: int, workers: int) -> float:
        return self.problem.all_reduce_ms(self.cut.sums["gradient_bytes"][stage], workers)

    def _parts(self, stage: int) -> int:
        """Into which a stage's weights are divided."""
        return self.replicas if stage in self.divided else 1

    def lasting(self, stage: int) -> float:
        """Bytes of a stage's weights, gradients and optimiser's state on each device that has it."""
        return self.cut.sums["lasting_bytes"][stage] / self._parts(stage)

    def gathered(self, stage: int) -> float:
        """Bytes of weights and gradients that a pass of a divided stage holds whole at once."""
        return self.dividing.gathered_bytes(stage) if stage in self.divided else 0.0

    def kept(self, stage: int) -> tuple[float, float]:
        """Bytes of a micro-batch's activations, and what of them is kept until its backward pass."""
        return self.cut.kept(stage, self.samples)

    def _peak(self, row: Sequence[Pass]) -> float:
        """Bytes of a device: what lasts, and what passes keep; a recomputed stage keeps its input, and all while it goes back."""
        most = peak_of_passes(row, self.kept, self.gathered)
        # The first device of PipeDream keeps a version for each device; PipeMare what passes read, and the mean of changes.
        versions = {"pipedream": self.devices, "2bw": 2, "pipemare": 3}.get(self.name, 1)
        held_stages = stages_of(row)
        most += (versions - 1) * math.fsum(self.cut.sums["gradient_bytes"][stage] for stage in held_stages)
        return most + math.fsum(self.lasting(stage) for stage in held_stages)


@functools.lru_cache(maxsize=512)
def _table(name: str, devices: int, micro_batches: int) -> PipelineSchedule:
    """Of that name, made once."""
    return SCHEDULES[name](devices, micro_batches)
