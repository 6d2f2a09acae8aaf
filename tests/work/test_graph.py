from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.work.graph import (
    Candidate,
    WorkGraph,
    WorkOperator,
    WorkTensor,
    execution_order,
    find_cycles,
    price,
)
from bricolage.work.transfer import NoBoundaryCosts
from tests.search.problems import PairCosts, covers, crossing, executable, graph_of, problems, total_cost

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
    assert DIAMOND.predecessors_of(0b1010) == 0b0101
    assert DIAMOND.successors_of(0b0011) == 0b1100
    names = [DIAMOND.tensors[t].name for t in DIAMOND.inputs_of(0b1010)]
    assert names == ["t0", "t2"]
    assert [DIAMOND.tensors[t].name for t in DIAMOND.inputs_of(0b0011)] == ["x"]
    assert [DIAMOND.tensors[t].name for t in DIAMOND.outputs_of(0b1011)] == ["t0", "t3"]
    assert [DIAMOND.tensors[t].name for t in DIAMOND.outputs_of(0b1111)] == ["t3"]


def test_components() -> None:
    assert DIAMOND.components(0b0110) == (0b0010, 0b0100)
    assert DIAMOND.is_connected(0b0111)
    assert not DIAMOND.is_connected(0b1001)


@given(problems(), st.integers(1, 255))
@settings(max_examples=150, deadline=None)
def test_convexity_equals_the_definition(problem, region: int) -> None:
    graph = problem[0]
    region &= graph.everything
    assert graph.is_convex(region) == naively_convex(graph, region)


def test_convexity_ignores_what_is_far_below_and_above() -> None:
    graph = graph_of([[i + 1] for i in range(999)] + [[]])
    assert graph.is_convex(0b111 << 500)
    assert not graph.is_convex(0b101 << 500)


def test_two_convex_connected_regions_can_form_a_cycle() -> None:
    graph, candidates = crossing()
    pairs = candidates[4:]
    assert all(graph.is_convex(c.region) and graph.is_connected(c.region) for c in pairs)
    assert execution_order(graph, pairs) is None
    assert sorted(find_cycles(graph, [c.region for c in pairs])[0]) == [0, 1]
    with pytest.raises(ValueError, match="cycle"):
        price(graph, pairs, NoBoundaryCosts())


@given(problems(most=7))
@settings(max_examples=60, deadline=None)
def test_order_cycles_and_price_of_every_cover(problem) -> None:
    graph, candidates, boundary = problem
    for number, chosen in enumerate(covers(len(graph), candidates)):
        if number == 30:
            break
        order = execution_order(graph, chosen)
        cycles = find_cycles(graph, [c.region for c in chosen])
        assert (order is not None) == executable(graph, chosen) == (not cycles)
        for cycle in cycles:
            for index, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                assert graph.successors_of(chosen[index].region) & chosen[following].region
        if order is not None:
            done = 0
            for choice in order:
                assert graph.predecessors_of(choice.region) & ~done == 0
                done |= choice.region
            assert price(graph, chosen, boundary).total_ms == pytest.approx(total_cost(graph, chosen, boundary))


def test_a_cover_must_be_exact() -> None:
    twice = [Candidate(0b0011, "a", "", 1.0), Candidate(0b1110, "a", "", 1.0)]
    with pytest.raises(ValueError, match="operator 1 is covered twice"):
        execution_order(DIAMOND, twice)
    with pytest.raises(ValueError, match="operator 2 is not covered"):
        execution_order(DIAMOND, twice[:1])


def test_price_is_a_proof_only_without_a_bound() -> None:
    whole = [Candidate(0b1111, "a", "", 3.0)]
    free = PairCosts(((0.0,) * 3,) * 3)
    assert price(DIAMOND, whole, free).proven_optimal
    bounded = price(DIAMOND, whole, free, lower_bound_ms=2.0)
    assert (bounded.proven_optimal, bounded.lower_bound_ms, bounded.total_ms) == (False, 2.0, 3.0)
