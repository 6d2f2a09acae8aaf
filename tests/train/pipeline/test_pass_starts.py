"""The start of a pass: found again from what the simulator says with it, and measured on processes here."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from bricolage.device.device import Link
from bricolage.train.pipeline import pass_starts
from bricolage.work.pipeline.generators import one_f_one_b
from bricolage.work.pipeline.table import StageTimes, run_times

LINK = Link(("0", "1"), 1.0, 100.0)


@given(st.integers(2, 4), st.sampled_from((1.0, 2.0, 8.0)), st.floats(0.0, 3.0))
@settings(max_examples=10, deadline=None)
def test_the_start_with_which_the_simulator_says_the_measured_time(devices: int, cores: float, start: float) -> None:
    times = StageTimes(
        (0.4 + start,) * devices, (0.8 + start,) * devices, (0.0,) * devices, (LINK.ms(65536),) * (devices - 1)
    )
    step = run_times(one_f_one_b(devices, 2 * devices), times, cores=cores, prefetch=True).makespan_ms
    assert pass_starts.estimate_start(step, devices, (0.4, 0.8), cores, LINK) == pytest.approx(start, abs=1e-6)


def test_a_pipeline_that_is_faster_than_foreseen_has_no_start() -> None:
    assert pass_starts.estimate_start(0.1, 2, (1.0, 1.0), 2.0, LINK) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.slow  # the pipeline of made-up stages, on processes
def test_a_pass_takes_longer_than_its_stage_alone() -> None:
    found = pass_starts.measure_start(2, 1, 2.0, LINK, 0.1)
    assert 0.0 < found < 1e3
