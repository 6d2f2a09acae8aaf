"""Where graphs fork and join: regions that cover everything, in an executable order, and are worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.search.schedules.branches import HAND_OVER_MS, can_fork, cut_branches
from bricolage.work.placement import region_order
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

FORK = [[], [0], [1], [0], [3], [2, 4]]
"""Two branches of two operators between a fork and a join."""


def graph_of(sources: list[list[int]]) -> WorkGraph:
    tensors = [WorkTensor(f"{s}-{task}", s, (task,)) for task, some in enumerate(sources) for s in some]
    return WorkGraph(tuple(WorkOperator(str(task)) for task in range(len(sources))), tuple(tensors))


@st.composite
def graphs(draw: st.DrawFn) -> WorkGraph:
    count = draw(st.integers(1, 14))
    return graph_of([sorted(draw(st.sets(st.integers(0, n - 1), max_size=2))) if n else [] for n in range(count)])


def test_branches_are_cut_between_a_fork_and_a_join() -> None:
    found = cut_branches(graph_of(FORK), [1.0] * 6, 0.5)
    assert found.regions == (0b1, 0b110, 0b11000, 0b100000)
    assert found.total_ms == 6.0 and found.least_ms == pytest.approx(4.0 + 2 * HAND_OVER_MS)
    assert found.promise == pytest.approx(1 / 3 - HAND_OVER_MS / 3)


def test_a_phase_that_saves_nothing_stays_in_one_piece() -> None:
    graph = graph_of(FORK)
    assert cut_branches(graph, [1.0] * 6, 1.0).regions == (graph.everything,), "cores speed it up without loss"
    assert cut_branches(graph, [1.0, 1.0, 1.0, 0.01, 0.01, 1.0], 0.5).regions == (graph.everything,), (
        "the other branch is light"
    )
    assert cut_branches(graph, [0.01] * 6, 0.5).regions == (graph.everything,), "handing over costs more"
    assert cut_branches(graph, [0.0] * 6, 0.5).promise == 0.0


def test_what_hangs_together_is_cut_into_chains() -> None:
    # Two chains that exchange results half way.
    graph = graph_of([[], [0], [1], [0], [3], [2, 3], [5], [4, 1], [7], [6, 8]])
    regions = cut_branches(graph, [1.0] * 10, 0.5).regions
    assert len(regions) > 4 and sum(regions) == graph.everything


@given(graph=graphs(), times=st.lists(st.floats(0.0, 5.0), min_size=14, max_size=14), efficiency=st.floats(0.0, 1.2))
def test_any_cut_covers_the_graph_in_an_executable_order(
    graph: WorkGraph, times: list[float], efficiency: float
) -> None:
    found = cut_branches(graph, times[: len(graph)], efficiency)
    assert sum(region.bit_count() for region in found.regions) == len(graph) and sum(found.regions) == graph.everything
    assert all(graph.is_convex(region) for region in found.regions)
    assert region_order(graph, found.regions) is not None
    done = 0
    for region in found.regions:
        needed = {s for n in range(len(graph)) if region >> n & 1 for s in graph.predecessors[n]}
        assert all((done | region) >> source & 1 for source in needed), "what a region reads comes before it"
        done |= region
    assert 0.0 <= found.least_ms <= found.total_ms + 1e-9
    assert len(found.regions) == 1 or can_fork(graph)
