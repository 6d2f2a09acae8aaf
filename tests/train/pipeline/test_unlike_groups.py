"""Stages on groups of unlike devices, compared with all choices of groups, cuts and micro-batches of small problems."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.device.device import Link
from bricolage.errors import NoPipelinePlan
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer, UnlikeDevices, divisors
from bricolage.train.pipeline.search import best_plans, simulate_plan
from bricolage.train.pipeline.unlike_groups import (
    GroupedStages,
    LayerSums,
    alike_devices,
    arrange_groups,
    best_groups,
    equal_shares,
    share_micro_batches,
)
from bricolage.work.pipeline.group_schedule import StageGroup, ahead_of

GB = 1_000_000_000


def row(scale: float, forward: Sequence[float], gradient: float = 1e5, kept: float = 1e6) -> tuple[PlannedLayer, ...]:
    return tuple(
        PlannedLayer(f"l{number}", scale * ms, scale * ms, scale * ms, 1e4, kept, gradient, 4 * gradient, scale * 0.1)
        for number, ms in enumerate(forward)
    )


def problem(
    scales: Sequence[float],
    forward: Sequence[float],
    batch: int = 8,
    memory: Sequence[int] = (),
    links: Sequence[float] = (),
    gradient: float = 1e5,
) -> PipelineProblem:
    """`links`: 10⁹ bytes a second, by pair of devices in lexical order."""
    names = tuple(f"d{number}" for number in range(len(scales)))
    pairs = list(itertools.combinations(names, 2))
    sizes = tuple(memory or (0,) * len(scales))
    between = tuple(Link(pair, gbytes, 20.0) for pair, gbytes in zip(pairs, links or [0.1] * len(pairs), strict=True))
    unlike = UnlikeDevices(names, tuple(row(scale, forward, gradient) for scale in scales), sizes, between)
    slowest = Link(("0", "1"), min((link.gbytes for link in between), default=1.0), 20.0)
    return PipelineProblem(
        row(max(scales), forward, gradient),
        len(scales),
        batch,
        slowest,
        min(sizes) or math.inf,
        prefetch=True,
        unlike=unlike,
    )


def every_choice(given_problem: PipelineProblem) -> Iterator[GroupedStages]:
    """Of groups by giving each device a stage or none; of cuts, micro-batches, recomputation and passes ahead."""
    devices, layers, batch = given_problem.devices, len(given_problem.layers), given_problem.batch
    assert given_problem.unlike is not None
    sums = LayerSums(given_problem.unlike)
    for where in itertools.product(range(-1, layers), repeat=devices):
        count = max(where) + 1
        if set(where) - {-1} != set(range(count)) or sum(stage >= 0 for stage in where) < 2:
            continue
        groups = [tuple(device for device in range(devices) if where[device] == stage) for stage in range(count)]
        for cuts in itertools.combinations(range(1, layers), count - 1):
            for micro, recompute, times in itertools.product(divisors(batch), (False, True), (1, 2)):
                rough = GroupedStages(given_problem, sums, (0, *cuts), (), micro, recompute)
                counts = [
                    share_micro_batches([rough.passes(stage, device).both_ms for device in group], micro)
                    for stage, group in enumerate(groups)
                ]
                if not all(map(all, counts)):
                    continue
                ahead = ahead_of(list(map(len, groups)), counts, times)
                table = zip(groups, counts, ahead, strict=True)
                yield replace(
                    rough, groups=tuple(StageGroup(group, tuple(mine), first) for group, mine, first in table)
                )


@given(
    st.lists(st.sampled_from((1.0, 2.0, 5.0)), min_size=2, max_size=3),
    st.lists(st.sampled_from((0.5, 1.0, 4.0)), min_size=2, max_size=3),
    st.data(),
)
@settings(max_examples=15, deadline=None)
def test_no_choice_of_groups_cuts_and_micro_batches_is_faster(
    scales: list[float], forward: list[float], data: st.DataObject
) -> None:
    count = len(scales)
    memory = data.draw(st.lists(st.sampled_from((0, 4_000_000, 7_000_000)), min_size=count, max_size=count))
    pairs = count * (count - 1) // 2
    links = data.draw(st.lists(st.sampled_from((0.001, 1.0)), min_size=pairs, max_size=pairs))
    given_problem = problem(scales, forward, 4, memory, links)
    plans = [plan for choice in every_choice(given_problem) if (plan := choice.plan()) is not None]
    best = best_groups(given_problem)
    assert bool(best) == bool(plans)
    if not best:
        return
    assert best[0].step_ms == pytest.approx(min(plan.step_ms for plan in plans))
    assert all(given_problem.bound_ms <= plan.step_ms * (1 + 1e-9) for plan in plans)
    for choice in itertools.islice(every_choice(given_problem), 40):
        if (plan := choice.plan()) is not None:
            assert choice.least_ms <= plan.step_ms * (1 + 1e-9)
    for plan in best:
        assert given_problem.unlike is not None
        choice = GroupedStages.of_plan(given_problem, plan)
        assert choice.plan() == plan
        assert all(held <= given_problem.unlike.memory(device) for device, held in choice.peaks())
        _, curves = simulate_plan(given_problem, plan)
        assert max(size for curve in curves for _, size in curve) == pytest.approx(plan.peak_bytes)


@given(st.lists(st.floats(0.1, 9.0), min_size=1, max_size=3), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_shares_end_as_soon_as_any_do(each: list[float], micro: int) -> None:
    counts = share_micro_batches(each, micro)
    others = (some for some in itertools.product(range(micro + 1), repeat=len(each)) if sum(some) == micro)
    least = min(max(count * ms for count, ms in zip(some, each, strict=True)) for some in others)
    assert sum(counts) == micro
    assert max(count * ms for count, ms in zip(counts, each, strict=True)) == pytest.approx(least)


def test_two_unlike_devices_are_faster_than_taken_as_alike() -> None:
    unlike = problem((1.0, 3.0), [1.0] * 8, batch=16)
    best = best_plans(unlike)[0]
    assert best.groups
    flattened = replace(unlike, unlike=None)
    alike = best_plans(flattened)
    assert best.step_ms < alike[0].step_ms
    # The plan for alike devices stays slower on the devices as they are: with its stages, or with its equal parts.
    for plan in (plan for plan in best_plans(flattened, ("1f1b", "dapple")) if plan.devices == 2):
        micro = plan.micro_batches
        for order in ((0, 1), (1, 0)):
            groups = tuple(
                StageGroup((device,), (micro,), (min(micro, 2 - stage),)) for stage, device in enumerate(order)
            )
            there = GroupedStages(unlike, best_sums(unlike), plan.begins, groups, micro, plan.recompute).plan()
            assert there is not None and best.step_ms < there.step_ms
    equal = equal_shares(unlike)
    assert equal is not None and best.step_ms < equal.step_ms
    assert unlike.bound_ms <= best.step_ms < 1.1 * unlike.bound_ms, "nearly all of both devices' time is used"


def best_sums(unlike: PipelineProblem) -> LayerSums:
    assert unlike.unlike is not None
    return LayerSums(unlike.unlike)


def test_links_and_memory_decide_who_is_with_whom() -> None:
    # Between d0 and d1, and between d2 and d3, links are fast; large gradients are exchanged within groups.
    fast, slow = 10.0, 0.01
    pairs = problem((1.0, 2.0, 1.0, 2.0), [1.0] * 4, 8, links=(fast, slow, slow, slow, slow, fast), gradient=5e6)
    best = best_groups(pairs)[0]
    assert [group.devices for group in best.groups] in ([(0, 1), (2, 3)], [(2, 3), (0, 1)]), best
    assert all(group.micro_batches[0] > group.micro_batches[1] for group in best.groups), "the fast one takes more"
    # A device with little memory has few layers.
    small = problem((1.0, 1.0), [1.0] * 6, 4, memory=(4_000_000, GB), gradient=4e5)
    first = best_groups(small)[0]
    ends = [*first.begins[1:], 6]
    layers = {group.devices: end - begin for begin, end, group in zip(first.begins, ends, first.groups, strict=True)}
    assert layers[0,] < layers[1,]


def test_memories_that_do_not_suffice_and_links_that_are_missing_are_said() -> None:
    with pytest.raises(NoPipelinePlan, match=r"2 devices of 1e-06 to 2e-06 GB"):
        best_plans(problem((1.0, 2.0), [1.0] * 4, memory=(1000, 2000)))
    unlike = problem((1.0, 2.0, 3.0), [1.0] * 4).unlike
    assert unlike is not None
    with pytest.raises(ValueError, match="'d0' and 'd2' have no link"):
        replace(unlike, links=tuple(link for link in unlike.links if set(link.between) != {"d0", "d2"}))
    with pytest.raises(ValueError, match="layers of 2"):
        replace(unlike, layers=unlike.layers[:2])


def test_devices_that_may_change_places_are_arranged_once() -> None:
    four = problem((1.0, 1.0, 3.0, 3.0), [1.0] * 4).unlike
    assert four is not None
    classes = alike_devices(four)
    assert classes == [[0, 1], [2, 3]]
    arranged = list(arrange_groups(classes, 4))
    shapes = {tuple(tuple(device // 2 for device in group) for group in groups) for groups in arranged}
    assert len(arranged) == len(shapes) and all(sum(map(len, groups)) >= 2 for groups in arranged)
    assert not {device for groups in arranged for group in groups for device in group} - {0, 1, 2, 3}


def test_many_unlike_devices_and_layers_are_planned_in_time() -> None:
    large = problem([1.0 + number for number in range(6)], [1.0] * 60, batch=8)
    best = best_plans(large, ("1f1b",))[0]
    assert (
        best.groups and large.bound_ms <= best.step_ms < best_plans(replace(large, unlike=None), ("1f1b",))[0].step_ms
    )
    assert best.begins[-1] < 60
