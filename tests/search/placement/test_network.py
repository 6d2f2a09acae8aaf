from __future__ import annotations

import pytest
from hypothesis import given, settings

from bricolage.search.placement.network import Network
from bricolage.search.placement.pruning import usable_candidates
from tests.search.problems import PairCosts, covers, crossing, graph_of, offer, problems, total_cost

FREE = PairCosts(((0.0,) * 3,) * 3)


@given(problems(most=7))
@settings(max_examples=50, deadline=None)
def test_minimum_over_all_covers_cyclic_ones_included(problem) -> None:
    graph, candidates, transfers = problem
    able = usable_candidates(graph, candidates)
    network = Network(graph, able, transfers)
    found = network.solve(network.order())
    assert found is not None
    chosen = [able[index] for index in found[1]]
    best = min(total_cost(graph, cover, transfers) for cover in covers(len(graph), able))
    assert found[0] == pytest.approx(best)
    assert total_cost(graph, chosen, transfers) == pytest.approx(best)


def test_a_forbidden_pair_is_not_chosen_together() -> None:
    graph, candidates = crossing()
    able = usable_candidates(graph, candidates)
    network = Network(graph, able, FREE)
    first = network.solve(network.order())
    assert first is not None
    assert first[0] == 2.0
    network.forbid(first[1])
    second = network.solve(network.order())
    assert second is not None
    assert second[0] == 5.0


def test_a_region_in_two_parts_is_chosen_whole() -> None:
    graph = graph_of([[1, 2], [3], [3], []])
    singles = [offer(1 << i, "a", 1.0) for i in range(4)]
    both = offer(0b0110, "b", 0.5)
    able = usable_candidates(graph, [*singles, both])
    network = Network(graph, able, FREE)
    found = network.solve(network.order())
    assert found is not None
    assert found[0] == 2.5
    assert both in [able[index] for index in found[1]]
