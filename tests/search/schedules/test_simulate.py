"""A schedule under other times: the same as planned where nothing differs, and slowed by memory where it is short."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.search.devices.list_placement import heft
from bricolage.search.schedules.moldable import cpa
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention, retime_schedule
from tests.search.schedules.problems import heterogeneous, moldable

APART = ScheduleProblem(graph_of([[], []]), ({"cpu": (10.0,)}, {"cpu": (20.0,)}), {"cpu": 2})


@given(problem=moldable(9))
@settings(max_examples=60)
def test_with_the_times_of_the_plan_it_ends_as_planned(problem: ScheduleProblem) -> None:
    planned = cpa(problem)
    again = retime_schedule(problem, planned)
    assert again.makespan_ms == pytest.approx(planned.makespan_ms)


@given(problem=heterogeneous(8), factor=st.sampled_from([0.5, 1.0, 3.0]), data=st.data())
@settings(max_examples=60)
def test_order_and_transfers_hold_whatever_the_times(
    problem: ScheduleProblem, factor: float, data: st.DataObject
) -> None:
    planned = heft(problem)
    ms = [(one.end_ms - one.start_ms) * data.draw(st.sampled_from([1.0, factor])) for one in planned.intervals]
    found = retime_schedule(problem, planned, ms)
    for task, one in enumerate(found.intervals):
        assert one.end_ms - one.start_ms == pytest.approx(ms[task])
        for source in problem.graph.predecessors[task]:
            before = found.intervals[source]
            delay = problem.delay(source, task, before.device, one.device)
            assert one.start_ms >= before.end_ms + delay - 1e-9
    for first in range(len(problem)):
        for second in range(len(problem)):
            a, b = planned.intervals[first], planned.intervals[second]
            if a.device == b.device and a.end_ms <= b.start_ms and a.start_ms < b.start_ms:
                assert found.intervals[first].end_ms <= found.intervals[second].start_ms + 1e-9


def test_tasks_that_ask_memory_for_too_much_slow_each_other() -> None:
    planned = cpa(APART)
    # 10 ms at 8 GB/s and 20 ms at 4 GB/s: together 12, of which memory gives 6 until the first is done.
    contention = BandwidthContention((80e6, 80e6), 6.0)
    found = retime_schedule(APART, planned, contention=contention)
    assert [one.end_ms for one in found.intervals] == pytest.approx([20.0, 30.0])
    assert retime_schedule(
        APART, planned, contention=BandwidthContention((80e6, 80e6), 12.0)
    ).makespan_ms == pytest.approx(20.0)
    with pytest.raises(ValueError, match="without bandwidth"):
        BandwidthContention((), 0.0)


def test_one_that_asks_for_more_than_there_is_is_slowed_alone() -> None:
    single = ScheduleProblem(graph_of([[]]), ({"cpu": (10.0,)},), {"cpu": 1})
    found = retime_schedule(single, cpa(single), contention=BandwidthContention((200e6,), 10.0))
    assert found.makespan_ms == pytest.approx(20.0), "its time was measured where memory gave more"


def test_memory_gives_what_a_task_was_seen_to_take() -> None:
    curve = (10.0, 8.0)
    single = ScheduleProblem(graph_of([[]]), ({"cpu": curve},), {"cpu": 2})
    contention = BandwidthContention.seen([200e6], single, 10.0)
    assert contention.gbytes == pytest.approx(25.0)
    assert retime_schedule(single, cpa(single), contention=contention).makespan_ms == pytest.approx(8.0), (
        "alone it is not slowed"
    )
    assert BandwidthContention.seen([8e6], single, 10.0).gbytes == 10.0
