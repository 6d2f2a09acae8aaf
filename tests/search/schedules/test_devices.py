"""Methods that place tasks on several devices: the field's worked example, schedules that can be run, memory, splits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.placement.split_operators import os_dpos, split_task
from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.errors import DevicesTooSmall
from bricolage.search.devices.baechi import favourite_children, m_etf, m_sct, m_topo
from bricolage.search.devices.fastt import dpos
from bricolage.search.devices.genetic_placement import random_keys
from bricolage.search.devices.list_placement import cpop, heft, peft, upward_ranks
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.random_keys import RandomKeyOptions
from tests.search.schedules.problems import heterogeneous

FEW = RandomKeyOptions(population=8, generations=3)
METHODS: dict[str, Callable[[ScheduleProblem], Schedule]] = {
    "HEFT": heft,
    "CPOP": cpop,
    "PEFT": peft,
    "DPOS": dpos,
    "m-TOPO": m_topo,
    "m-ETF": m_etf,
    "m-SCT": m_sct,
    "BRKGA": lambda problem: random_keys(problem, FEW),
}


def worked_example() -> ScheduleProblem:
    """Ten tasks on three processors (Topcuoglu, Hariri and Wu, 2002)."""
    rows = "14 16 9,13 19 18,11 13 19,13 8 17,12 13 10,13 16 9,7 15 11,5 11 14,18 12 20,21 7 16"
    times = [[float(one) for one in row.split()] for row in rows.split(",")]
    edges = "1-2:18 1-3:12 1-4:9 1-5:11 1-6:14 2-8:19 2-9:16 3-7:23 4-8:27 4-9:23 5-9:13 6-8:15 7-10:17 8-10:11 9-10:13"
    sizes = {}
    for one in edges.split():
        ends, size = one.split(":")
        source, target = ends.split("-")
        sizes[int(source) - 1, int(target) - 1] = int(size)
    sources = [[source for source, target in sizes if target == task] for task in range(10)]
    times = tuple({f"P{number + 1}": (ms,) for number, ms in enumerate(row)} for row in times)
    devices = {"P1": 1, "P2": 1, "P3": 1}
    return ScheduleProblem(graph_of(sources, sizes), times, devices, lambda _from, _to, size: float(size))


def test_the_worked_example_of_heft_and_cpop() -> None:
    problem = worked_example()
    assert upward_ranks(problem) == pytest.approx(
        [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667], abs=1e-3
    )
    first = heft(problem)
    assert first.makespan_ms == 80.0
    assert [(one.device, one.start_ms, one.end_ms) for one in first.intervals][:3] == [
        ("P3", 0, 9),
        ("P1", 27, 40),
        ("P3", 9, 28),
    ]
    second = cpop(problem)
    assert second.makespan_ms == 86.0
    assert {one + 1 for one in range(10) if second.intervals[one].device == "P2"} == {1, 2, 5, 9, 10}
    assert random_keys(problem).makespan_ms < 80.0, "HEFT is not the best that there is"
    for method in METHODS.values():
        check(problem, method(problem))


@pytest.mark.parametrize("name", METHODS)
def test_what_comes_out_can_be_run_and_is_not_below_the_bound(name: str) -> None:
    @given(heterogeneous())
    @settings(max_examples=25, deadline=None)
    def holds(problem: ScheduleProblem) -> None:
        found = METHODS[name](problem)
        check(problem, found)
        assert found.method == name
        assert found.makespan_ms >= lower_bound(problem) * (1 - 1e-9)
        assert name != "BRKGA" or found.makespan_ms <= min(heft(problem).makespan_ms, dpos(problem).makespan_ms)

    holds()


@given(heterogeneous(most=5), st.lists(st.integers(0, 4), min_size=5, max_size=5), st.integers(2, 12))
@settings(max_examples=60, deadline=None)
def test_memory_is_kept_or_refused_by_name(problem: ScheduleProblem, sizes: list[int], room: int) -> None:
    limited = replace(problem, task_bytes=tuple(sizes[: len(problem)]), memory={"cpu": room, "gpu": room})
    for name, method in METHODS.items():
        try:
            found = method(limited)
        except DevicesTooSmall as error:
            assert sum(limited.task_bytes) > room, f"{name}: {error}"
        else:
            check(limited, found)


def test_a_device_that_holds_too_much_is_seen() -> None:
    problem = ScheduleProblem(graph_of([[], []]), ({"cpu": (1.0,)},) * 2, {"cpu": 1})
    limited = replace(problem, task_bytes=(3, 3), memory={"cpu": 5})
    with pytest.raises(ValueError, match="6 bytes"):
        check(limited, heft(problem))
    with pytest.raises(DevicesTooSmall, match="3 bytes"):
        heft(limited)


@given(heterogeneous(most=5))
@settings(max_examples=15, deadline=None)
def test_critical_path_placement_is_within_its_bound(problem: ScheduleProblem) -> None:
    """At most twice the optimum without transfers, and the largest sum of transfers along a chain; on like devices."""
    like = replace(problem, times=tuple({"cpu": (2.0 + task,), "gpu": (2.0 + task,)} for task in range(len(problem))))
    free = shortest_schedule(replace(like, transfer=lambda _from, _to, _size: 0.0))
    chains = [0.0] * len(like)
    for task in reversed(range(len(like))):
        chains[task] = max(
            (like.moved_bytes[task, other] + chains[other] for other in like.graph.successors[task]), default=0.0
        )
    assert dpos(like).makespan_ms <= 2 * free.schedule.makespan_ms + max(chains) + 1e-9


def test_favourites_stay_where_their_parent_is() -> None:
    # 0 feeds 1 and 2; only what goes to 1 is large.
    sizes = {(0, 1): 50, (0, 2): 1}
    problem = ScheduleProblem(
        graph_of([[], [0], [0]], sizes),
        ({"a": (2.0,), "b": (2.0,)},) * 3,
        {"a": 1, "b": 1},
        lambda _from, _to, size: float(size),
    )
    assert favourite_children(problem) == {0: 1}
    found = m_sct(problem)
    assert found.intervals[0].device == found.intervals[1].device and found.makespan_ms == 5.0


def test_a_tensor_is_sent_once_and_a_channel_takes_one_at_a_time() -> None:
    sizes = {(0, 2): 4, (1, 3): 4}
    times = ({"a": (1.0,)}, {"a": (1.0,)}, {"b": (1.0,)}, {"b": (1.0,)})
    problem = ScheduleProblem(
        graph_of([[], [], [0], [1]], sizes), times, {"a": 1, "b": 1}, lambda _from, _to, size: float(size)
    )
    assert [one.start_ms for one in m_etf(problem).intervals] == [0.0, 1.0, 5.0, 9.0]


def test_what_is_long_is_split() -> None:
    problem = ScheduleProblem(
        graph_of([[], [0], [1]], {(0, 1): 2, (1, 2): 2}),
        ({"a": (1.0,), "b": (1.0,)}, {"a": (20.0,), "b": (20.0,)}, {"a": (1.0,), "b": (1.0,)}),
        {"a": 1, "b": 1},
        lambda _from, _to, size: float(size),
    )
    changed, found = os_dpos(problem, {1})
    check(changed, found)
    assert dpos(problem).makespan_ms == 22.0 and found.makespan_ms == 14.0, "a half and two transfers of a half"
    assert len(changed) == 3 + 3 and sum(able["a"][0] for able in changed.times) == 22.0
    assert os_dpos(problem, set())[1].makespan_ms == 22.0
    halves = split_task(replace(problem, task_bytes=(0, 7, 0)), 1, 2)
    assert halves.task_bytes == (0, 0, 4, 4, 0, 0)
