"""Pipelines whose devices share cores, and whose messages are asked for ahead."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import StageTimes, run_times

NAMES = ("gpipe", "1f1b", "zb-h1", "chimera")
MS = st.floats(0.1, 4.0)


@given(st.sampled_from(NAMES), st.lists(MS, min_size=4, max_size=4), MS)
@settings(max_examples=25, deadline=None)
def test_devices_that_share_cores_take_all_work_over_these(name: str, forward: list[float], send: float) -> None:
    schedule = SCHEDULES[name](4, 4)
    times = StageTimes(forward, forward, [0.5 * one for one in forward], [send] * 3)
    own = run_times(schedule, times).makespan_ms
    work = 4 * 2.5 * sum(forward)
    assert run_times(schedule, times, cores=4.0).makespan_ms == pytest.approx(own)
    free = StageTimes(forward, forward, times.weight_gradient)
    assert run_times(schedule, free, cores=1.0).makespan_ms == pytest.approx(work), "one core never waits"
    two = run_times(schedule, free, cores=2.0).makespan_ms
    alone = run_times(schedule, free).makespan_ms
    assert max(alone, work / 2) <= two * (1 + 1e-9) and two <= work * (1 + 1e-9)


@given(st.sampled_from(("gpipe", "1f1b")), st.lists(MS, min_size=3, max_size=3), MS)
@settings(max_examples=25, deadline=None)
def test_messages_that_are_asked_for_ahead_spare_the_devices_their_time(
    name: str, forward: list[float], send: float
) -> None:
    schedule = SCHEDULES[name](3, 6)
    times = StageTimes(forward, forward, forward, [send] * 2)
    ahead = run_times(schedule, times, prefetch=True)
    assert ahead.makespan_ms <= run_times(schedule, times).makespan_ms + 1e-9
    assert ahead.makespan_ms >= run_times(schedule, StageTimes(forward, forward, forward)).makespan_ms - 1e-9
    ends = {str(one.one): one.end_ms for one in ahead.passes}
    for one in ahead.passes:
        stage, kind, micro = one.one.stage, one.one.kind, one.one.micro_batch
        before = ends.get(f"{stage - 1}F{micro}" if kind == "F" else f"{stage + 1}B{micro}", -math.inf)
        assert one.start_ms >= before + send - 1e-9, "nothing runs before its message has come"


def test_only_divided_backward_passes_take_longer_by_being_divided() -> None:
    plain = StageTimes((1.0,) * 4, (1.0,) * 4, (1.0,) * 4)
    dearer = StageTimes((1.0,) * 4, (1.0,) * 4, (1.0,) * 4, (), (10.0,) * 4)
    for name, more in (("1f1b", 0), ("zb-h1", 1)):
        schedule = SCHEDULES[name](4, 8)
        busy = [sum(one.end_ms - one.start_ms for one in run_times(schedule, some).passes) for some in (plain, dearer)]
        assert busy[1] - busy[0] == pytest.approx(
            10.0 * more * sum(one.kind == "I" for row in schedule.rows for one in row)
        )
        assert more == any(one.kind == "I" for row in schedule.rows for one in row)
