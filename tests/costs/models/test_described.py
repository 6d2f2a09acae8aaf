"""Costs on described devices: what is known here, scaled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.costs.models.described import Scaled
from bricolage.costs.models.roofline import NOMINAL
from bricolage.costs.models.speedup import MeasuredCurves, SpeedupCurve
from bricolage.device.description import ScaledTimes
from bricolage.device.device import Device, Peaks
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.work_graph import WorkOperator
from bricolage.work.workload import workload_of

HERE = replace(NOMINAL.device, name="here", peaks=Peaks(1.0, 1.0))
CPU = replace(HERE, name="cpu", cores=(0, 1, 2, 3))
GPU: Device = replace(HERE, name="gpu", kind="gpu")
PRODUCT, COPY = WorkOperator("a", 3e6, 0, "MatMul"), WorkOperator("b", 0.0, 1_000_000, "Copy")
TASK = Work(workload_of([PRODUCT, COPY]), key="1")
CURVES = MeasuredCurves({"1": SpeedupCurve(((1, 8.0), (2, 4.0), (3, 5.0)))})


def on(device: Device, times: ScaledTimes, threads: int = 1, work: Work = TASK) -> Estimate | None:
    (found,) = Scaled(CURVES, {device.name: times}, HERE, (1, 2, 3)).estimate([work], Setting(device, threads))
    return found


@pytest.mark.parametrize(("threads", "ms"), [(1, 4.0), (2, 2.0), (3, 2.5), (4, 2.5)])
def test_a_processor_is_compared_with_as_many_cores_here(threads: int, ms: float) -> None:
    assert on(CPU, ScaledTimes(0.5), threads) == Estimate.of(ms, "described")


def test_an_accelerator_is_compared_with_the_shortest_time_here() -> None:
    assert on(GPU, ScaledTimes(0.1)) == Estimate.of(pytest.approx(0.4), "described")


def test_scales_of_operators_count_by_their_least_time() -> None:
    found = on(GPU, ScaledTimes(1.0, {"MatMul": 0.2}))  # 3 ms at 0.2 and 1 ms at 1.0
    assert found is not None and found.ms == pytest.approx(4.0 * (3 * 0.2 + 1.0) / 4)


def test_given_times_and_operators_that_do_not_run() -> None:
    assert on(GPU, ScaledTimes(0.1, ms={"1": 7.0})) == Estimate.of(7.0, "described")
    assert on(GPU, ScaledTimes(0.1, ms={"1": 7.0}, without=frozenset(["Copy"]))) is None
    assert on(GPU, ScaledTimes(), work=replace(TASK, key="2")) is None, "nothing is known of it here"


@pytest.mark.parametrize(("operator", "ratio"), [(PRODUCT, 0.1), (COPY, 0.5)])
def test_without_a_scale_times_go_by_the_rooflines(operator: WorkOperator, ratio: float) -> None:
    """Ten times the arithmetic of this device, and twice its bandwidth."""
    gpu = replace(GPU, peaks=Peaks(10.0, 2.0))
    found = on(gpu, ScaledTimes(), work=Work(workload_of([operator]), key="1"))
    assert found == Estimate(pytest.approx(4.0 * ratio), pytest.approx(0.4), pytest.approx(2.0), "roofline")
    both = on(gpu, ScaledTimes(operators={"MatMul": 0.2}))
    assert both is not None and both.source == "roofline", "where one operator of several is a guess, all of it is"
    assert both.ms == pytest.approx(4.0 * (3 * 0.2 + 0.5) / 4) and both.low_ms < both.ms == both.high_ms
    assert on(gpu, ScaledTimes(0.3)) == Estimate.of(pytest.approx(1.2), "described"), "what is given counts first"


def test_of_a_processor_the_cores_that_are_used_count() -> None:
    """Two of four, which together compute twice as fast as this device."""
    wide = replace(CPU, peaks=Peaks(4.0, 1.0))
    found = on(wide, ScaledTimes(), threads=2)
    assert found is not None and found.ms == pytest.approx(4.0 * 3 / 4 * 0.5 + 4.0 / 4 * 1.0)
