from __future__ import annotations

import pytest
from hypothesis import given, settings

from bricolage.work.placement import execution_order, find_cycles, price
from bricolage.work.transfer import NoTransferCosts
from tests.search.problems import (
    PairCosts,
    covers,
    crossing,
    executable,
    graph_of,
    offer,
    problems,
    readers,
    sources,
    total_cost,
)

DIAMOND = graph_of([[1, 2], [3], [3], []])


def test_two_convex_connected_regions_can_form_a_cycle() -> None:
    graph, candidates = crossing()
    pairs = candidates[4:]
    assert all(graph.is_convex(c.region) and graph.is_connected(c.region) for c in pairs)
    assert execution_order(graph, pairs) is None
    assert sorted(find_cycles(graph, [c.region for c in pairs])[0]) == [0, 1]
    with pytest.raises(ValueError, match="cycle"):
        price(graph, pairs, NoTransferCosts())


@given(problems(most=7))
@settings(max_examples=60, deadline=None)
def test_order_cycles_and_price_of_every_cover(problem) -> None:
    graph, candidates, transfers = problem
    for number, chosen in enumerate(covers(len(graph), candidates)):
        if number == 30:
            break
        order = execution_order(graph, chosen)
        cycles = find_cycles(graph, [c.region for c in chosen])
        assert (order is not None) == executable(graph, chosen) == (not cycles)
        for cycle in cycles:
            for index, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
                assert readers(graph, chosen[index].region) & chosen[following].region
        if order is not None:
            done = 0
            for choice in order:
                assert sources(graph, choice.region) & ~done == 0
                done |= choice.region
            assert price(graph, chosen, transfers).total_ms == pytest.approx(total_cost(graph, chosen, transfers))


def test_a_cover_must_be_exact() -> None:
    twice = [offer(0b0011, "a", 1.0), offer(0b1110, "a", 1.0)]
    with pytest.raises(ValueError, match="operator 1 is covered twice"):
        execution_order(DIAMOND, twice)
    with pytest.raises(ValueError, match="operator 2 is not covered"):
        execution_order(DIAMOND, twice[:1])


def test_price_is_a_proof_only_without_a_bound() -> None:
    whole = [offer(0b1111, "a", 3.0)]
    free = PairCosts(((0.0,) * 3,) * 3)
    assert price(DIAMOND, whole, free).proven_optimal
    bounded = price(DIAMOND, whole, free, lower_bound_ms=2.0)
    assert (bounded.proven_optimal, bounded.lower_bound_ms, bounded.total_ms) == (False, 2.0, 3.0)
