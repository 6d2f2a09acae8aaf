"""Stages on groups of unlike devices: which layers, devices and micro-batches each has, so that the step is shortest.

Every ordered choice of groups is tried where these are few, and else runs of devices in the order of their speed. Within a group
micro-batches are dealt by speed, so that the busiest device ends first. Stages are cut at all places where that is few choices, and
else so that the slowest is fastest (a dynamic programme over prefixes, with each group's speed). A choice is simulated unless its
bound, the way in, the passes of its busiest device and the way out, is as long as the best plan of its shape takes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from bricolage.train.pipeline.layers import even_blocks, in_blocks
from bricolage.train.pipeline.pipeline_problem import (
    PipelinePlan,
    PipelineProblem,
    PlannedLayer,
    UnlikeDevices,
    divisors,
)
from bricolage.train.pipeline.stage_cuts import PassMs, StageCut, pass_ms, peak_of_passes
from bricolage.work.pipeline.group_schedule import GROUPS, StageGroup, ahead_of, grouped
from bricolage.work.pipeline.table import DeviceStageTimes, PipelineSchedule, PipelineTimes, run_times

_BLOCKS = 48
"""Layers in a row of which all cuts may be looked at."""
_ARRANGEMENTS, _CUTS = 1500, 1000
"""Choices of groups of which all are tried; and of groups and cuts. Of more, runs by speed, and one cut of each."""
_SIMULATED = 400
"""Choices that are simulated, those of the lowest bounds first, beyond the best of each shape by its bound."""
_RUNNER_UP = 1.25
"""Times the best plan: slower ones are not looked for."""
_AHEAD = (1, 2)
"""Forward passes ahead, as in 1F1B and as in DAPPLE's policy B."""

_PASS_FIELDS = ("forward_ms", "forward_start_ms", "input_gradient_ms", "backward_start_ms", "weight_gradient_ms")
Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""By stage its devices."""


class LayerSums:
    """Sums over neighbouring layers, by device."""

    def __init__(self, unlike: UnlikeDevices) -> None:
        names = [name for name in vars(unlike.layers[0][0]) if name != "name"]
        self._prefixes: list[dict[str, list[float]]] = [
            {name: [0.0, *itertools.accumulate(getattr(layer, name) for layer in layers)] for name in names}
            for layers in unlike.layers
        ]

    def field(self, device: int, name: str, begin: int, end: int) -> float:
        """Of a field of layers, from `begin` to before `end`."""
        prefix = self._prefixes[device][name]
        return prefix[end] - prefix[begin]

    def between(self, device: int, begin: int, end: int) -> dict[str, float]:
        """Of all fields that passes rest on."""
        return {name: self.field(device, name, begin, end) for name in _PASS_FIELDS}


@dataclass(frozen=True)
class GroupedStages:
    """A choice of stages, groups and micro-batches, and what it takes."""

    problem: PipelineProblem
    sums: LayerSums
    begins: tuple[int, ...]
    groups: tuple[StageGroup, ...]
    micro_batches: int
    recompute: bool

    @classmethod
    def of_plan(cls, problem: PipelineProblem, plan: PipelinePlan) -> GroupedStages:
        """That of a plan."""
        assert problem.unlike is not None
        sums = LayerSums(problem.unlike)
        return cls(problem, sums, plan.begins, plan.groups, plan.micro_batches, plan.recompute)

    @property
    def unlike(self) -> UnlikeDevices:
        """The devices."""
        assert self.problem.unlike is not None
        return self.problem.unlike

    @property
    def samples(self) -> int:
        """Of a micro-batch."""
        return self.problem.batch // self.micro_batches

    @cached_property
    def cuts(self) -> list[StageCut]:
        """By device the stages with their times there."""
        return [StageCut.at(layers, self.begins, recompute=self.recompute) for layers in self.unlike.layers]

    def _layers(self, stage: int) -> tuple[int, int]:
        """The first of a stage, and that behind its last."""
        return self.begins[stage], (*self.begins, len(self.problem.layers))[stage + 1]

    def passes(self, stage: int, device: int) -> PassMs:
        """Of a micro-batch through a stage on a device."""
        sums = self.sums.between(device, *self._layers(stage))
        return pass_ms(sums, self.samples, self.problem.start_ms, recompute=self.recompute)

    @cached_property
    def schedule(self) -> PipelineSchedule:
        """The passes."""
        return grouped(self.groups, self.problem.devices)

    def sent_ms(self, boundary: int, source: int, target: int) -> float:
        """Of what a micro-batch hands on, from one device to another."""
        sent_bytes = self.cuts[source].stages[boundary][-1].sent_bytes
        return self.unlike.link(source, target).ms(self.samples * sent_bytes)

    def times(self) -> PipelineTimes:
        """When the passes run.

        Raises:
            ValueError: passes wait for one another in a circle.
        """
        stage_times = [cut.times(self.problem, self.samples) for cut in self.cuts]
        times = DeviceStageTimes(stage_times, self.sent_ms)
        return run_times(self.schedule, times, prefetch=self.problem.prefetch)

    def lasting(self, stage: int) -> float:
        """Bytes of a stage's weights, gradients and optimiser's state on each device of its group."""
        return self.cuts[0].sums["lasting_bytes"][stage]

    def kept(self, stage: int) -> tuple[float, float]:
        """Bytes of a micro-batch's activations, and what of them is kept until its backward pass."""
        return self.cuts[0].kept(stage, self.samples)

    def exchange_ms(self, stage: int) -> float:
        """Of adding up a group's gradients: in a ring, whose slowest link counts."""
        devices = self.groups[stage].devices
        part = self.sums.field(devices[0], "gradient_bytes", *self._layers(stage)) / len(devices)
        pairs = itertools.combinations(devices, 2)
        return 2 * (len(devices) - 1) * max((self.unlike.link(*pair).ms(part) for pair in pairs), default=0.0)

    def update_ms(self, stage: int) -> float:
        """Of the slowest device of a group."""
        layers = self._layers(stage)
        return max(self.sums.field(device, "update_ms", *layers) for device in self.groups[stage].devices)

    @property
    def least_ms(self) -> float:
        """What the simulator cannot fall below: the way in, the passes of a device, and then the exchange or the way back."""
        best = way_in = way_back = 0.0
        for stage, group in enumerate(self.groups):
            passes = [self.passes(stage, device) for device in group.devices]
            busy = max(count * times.both_ms for count, times in zip(group.micro_batches, passes, strict=True))
            after = max(self.exchange_ms(stage) + self.update_ms(stage), way_back)
            best = max(best, way_in + busy + after)
            way_in += min(times.forward for times in passes)
            way_back += min(times.input_gradient + times.weight_gradient for times in passes)
        return best

    def peaks(self) -> list[tuple[int, float]]:
        """Devices of groups with the bytes that they hold at most."""
        return [
            (device, self.lasting(stage) + peak_of_passes(self.schedule.rows[device], self.kept, lambda _stage: 0.0))
            for stage, group in enumerate(self.groups)
            for device in group.devices
        ]

    def plan(self) -> PipelinePlan | None:
        """What the simulator says; None where a device's memory does not suffice, or passes would wait in a circle."""
        peaks = self.peaks()
        if any(peak > self.unlike.memory(device) for device, peak in peaks):
            return None
        try:
            times = self.times()
        except ValueError:
            return None
        ends = [0.0] * len(self.groups)
        for timed in times.passes:
            ends[timed.one.stage] = max(ends[timed.one.stage], timed.end_ms)
        exchanges = [self.exchange_ms(stage) for stage in range(len(self.groups))]
        updates = [self.update_ms(stage) for stage in range(len(self.groups))]
        return PipelinePlan(
            GROUPS,
            len(self.groups),
            devices=self.problem.devices,
            replicas=1,
            micro_batches=self.micro_batches,
            recompute=self.recompute,
            begins=self.begins,
            step_ms=max(map(sum, zip(ends, exchanges, updates, strict=True))),
            bubble=times.bubble,
            exchange_ms=max(exchanges),
            peak_bytes=max(peak for _, peak in peaks),
            bound_ms=self.problem.bound_ms,
            groups=self.groups,
        )


def best_groups(problem: PipelineProblem, *, count: int = 5, max_micro_batches: int = 64) -> list[PipelinePlan]:
    """The fastest plans on groups of the problem's unlike devices, each with other sizes of groups, the fastest first; none where
    no memory suffices. Of more than 48 layers, stages begin between 48 blocks of them that are as even as can be."""
    unlike = problem.unlike
    assert unlike is not None
    blocks = even_blocks(problem.layer_ms, _BLOCKS)
    if len(blocks) < len(problem.layers):
        rough_devices = replace(unlike, layers=tuple(in_blocks(layers, blocks) for layers in unlike.layers))
        rough = replace(problem, layers=in_blocks(problem.layers, blocks), unlike=rough_devices)
        first = [begin for begin, _ in blocks]
        return [
            replace(plan, begins=tuple(first[begin] for begin in plan.begins), bound_ms=problem.bound_ms)
            for plan in best_groups(rough, count=count, max_micro_batches=max_micro_batches)
        ]
    best: dict[tuple[int, ...], PipelinePlan] = {}
    least, simulated = math.inf, 0
    choices = [(choice.least_ms, choice) for choice in _choices(problem, unlike, max_micro_batches)]
    for bound, choice in sorted(choices, key=lambda bounded_choice: bounded_choice[0]):
        shape = tuple(len(group.devices) for group in choice.groups)
        incumbent = best.get(shape)
        if bound > _RUNNER_UP * least or (incumbent is not None and bound >= incumbent.step_ms):
            continue
        if simulated >= _SIMULATED and incumbent is not None:
            continue
        plan, simulated = choice.plan(), simulated + 1
        if plan is not None and (incumbent is None or plan.step_ms < incumbent.step_ms):
            best[shape] = plan
            least = min(least, plan.step_ms)
    return sorted(best.values(), key=lambda plan: (plan.step_ms, plan.peak_bytes))[:count]


def equal_shares(problem: PipelineProblem) -> PipelinePlan | None:
    """Plain data parallelism: a micro-batch on each device. None where these do not divide the batch, or memory is lacking."""
    assert problem.unlike is not None
    if problem.batch % problem.devices:
        return None
    ones = (1,) * problem.devices
    group = StageGroup(tuple(range(problem.devices)), ones, ones)
    sums = LayerSums(problem.unlike)
    return GroupedStages(problem, sums, (0,), (group,), problem.devices, recompute=False).plan()


def _choices(problem: PipelineProblem, unlike: UnlikeDevices, most: int) -> Iterator[GroupedStages]:
    stages = min(len(problem.layers), len(unlike.names))
    arrangements = list(itertools.islice(arrange_groups(alike_devices(unlike), stages), _ARRANGEMENTS + 1))
    if len(arrangements) > _ARRANGEMENTS:
        arrangements = list(itertools.islice(_runs_by_speed(unlike, stages), _ARRANGEMENTS))
    count, sums = len(problem.layers), LayerSums(unlike)
    every = sum(math.comb(count - 1, len(groups) - 1) for groups in arrangements) <= _CUTS
    micro_batches = [micro for micro in divisors(problem.batch) if micro <= most]
    for groups in arrangements:
        for recompute in (False, True):
            if every:
                cuts = [(0, *rest) for rest in itertools.combinations(range(1, count), len(groups) - 1)]
            else:
                cuts = [_cut_by_speed(unlike, groups, recompute=recompute)]
            for begins, micro in itertools.product(cuts, micro_batches):
                yield from _deal_stages(problem, sums, groups, begins, micro=micro, recompute=recompute)


def _deal_stages(
    problem: PipelineProblem,
    sums: LayerSums,
    groups: Groups,
    begins: tuple[int, ...],
    *,
    micro: int,
    recompute: bool,
) -> Iterator[GroupedStages]:
    """With micro-batches dealt by speed; nothing where a device would get none."""
    rough = GroupedStages(problem, sums, begins, (), micro, recompute)
    counts = []
    for stage, devices in enumerate(groups):
        counts.append(share_micro_batches([rough.passes(stage, device).both_ms for device in devices], micro))
        if not all(counts[-1]):
            return
    tables = []
    for times_ahead in _AHEAD:
        ahead = ahead_of([len(devices) for devices in groups], counts, times_ahead)
        table = tuple(
            StageGroup(devices, tuple(mine), ahead_mine)
            for devices, mine, ahead_mine in zip(groups, counts, ahead, strict=True)
        )
        if table not in tables:
            tables.append(table)
            yield replace(rough, groups=table)


def share_micro_batches(each: Sequence[float], micro: int) -> list[int]:
    """By device its number of micro-batches, such that the longest busy one is so for as short as can be: each to the device that
    would end first. `each`: milliseconds of one by device."""
    counts = [0] * len(each)
    for _ in range(micro):
        first = min(range(len(each)), key=lambda device: ((counts[device] + 1) * each[device], device))
        counts[first] += 1
    return counts


def alike_devices(unlike: UnlikeDevices) -> list[list[int]]:
    """Devices in classes whose members may change places: equal layers and memory, and equal links to all others."""
    classes: list[list[int]] = []
    everyone = range(len(unlike.names))

    def link(source: int, target: int) -> tuple[float, float]:
        between = unlike.link(source, target)
        return between.gbytes, between.latency_us

    def alike(first: int, second: int) -> bool:
        if unlike.layers[first] != unlike.layers[second] or unlike.memory(first) != unlike.memory(second):
            return False
        return all(link(first, other) == link(second, other) for other in everyone if other not in (first, second))

    for device in everyone:
        for members in classes:
            if all(alike(device, member) for member in members):
                members.append(device)
                break
        else:
            classes.append([device])
    return classes


def _runs_by_speed(unlike: UnlikeDevices, stages: int) -> Iterator[Groups]:
    """Of the fastest devices, in the order of their speed, all divisions into runs, in either direction: those with few runs first,
    and of these those with all devices."""
    order = sorted(
        range(len(unlike.names)), key=lambda device: (-unlike.speeds[device], -unlike.memory(device), device)
    )
    for parts in range(1, stages + 1):
        for count in range(len(order), max(2, parts) - 1, -1):
            for cuts in itertools.combinations(range(1, count), parts - 1):
                ends = itertools.pairwise([0, *cuts, count])
                groups = tuple(tuple(sorted(order[begin:end])) for begin, end in ends)
                yield groups
                if parts > 1:
                    yield groups[::-1]


def arrange_groups(classes: Sequence[Sequence[int]], stages: int) -> Iterator[Groups]:
    """All ordered choices of disjoint groups, up to changing places within classes, of two devices at least in all.

    Args:
        classes: of devices that may change places.
        stages: groups at most.
    """

    def arrange(left: tuple[int, ...], before: tuple[tuple[int, ...], ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
        if before and sum(map(sum, before)) > 1:
            yield before
        if len(before) == stages:
            return
        for taken in itertools.product(*(range(count + 1) for count in left)):
            if any(taken):
                rest = tuple(count - number for count, number in zip(left, taken, strict=True))
                yield from arrange(rest, (*before, taken))

    for counts in arrange(tuple(map(len, classes)), ()):
        waiting = [iter(members) for members in classes]
        yield tuple(
            tuple(
                sorted(
                    device
                    for members, number in zip(waiting, taken, strict=True)
                    for device in itertools.islice(members, number)
                )
            )
            for taken in counts
        )


def _cut_by_speed(unlike: UnlikeDevices, groups: Groups, *, recompute: bool) -> tuple[int, ...]:
    """Begins of stages such that the slowest is fastest, where a group is as fast as its devices together."""
    count = len(unlike.layers[0])
    best = np.full(count + 1, np.inf)
    best[0] = 0.0
    chosen: list[np.ndarray] = []
    for devices in groups:
        slowest = np.maximum(best[:, None], _group_ms(unlike.layers, devices, recompute=recompute))
        chosen.append(np.argmin(slowest, axis=0))
        best = np.min(slowest, axis=0)
    begins, end = [], count
    for cut in reversed(chosen):
        end = int(cut[end])
        begins.append(end)
    return tuple(reversed(begins))


def _group_ms(layers: Sequence[Sequence[PlannedLayer]], devices: Sequence[int], *, recompute: bool) -> np.ndarray:
    """By begin and end of a stage, milliseconds in which a group's devices together pass one sample; infinite for no layers."""
    count = len(layers[0])
    rate = np.zeros((count + 1, count + 1))
    for device in devices:
        weights = [layer.pass_ms + (layer.forward_ms if recompute else 0.0) for layer in layers[device]]
        prefix = np.concatenate([[0.0], np.cumsum(weights)])
        rate += 1.0 / np.maximum(prefix[None, :] - prefix[:, None], 1e-12)
    begin, end = np.indices(rate.shape)
    return np.where(begin < end, 1.0 / rate, np.inf)
