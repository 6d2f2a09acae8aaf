"""Stages on groups of devices: whose micro-batches are dealt, and what is left where each group is one device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.work.pipeline.generators import dapple, one_f_one_b
from bricolage.work.pipeline.group_schedule import StageGroup, ahead_of, deal, grouped
from bricolage.work.pipeline.table import DeviceStageTimes, StageTimes, run_times


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_micro_batches_are_dealt_evenly(counts: list[int]) -> None:
    hands = deal(counts)
    total = sum(counts)
    assert [len(hand) for hand in hands] == counts and sorted(micro for hand in hands for micro in hand) == list(
        range(total)
    )
    for hand, count in zip(hands, counts, strict=True):
        assert hand == sorted(hand)
        for dealt in range(total):
            share = sum(micro <= dealt for micro in hand)
            assert abs(share - (dealt + 1) * count / total) <= len(counts), "no device runs far ahead of its part"


@pytest.mark.parametrize(("times", "plain"), [(1, one_f_one_b), (2, dapple)])
def test_groups_of_one_device_are_the_known_schedules(times: int, plain: type) -> None:
    counts = [[6]] * 3
    ahead = ahead_of([1, 1, 1], counts, times)
    groups = [StageGroup((stage,), (6,), ahead[stage]) for stage in range(3)]
    assert grouped(groups, 3).rows == plain(3, 6).rows


def test_devices_that_differ_take_their_own_times_and_links() -> None:
    groups = [StageGroup((2,), (2,), (2,)), StageGroup((0, 3), (1, 1), (1, 1))]
    schedule = grouped(groups, 4)
    assert schedule.rows[1] == () and [str(one) for one in schedule.rows[3]] == ["1F1", "1B1"]
    each = [StageTimes([ms] * 2, [ms] * 2, [0.0] * 2) for ms in (5.0, 0.0, 1.0, 2.0)]
    sent = {(2, 0): 10.0, (2, 3): 20.0, (0, 2): 30.0, (3, 2): 40.0}
    times = run_times(
        schedule, DeviceStageTimes(each, lambda _stage, source, target: sent[source, target]), prefetch=True
    )
    ends = {str(one.one): one.end_ms for one in times.passes}
    assert ends["1F0"] == 1.0 + 10.0 + 5.0 and ends["1F1"] == 2.0 + 20.0 + 2.0
    assert ends["0B0"] == ends["1B0"] + 30.0 + 1.0 and ends["0B1"] == ends["1B1"] + 40.0 + 1.0
    with pytest.raises(ValueError, match="share a device"):
        grouped([groups[0], groups[0]], 4)
