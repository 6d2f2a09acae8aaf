"""Costs on described devices: what is known here, scaled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.device.description import ScaledTimes
from bricolage.device.device import Device, Peaks
from bricolage.perf.described import Scaled
from bricolage.perf.roofline import NOMINAL
from bricolage.perf.speedup import MeasuredCurves, SpeedupCurve
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.graph import WorkOperator
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
