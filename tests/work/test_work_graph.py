from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor
from tests.search.problems import graph_of, problems

DIAMOND = graph_of([[1, 2], [3], [3], []])


def naively_convex(graph: WorkGraph, region: int) -> bool:
    inside = {i for i in range(len(graph)) if region >> i & 1}

    def below(number: int) -> set[int]:
        return {number}.union(*(below(s) for s in graph.successors[number]))

    outside = set().union(*(below(s) for i in inside for s in graph.successors[i] if s not in inside), set())
    return not outside & inside


def test_edges_must_lead_upwards() -> None:
    for tensor in (
        WorkTensor("t", 1, (0,)),
        WorkTensor("t", 0, (0,)),
        WorkTensor("t", 0, (2,)),
        WorkTensor("t", -2, ()),
    ):
        with pytest.raises(ValueError, match="'t'"):
            WorkGraph((WorkOperator("a"), WorkOperator("b")), (tensor,))


def test_neighbourhood_of_a_region() -> None:
    assert DIAMOND.predecessors == ((), (0,), (0,), (1, 2))
    assert DIAMOND.successors == ((1, 2), (3,), (3,), ())
    names = [DIAMOND.tensors[t].name for t in DIAMOND.inputs_of(0b1010)]
    assert names == ["t0", "t2"]
    assert [DIAMOND.tensors[t].name for t in DIAMOND.inputs_of(0b0011)] == ["x"]


def test_components() -> None:
    assert DIAMOND.components(0b0110) == (0b0010, 0b0100)
    assert DIAMOND.is_connected(0b0111)
    assert not DIAMOND.is_connected(0b1001)


@given(problems(), st.integers(1, 255))
@settings(max_examples=60, deadline=None)
def test_convexity_equals_the_definition(problem, region: int) -> None:
    graph = problem[0]
    region &= graph.everything
    assert graph.is_convex(region) == naively_convex(graph, region)


def test_convexity_ignores_what_is_far_below_and_above() -> None:
    graph = graph_of([[i + 1] for i in range(999)] + [[]])
    assert graph.is_convex(0b111 << 500)
    assert not graph.is_convex(0b101 << 500)
