from __future__ import annotations

from hypothesis import given, settings

from bricolage.search.placement.pruning import usable_candidates
from bricolage.search.placement.quick import quick_covers
from bricolage.work.cost import Estimate
from tests.search.problems import brute_force, chain_candidates, chains, executable, problems, total_cost


@given(problems())
@settings(max_examples=40, deadline=None)
def test_covers_are_executable_and_none_is_better_than_the_optimum(problem) -> None:
    graph, candidates, transfers = problem
    found = quick_covers(graph, usable_candidates(graph, candidates), transfers, 10**6, 10**8)
    assert found
    best = brute_force(graph, candidates, transfers)
    assert best is not None
    for cover in found:
        assert executable(graph, cover)
        assert total_cost(graph, cover, transfers) >= best - 1e-9


def test_one_cover_prefers_each_backend() -> None:
    graph = chains(3)
    candidates = chain_candidates(3, backends=("a", "b"))
    found = quick_covers(
        graph, usable_candidates(graph, candidates), lambda *_: Estimate.of(1.0, "measured"), 10**6, 10**8
    )
    backends = [{choice.implementation.backend for choice in cover} for cover in found]
    assert {"a"} in backends
    assert {"b"} in backends
