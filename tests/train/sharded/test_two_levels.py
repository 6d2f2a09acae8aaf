"""Stages on groups of devices that divide operators: both levels together, on a described Transformer."""

from __future__ import annotations

import math

import pytest

from benchmarks.training.sharded_steps import DescribedTransformer
from bricolage.device.device import Link, Peaks
from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.layout_programme import best_sharding
from bricolage.train.sharded.two_levels import Hosts, ShardedPipeline, plan_sharded

INSIDE, ACROSS = Link(("0", "1"), 100.0, 5.0), Link(("0", "1"), 1.0, 20.0)


def planned(memory: float = math.inf, *, groups: tuple[int, ...] = (1, 2, 4), most: int = 4) -> ShardedPipeline:
    step = DescribedTransformer(8, 256, 64, 8, 4, Peaks(5_000.0, 500.0), memory)
    return plan_sharded(step.row(4, most), Hosts(8, 4, INSIDE, ACROSS, 500.0, memory), 4, groups=groups)


def test_stages_cover_the_layers_and_fit() -> None:
    free = planned()
    assert [one.begin for one in free.stages] == [0, *(one.end for one in free.stages[:-1])]
    assert free.stages[-1].end == 4 and sum(one.devices for one in free.stages) <= 8
    assert free.step_ms >= free.formula_ms * (1 - 1e-9)
    short = planned(0.6 * free.peak_bytes)
    assert short.peak_bytes <= 0.6 * free.peak_bytes and short.formula_ms >= free.formula_ms * (1 - 1e-3)
    with pytest.raises(NoShardingPlan):
        planned(1e3)


def test_a_stage_of_one_device_is_its_operators() -> None:
    one = planned(groups=(1,))
    step = DescribedTransformer(8, 256, 64, 8, 4, Peaks(5_000.0, 500.0), math.inf)
    for stage in one.stages:
        ring = Hosts(8, 4, INSIDE, ACROSS, 500.0).ring(1)
        layers = 2 * (stage.end - stage.begin)
        assert stage.cost.ms == pytest.approx(best_sharding(step.problem(layers, ring)).ms, rel=0.02)


def test_layers_that_repeat_are_solved_once() -> None:
    """A few in the place of all: nearly the time of all, from fewer problems."""
    few, every = planned(most=2), planned(most=8)
    assert few.solved < every.solved and few.formula_ms == pytest.approx(every.formula_ms, rel=0.1)
