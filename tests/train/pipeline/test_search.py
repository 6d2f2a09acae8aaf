"""Plans of pipelines: beside all divisions of small rows, with memory, links and recomputation that decide."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.device.device import Link
from bricolage.errors import NoPipelinePlan
from bricolage.train.pipeline import search
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer
from bricolage.train.pipeline.search import best_plans
from bricolage.work.pipeline.generators import one_f_one_b
from bricolage.work.pipeline.table import StageTimes, run_times

FAST = Link(("a", "b"), gbytes=1e6)
SLOW = Link(("a", "b"), gbytes=1e-3, latency_us=10.0)


def layers(*forward: float, gradient: float = 0.0, kept: float = 1.0) -> tuple[PlannedLayer, ...]:
    return tuple(
        PlannedLayer(f"l{number}", ms, ms, ms, 1.0, kept, gradient, 4 * gradient) for number, ms in enumerate(forward)
    )


def test_small_gradients_mean_data_parallelism_and_large_ones_a_pipeline() -> None:
    problem = PipelineProblem(layers(*[1.0] * 8), devices=4, batch=16, link=FAST)
    best = best_plans(problem)[0]
    assert best.schedule == "data parallel" and best.replicas == 4
    assert best.step_ms == pytest.approx(problem.bound_ms) and best.gap == pytest.approx(0.0, abs=1e-6)
    heavy = PipelineProblem(layers(*[1.0] * 8, gradient=1e5), devices=4, batch=16, link=SLOW)
    found = best_plans(heavy)
    assert found[0].devices > 1 and found[0].exchange_ms < found[0].step_ms / 10
    plain = next(one for one in found if one.schedule == "data parallel" and one.replicas == 4)
    assert plain.step_ms > found[0].step_ms, "the choice that everybody knows stands beside it"
    assert any(one.schedule == "one device" for one in found)


@given(st.lists(st.sampled_from((0.5, 1.0, 3.0)), min_size=2, max_size=6), st.sampled_from((4, 6)))
@settings(max_examples=20, deadline=None)
def test_no_division_in_1f1b_of_the_same_shape_has_a_faster_slowest_stage(forward: list[float], batch: int) -> None:
    problem = PipelineProblem(layers(*forward, gradient=1e9), devices=2, batch=batch, link=FAST)
    plan = next((one for one in best_plans(problem, ("1f1b",)) if one.devices == 2), None)
    if plan is None:
        return  # more than twice as slow as one device
    slowest = [max(sum(forward[:cut]), sum(forward[cut:])) for cut in range(1, len(forward))]
    cut = plan.begins[1]
    assert max(sum(forward[:cut]), sum(forward[cut:])) == pytest.approx(min(slowest))
    sample = batch // plan.micro_batches
    parts = [sample * sum(forward[:cut]), sample * sum(forward[cut:])]
    expected = run_times(one_f_one_b(2, plan.micro_batches), StageTimes(parts, parts, parts)).makespan_ms
    assert plan.step_ms == pytest.approx(expected, rel=1e-3)


def test_memory_asks_for_more_devices_then_for_recomputation_then_for_too_much() -> None:
    # Each layer keeps 100 bytes a sample and lasts 40.
    problem = PipelineProblem(layers(*[1.0] * 4, gradient=10.0, kept=100.0), devices=4, batch=4, link=FAST)
    whole = best_plans(problem)[0]
    assert not whole.recompute and whole.peak_bytes == 4 * 40 + 400
    for limit in (500.0, 300.0, 150.0):
        plan = best_plans(replace(problem, memory_bytes=limit))[0]
        assert plan.peak_bytes <= limit and plan.step_ms >= whole.step_ms * (1 - 1e-9)
    assert best_plans(replace(problem, memory_bytes=150.0))[0].devices == 4
    deep = PipelineProblem(
        layers(*[1.0] * 4, gradient=0.0, kept=100.0), devices=2, batch=8, link=FAST, memory_bytes=250.0
    )
    assert best_plans(deep)[0].recompute, "two stages of two layers keep three samples of 200 otherwise"
    with pytest.raises(NoPipelinePlan, match="4 devices"):
        best_plans(replace(problem, memory_bytes=100.0))


def test_stages_lie_divided_among_replicas_where_memory_forbids_whole_ones() -> None:
    # Weights, gradients and state of a layer: 40 bytes; what it keeps of a sample: 30. Devices of 120 bytes.
    problem = PipelineProblem(
        layers(*[1.0] * 4, gradient=10.0, kept=30.0), devices=4, batch=4, link=FAST, memory_bytes=120.0
    )
    found = best_plans(problem, ("1f1b",), count=20)
    both = [one for one in found if one.replicas == one.devices == 2]
    assert len(both) == 1 and both[0].divided == (0, 1), (
        "a stage of two layers lasts 80, or 40 in halves and 20 of a layer"
    )
    assert both[0].peak_bytes <= 120.0 < 80.0 + 2 * 30.0
    whole = next(
        one
        for one in best_plans(replace(problem, memory_bytes=math.inf), ("1f1b",), count=20)
        if one.replicas == one.devices == 2
    )
    assert not whole.divided and whole.step_ms <= both[0].step_ms * (1 + 1e-9)
    slow = replace(problem, link=Link(("a", "b"), gbytes=1e-5), memory_bytes=120.0)
    gathered = next(one for one in best_plans(slow, ("1f1b",), count=20) if one.divided)
    # A stage's two layers are gathered twice for each micro-batch, and added up once: 3 halves of an all-reduce.
    ring = slow.ring_among(2)
    moved = 2 * gathered.micro_batches * 1.5 * ring.all_reduce_ms(10.0)
    alone = next(
        one
        for one in best_plans(replace(slow, memory_bytes=math.inf), ("1f1b",), count=20)
        if (one.replicas, one.devices) == (2, 2)
    )
    assert gathered.step_ms >= moved and gathered.exchange_ms == 0.0 and alone.exchange_ms > 0.0
    times, curves = search.simulate_plan(slow, gathered)
    assert max(size for some in curves for _, size in some) <= gathered.peak_bytes <= 120.0
    assert times.makespan_ms <= gathered.step_ms * (1 + 1e-9)


def test_stages_are_divided_where_smaller_updates_pay_and_more_memory_is_never_slower() -> None:
    # Of 330 bytes a device cannot hold two layers whole: each lasts 160 and keeps 20 of a sample.
    heavy = tuple(replace(one, update_ms=10.0) for one in layers(*[1.0] * 4, gradient=40.0, kept=20.0))
    problem = PipelineProblem(heavy, devices=4, batch=4, link=FAST)
    steps = []
    for memory in (330.0, math.inf):
        found = best_plans(replace(problem, memory_bytes=memory), ("1f1b",), count=20)
        both = next(one for one in found if one.replicas == one.devices == 2)
        assert both.divided == (0, 1), "an update of 20 ms takes 10 on each of two"
        steps.append(found[0].step_ms)
    assert steps[1] <= steps[0]
    light = replace(problem, layers=layers(*[1.0] * 4, gradient=40.0, kept=20.0))
    assert not any(one.divided for one in best_plans(light, ("1f1b",), count=20)), "moving more takes longer"


def test_starting_passes_costs_and_so_does_a_slow_link() -> None:
    problem = PipelineProblem(layers(*[1.0] * 4, gradient=1e6), devices=4, batch=8, link=FAST, memory_bytes=5e6)
    many = next(one for one in best_plans(problem, ("1f1b",)) if one.devices == 4)
    few = next(one for one in best_plans(replace(problem, start_ms=5.0), ("1f1b",)) if one.devices == 4)
    assert many.micro_batches == 8 > few.micro_batches
    times = [
        best_plans(replace(problem, link=Link(("a", "b"), gbytes=speed)))[0].step_ms for speed in (1e-5, 1e-3, 1.0)
    ]
    assert all(one >= other for one, other in itertools.pairwise(times))


@given(st.integers(1, 5), st.integers(1, 8), st.sampled_from((math.inf, 900.0)))
@settings(max_examples=12, deadline=None)
def test_no_plan_is_below_the_bound_and_one_device_is_never_better(devices: int, batch: int, memory: float) -> None:
    problem = PipelineProblem(
        layers(1.0, 2.0, 0.5, 1.0, 1.5, 1.0, gradient=10.0, kept=20.0), devices, batch, FAST, memory
    )
    found = best_plans(problem)
    assert all(one.step_ms >= problem.bound_ms * (1 - 1e-9) and one.peak_bytes <= memory for one in found)
    assert found[0].step_ms == min(one.step_ms for one in found)
    assert {one.devices * one.replicas <= devices for one in found} == {True}
    for one in found:
        assert one.begins[0] == 0 and len(one.begins) == one.stages


@given(
    st.lists(st.sampled_from((0.5, 1.0, 3.0)), min_size=4, max_size=6),
    st.sampled_from((0.0, 1e4)),
    st.sampled_from((1e-3, 1.0)),
    st.sampled_from((math.inf, 2e5, 7e4)),
)
@settings(max_examples=8, deadline=None)
def test_what_is_left_out_is_no_better(forward: list[float], gradient: float, speed: float, memory: float) -> None:
    link = Link(("a", "b"), gbytes=speed, latency_us=100.0)
    problem = PipelineProblem(layers(*forward, gradient=gradient), 4, 8, link, memory, start_ms=0.3)
    plans = [(choice.least_ms, choice.plan()) for choice in search._choices(problem, search.PLANNED, 8)]
    made = [(least, plan) for least, plan in plans if plan is not None]
    if not made:
        with pytest.raises(NoPipelinePlan):
            best_plans(problem)
        return
    assert all(plan.step_ms >= least * (1 - 1e-9) for least, plan in made)
    assert best_plans(problem)[0].step_ms == min(plan.step_ms for _, plan in made)
    assert memory < math.inf or {plan.schedule for _, plan in made} >= {"1f1b", "chimera", "data parallel"}


def test_what_is_no_problem() -> None:
    with pytest.raises(ValueError, match="a layer"):
        PipelineProblem((), 1, 1, FAST)
    with pytest.raises(ValueError, match="'l0'"):
        PipelineProblem(layers(-1.0), 1, 1, FAST)
