"""Bounds: against their definitions by brute force, in their order, and around list schedules."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings

from benchmarks.scheduling.published_bound import old_b
from benchmarks.scheduling.schedule_instances import graph_of, random_typed
from bricolage.search.schedules.certificates import TypedTasks, longest_path, lower_bound, new_b_1
from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.path_bound import PathBound, new_b_2
from bricolage.search.schedules.schedule import check
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem
from tests.search.schedules.problems import ancestors, paths, typed

SLACK = 1 + 1e-9


def by_definition(tasks: TypedTasks) -> float:
    """NEW-B-2 from its formula, path by path."""
    before = ancestors(tasks.graph)
    best = 0.0
    for path in paths(tasks.graph):
        beside: dict[str, set[int]] = {}
        for one in path:
            for other in range(len(tasks.graph)):
                apart = other != one and other not in before[one] and one not in before[other]
                if apart and tasks.device[other] == tasks.device[one]:
                    beside.setdefault(tasks.device[one], set()).add(other)
        volumes = sum(sum(tasks.ms[o] for o in some) / tasks.cores[device] for device, some in beside.items())
        best = max(best, sum(tasks.ms[one] for one in path) + volumes)
    return best


def as_problem(tasks: TypedTasks) -> ScheduleProblem:
    times = tuple({device: (ms,)} for ms, device in zip(tasks.ms, tasks.device, strict=True))
    return ScheduleProblem(tasks.graph, times, tasks.cores)


def ordered(tasks: TypedTasks, seed: int) -> None:
    """Lower bound, a list schedule with priorities by chance, NEW-B-2, NEW-B-1, OLD-B: none above the next."""
    problem, draw = as_problem(tasks), random.Random(seed)
    allotted = [Allotment(device, 1, ms) for ms, device in zip(tasks.ms, tasks.device, strict=True)]
    found = list_schedule(problem, allotted, [draw.random() for _ in tasks.ms])
    check(problem, found)
    row = [lower_bound(problem), found.makespan_ms, new_b_2(tasks), new_b_1(tasks), old_b(tasks)]
    assert all(less <= more * SLACK for less, more in itertools.pairwise(row)), row


@given(tasks=typed(8))
@settings(max_examples=100, deadline=None)
def test_new_b_2_equals_its_definition(tasks: TypedTasks) -> None:
    assert new_b_2(tasks) == pytest.approx(by_definition(tasks), rel=1e-12)


def enclosed(count: int, most: int) -> None:
    draw = random.Random(17)
    for seed in range(count):
        ordered(
            random_typed(draw, draw.randint(1, most), draw.randint(1, 4), draw.choice([0.02, 0.05, 0.1, 0.3])), seed
        )


def test_bounds_enclose_work_conserving_schedules() -> None:
    enclosed(300, 20)


@pytest.mark.slow
def test_bounds_enclose_work_conserving_schedules_of_ten_thousand_random_graphs() -> None:
    enclosed(10_000, 40)


def test_a_path_is_its_own_bound() -> None:
    chain = TypedTasks(graph_of([[], [0], [1]]), (1.0, 2.0, 3.0), ("a", "b", "a"), {"a": 4, "b": 2})
    assert new_b_2(chain) == 6.0 and longest_path(chain.graph, chain.ms) == 6.0
    assert new_b_1(chain) == pytest.approx(6.0) and old_b(chain) == pytest.approx(0.75 * 6.0 + 1.0 + 1.0)
    assert new_b_2(TypedTasks(graph_of([]), (), (), {})) == 0.0


def test_paths_that_later_tasks_make_alike_become_one() -> None:
    """Thirty layers of two tasks each, joined: a billion paths, of which those to one task differ in nothing that counts."""
    sources: list[list[int]] = [[]]
    for _ in range(30):
        top = len(sources) - 1
        sources += [[top], [top], [top + 1, top + 2]]
    draw = random.Random(1)
    ms = tuple(draw.uniform(1.0, 9.0) for _ in sources)
    bound = PathBound(TypedTasks(graph_of(sources), ms, ("a",) * len(ms), {"a": 2}))
    joined = sum(ms[::3]) + sum(max(a + b / 2, b + a / 2) for a, b in zip(ms[1::3], ms[2::3], strict=True))
    assert bound.value() == pytest.approx(joined)
    assert bound.tuples <= 4 * len(ms)


def test_volume_that_only_some_devices_can_do_counts_for_them() -> None:
    either, one = {"a": (4.0,), "b": (4.0,)}, {"a": (4.0,)}
    graph = graph_of([[], [], []])
    assert lower_bound(ScheduleProblem(graph, (one, one, either), {"a": 1, "b": 1})) == 8.0
    assert lower_bound(ScheduleProblem(graph, (either,) * 3, {"a": 1, "b": 1})) == 6.0


@pytest.mark.parametrize(("ms", "cores"), [((1.0,), {"a": 1}), ((1.0, 2.0), {"b": 1}), ((1.0, 2.0), {"a": 0})])
def test_tasks_that_nothing_runs_are_refused(ms: tuple[float, ...], cores: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"equally many|without cores"):
        TypedTasks(graph_of([[], []]), ms, ("a", "a"), cores)
