"""Every method: its schedules can be run, are not above what is proven, and not below the shortest there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.search.devices.duet import duet
from bricolage.search.devices.list_placement import heft, peft, upward_ranks
from bricolage.search.schedules.branches import phases
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.moldable import METHODS, cpa, cpr, sequential
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem
from bricolage.search.schedules.stages import ios, wavefront
from tests.search.schedules.problems import heterogeneous, moldable, several, shortest

Method = Callable[[ScheduleProblem], Schedule]
MOLDABLE: dict[str, Method] = {**METHODS, "IOS": ios, "wavefront": wavefront, "HEFT": heft, "PEFT": peft}
HETEROGENEOUS: dict[str, Method] = {"HEFT": heft, "PEFT": peft}
EDGES = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23, (4, 8): 27, (4, 9): 23,
    (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
TIMES = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10), (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20),
    (21, 7, 16),
]  # fmt: skip
TOPCUOGLU = ScheduleProblem(
    graph_of(
        [[s - 1 for s, t in EDGES if t == task] for task in range(1, 11)],
        {(s - 1, t - 1): w for (s, t), w in EDGES.items()},
    ),
    tuple({f"p{index}": (float(ms),) for index, ms in enumerate(row)} for row in TIMES),
    {"p0": 1, "p1": 1, "p2": 1},
    lambda _from, _to, size: float(size),
)
"""The example of the HEFT paper, its figure 2 and table 1."""


@pytest.mark.parametrize("name", MOLDABLE)
@given(problem=moldable(12))
@settings(max_examples=20)
def test_moldable_schedules_can_be_run_and_respect_the_lower_bound(name: str, problem: ScheduleProblem) -> None:
    found = MOLDABLE[name](problem)
    check(problem, found)
    assert found.method == name
    assert found.makespan_ms >= lower_bound(problem) * (1 - 1e-9)


@pytest.mark.parametrize("name", HETEROGENEOUS)
@given(problem=heterogeneous(10))
@settings(max_examples=60)
def test_schedules_on_two_devices_can_be_run(name: str, problem: ScheduleProblem) -> None:
    found = HETEROGENEOUS[name](problem)
    check(problem, found)
    assert found.makespan_ms >= lower_bound(problem) * (1 - 1e-9)


@given(problem=moldable(4, 3))
@settings(max_examples=40, deadline=None)
def test_exact_equals_brute_force_on_moldable_tasks(problem: ScheduleProblem) -> None:
    found = shortest_schedule(problem)
    check(problem, found.schedule)
    assert found.proven and found.schedule.makespan_ms == pytest.approx(shortest(problem), rel=1e-9)
    assert all(method(problem).makespan_ms >= found.schedule.makespan_ms * (1 - 1e-9) for method in MOLDABLE.values())


@given(problem=heterogeneous(5))
@settings(max_examples=40, deadline=None)
def test_exact_equals_brute_force_on_two_devices(problem: ScheduleProblem) -> None:
    found = shortest_schedule(problem)
    check(problem, found.schedule)
    assert found.proven and found.schedule.makespan_ms == pytest.approx(shortest(problem), rel=1e-9)
    assert lower_bound(problem) <= found.schedule.makespan_ms * (1 + 1e-9)


@given(problem=several(4))
@settings(max_examples=30, deadline=None)
def test_exact_equals_brute_force_on_several_cores_and_devices(problem: ScheduleProblem) -> None:
    found = shortest_schedule(problem)
    check(problem, found.schedule)
    assert found.proven and found.schedule.makespan_ms == pytest.approx(shortest(problem), rel=1e-9)


@given(problem=heterogeneous(5), states=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_a_search_that_stops_early_knows_what_nothing_falls_below(problem: ScheduleProblem, states: int) -> None:
    found = shortest_schedule(problem, most_nodes=states)
    check(problem, found.schedule)
    best = shortest(problem)
    assert found.lower_ms <= best * (1 + 1e-9) and best <= found.schedule.makespan_ms * (1 + 1e-9)
    assert not found.proven or found.schedule.makespan_ms == pytest.approx(best, rel=1e-9)


def test_tasks_that_do_not_differ_start_by_number() -> None:
    """Twenty alike on two kinds of cores: without that, subsets of them would be states of their own."""
    graph = graph_of([[] for _ in range(20)])
    alike = tuple({"cpu": (7.0,), "gpu": (3.0,)} for _ in range(20))
    found = shortest_schedule(ScheduleProblem(graph, alike, {"cpu": 2, "gpu": 1}))
    assert found.proven and found.nodes < 2_000
    assert found.schedule.makespan_ms == 35.0


def test_exact_says_when_it_stopped_early() -> None:
    problem = ScheduleProblem(
        graph_of([[] for _ in range(14)]),
        tuple({"cpu": (1.0 + 1.37 * (i * 7 % 11),)} for i in range(14)),
        {"cpu": 3},
    )
    found = shortest_schedule(problem, most_nodes=20)
    check(problem, found.schedule)
    assert not found.proven


def test_the_example_of_the_heft_paper() -> None:
    assert [round(rank, 3) for rank in upward_ranks(TOPCUOGLU)] == [
        108.0, 77.0, 80.0, 80.0, 69.0, 63.333, 42.667, 35.667, 44.333, 14.667,
    ]  # fmt: skip
    found = heft(TOPCUOGLU)
    check(TOPCUOGLU, found)
    assert found.makespan_ms == 80.0
    check(TOPCUOGLU, peft(TOPCUOGLU))


def halving(ms: float) -> dict[str, tuple[float, float]]:
    return {"cpu": (ms, ms / 2)}


def test_a_task_that_gains_nothing_from_more_cores_runs_beside_another() -> None:
    problem = ScheduleProblem(graph_of([[], [], [0, 1]]), ({"cpu": (4.0,)}, {"cpu": (4.0,)}, halving(2.0)), {"cpu": 2})
    assert sequential(problem).makespan_ms == 9.0
    assert all(method(problem).makespan_ms == 5.0 for name, method in MOLDABLE.items() if name != "sequential")


def test_a_chain_gets_all_cores() -> None:
    problem = ScheduleProblem(graph_of([[], [0], [1]]), (halving(4.0),) * 3, {"cpu": 2})
    for method in (cpa, cpr, ios, sequential):
        assert method(problem).makespan_ms == 6.0


def test_methods_for_one_kind_of_core_refuse_several() -> None:
    for name, method in MOLDABLE.items():
        if name not in HETEROGENEOUS:
            with pytest.raises(ValueError, match="one kind of core"):
                method(TOPCUOGLU)


def test_a_list_schedule_refuses_cores_that_are_not_there() -> None:
    problem = ScheduleProblem(graph_of([[]]), (halving(4.0),), {"cpu": 2})
    with pytest.raises(ValueError, match="more cores"):
        list_schedule(problem, [Allotment("cpu", 3, 2.0)])


@given(problem=heterogeneous(9), seed=st.integers(0, 5))
@settings(max_examples=60)
def test_duet_is_never_worse_than_one_device(problem: ScheduleProblem, seed: int) -> None:
    del seed
    both = ScheduleProblem(
        problem.graph,
        tuple({device: times.get(device, (9.0,)) for device in problem.cores} for times in problem.times),
        problem.cores,
        problem.transfer,
    )
    found = duet(both)
    check(both, found)
    for device in both.cores:
        assert found.makespan_ms <= sum(times[device][0] for times in both.times) * (1 + 1e-9)


def test_phases_alternate_between_one_task_and_branches() -> None:
    problem = ScheduleProblem(
        graph_of([[], [0], [1], [0], [2, 3], [4]]), tuple({"cpu": (1.0,)} for _ in range(6)), {"cpu": 1}
    )
    assert phases(problem.graph) == [(1,), (0b110, 0b1000), (0b10000,), (0b100000,)]


def test_duet_puts_branches_on_both_devices_where_that_pays() -> None:
    graph = graph_of([[], [0], [0], [1, 2]])
    even = tuple({"cpu": (10.0,), "gpu": (10.0,)} for _ in range(4))
    assert duet(ScheduleProblem(graph, even, {"cpu": 1, "gpu": 1})).makespan_ms == 30.0
    dear = ScheduleProblem(graph, even, {"cpu": 1, "gpu": 1}, lambda _from, _to, _size: 50.0)
    assert duet(dear).makespan_ms == 40.0


def test_a_branch_that_runs_nowhere_as_a_whole_is_refused() -> None:
    graph = graph_of([[], [0], [1], [0], [2, 3]])
    times = ({"cpu": (1.0,)}, {"cpu": (1.0,)}, {"gpu": (1.0,)}, {"cpu": (1.0,)}, {"cpu": (1.0,)})
    with pytest.raises(ValueError, match="no device runs all"):
        duet(ScheduleProblem(graph, times, {"cpu": 1, "gpu": 1}))
