from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from bricolage.errors import NoPlacement
from bricolage.search.placement.pruning import keep_cheapest, prune_dominated, usable_candidates
from bricolage.work.transfer import NoTransferCosts
from tests.search.problems import PairCosts, brute_force, graph_of, offer, problems

CHAIN = graph_of([[1], [2], []], [2, 2, 2])
UNIT = PairCosts(((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)))


def test_usable_leaves_out_what_cannot_be_placed() -> None:
    good = [offer(1 << i, "a", 1.0) for i in range(3)]
    bad = [
        offer(0b101, "a", 1.0),
        offer(0b1000, "a", 1.0),
        offer(0, "a", 1.0),
        offer(0b001, "b", math.inf),
        offer(0b001, "b", math.nan),
    ]
    assert list(usable_candidates(CHAIN, [*bad, *good[::-1]])) == good


def test_uncovered_operator_is_named() -> None:
    with pytest.raises(NoPlacement, match="op2"):
        usable_candidates(CHAIN, [offer(0b011, "a", 1.0)])


@given(problems(most=7))
@settings(max_examples=50, deadline=None)
def test_pruning_keeps_an_optimum(problem) -> None:
    graph, candidates, transfers = problem
    able = usable_candidates(graph, candidates)
    kept = prune_dominated(graph, able, transfers)
    assert set(kept) <= set(able)
    assert brute_force(graph, kept, transfers) == pytest.approx(brute_force(graph, candidates, transfers))
    free = NoTransferCosts()
    assert brute_force(graph, keep_cheapest(able), free) == pytest.approx(brute_force(graph, candidates, free))


def test_a_dearer_backend_stays_only_while_transfers_can_pay_for_it() -> None:
    def survivors(extra: float) -> set[str]:
        candidates = [offer(1 << i, "a", 1.0) for i in (0, 2)] + [offer(1 << i, "b", 1.0) for i in (0, 2)]
        candidates += [offer(0b010, "a", 1.0), offer(0b010, "b", 1.0 + extra)]
        kept = prune_dominated(CHAIN, usable_candidates(CHAIN, candidates), UNIT)
        return {c.implementation.backend for c in kept if c.region == 0b010}

    # The middle operator has one tensor of 2 bytes on either side: at most 4 ms are at stake.
    assert survivors(3.9) == {"a", "b"}
    assert survivors(4.0) == {"a"}
