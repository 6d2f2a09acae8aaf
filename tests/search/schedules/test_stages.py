"""The dynamic programme over endings: published counts, and brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings

from benchmarks.scheduling.schedule_instances import BLOCKS, graph_of
from bricolage.search.schedules.schedule import check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.stages import StageCosts, best_stages, ios, wavefront
from bricolage.work.work_graph import WorkGraph
from tests.search.schedules.problems import graphs, moldable


@pytest.mark.parametrize(
    ("block", "states", "transitions", "schedules", "pruned"),
    [
        ("squeezenet-fire", 12, 51, 131, 47),
        ("inception-e", 180, 4_871, 3_757_392, 4_616),
        ("inception-c", 144, 3_648, 4_598_400, None),
    ],
)
def test_counts_of_ios(block: str, states: int, transitions: int, schedules: int, pruned: int | None) -> None:
    graph = BLOCKS[block]
    found = best_stages(graph, lambda groups: float(len(groups)))
    assert (found.states, found.transitions, found.schedules) == (states, transitions, schedules)
    if pruned is not None:
        limited = best_stages(graph, lambda groups: float(len(groups)), largest_group=3, most_groups=8)
        assert limited.transitions == pruned


def rows(graph: WorkGraph) -> Iterator[list[tuple[frozenset[int], ...]]]:
    """Every row of stages, from the definition: each stage a set without edges to what comes before it."""

    def connected(tasks: frozenset[int]) -> tuple[frozenset[int], ...]:
        left, parts = set(tasks), []
        while left:
            part, stack = set(), [min(left)]
            while stack:
                one = stack.pop()
                if one in left:
                    left.discard(one)
                    part.add(one)
                    stack += [*graph.predecessors[one], *graph.successors[one]]
            parts.append(frozenset(part))
        return tuple(parts)

    def last(left: frozenset[int]) -> Iterator[list[tuple[frozenset[int], ...]]]:
        if not left:
            yield []
        for count in range(1, len(left) + 1):
            for some in combinations(sorted(left), count):
                ending = frozenset(some)
                if any(after in left and after not in ending for one in ending for after in graph.successors[one]):
                    continue
                groups = connected(ending)
                roots = [sum(not set(graph.predecessors[one]) & group for one in group) for group in groups]
                if max(roots) == 1:
                    for row in last(left - ending):
                        yield [*row, groups]

    yield from last(frozenset(range(len(graph))))


def weight(groups: tuple[frozenset[int], ...]) -> float:
    """A cost that no structure explains."""
    return float(1 + sum((sum(group) * 7 + len(group) * 13) % 11 for group in groups) % 17)


@given(graph=graphs(5))
@settings(max_examples=50, deadline=None)
def test_the_dynamic_programme_equals_brute_force(graph: WorkGraph) -> None:
    def members(group: int) -> frozenset[int]:
        return frozenset(one for one in range(len(graph)) if group >> one & 1)

    found = best_stages(graph, lambda groups: weight(tuple(map(members, groups))))
    every = list(rows(graph))
    assert found.schedules == len(every)
    assert found.cost_ms == min(sum(map(weight, row)) for row in every)
    assert sum(weight(tuple(map(members, stage))) for stage in found.stages) == found.cost_ms


@given(problem=moldable(7))
@settings(max_examples=60)
def test_limits_only_cost(problem: ScheduleProblem) -> None:
    costs = StageCosts(problem)
    free = best_stages(problem.graph, costs).cost_ms
    pruned = best_stages(problem.graph, costs, largest_group=1, most_groups=2)
    assert free <= pruned.cost_ms * (1 + 1e-9)
    assert all(len(stage) <= 2 and all(group.bit_count() == 1 for group in stage) for stage in pruned.stages)


@given(problem=moldable(9))
@settings(max_examples=60)
def test_the_best_stages_are_no_worse_than_the_greedy_ones(problem: ScheduleProblem) -> None:
    best, greedy = ios(problem, largest_group=None, most_groups=None), wavefront(problem)
    check(problem, best)
    check(problem, greedy)
    assert best.makespan_ms <= greedy.makespan_ms * (1 + 1e-9)


def test_more_groups_than_cores_wait_for_each_other() -> None:
    problem = ScheduleProblem(graph_of([[] for _ in range(3)]), tuple({"cpu": (2.0,)} for _ in range(3)), {"cpu": 2})
    assert StageCosts(problem)((1, 2, 4)) == 4.0 and wavefront(problem).makespan_ms == 4.0


def test_limits_that_nothing_keeps_to_are_refused() -> None:
    with pytest.raises(ValueError, match="no row of stages"):
        best_stages(BLOCKS["squeezenet-fire"], lambda groups: float(len(groups)), largest_group=-1)
