from __future__ import annotations

import pytest
from hypothesis import given, settings

from bricolage.errors import NoCover, NoPlacement
from bricolage.search.placement.exact import solve
from bricolage.search.placement.milp import ProgrammeResult, solve_milp
from bricolage.search.placement.pruning import prune_dominated, usable_candidates
from bricolage.work.transfer import NoTransferCosts
from tests.search.problems import (
    PairCosts,
    brute_force,
    chain_candidates,
    chains,
    crossing,
    executable,
    problems,
    total_cost,
)

UNIT = PairCosts(((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)))


def solve_all(graph, candidates, transfers, *, time_limit_s: float = 60.0) -> ProgrammeResult:
    """Of candidates as they come: `solve_milp` wants those that are usable and not dominated."""
    able = prune_dominated(graph, usable_candidates(graph, candidates), transfers)
    return solve_milp(graph, able, transfers, time_limit_s=time_limit_s)


@given(problems())
@settings(max_examples=30, deadline=None)
def test_equals_brute_force(problem) -> None:
    graph, candidates, transfers = problem
    found = solve_all(graph, candidates, transfers)
    assert found.placement is not None
    assert found.placement.proven_optimal
    assert found.placement.total_ms == pytest.approx(brute_force(graph, candidates, transfers), abs=1e-6)
    assert found.placement.total_ms == pytest.approx(total_cost(graph, found.placement.choices, transfers))
    assert executable(graph, found.placement.choices)


def test_equals_variable_elimination_beyond_brute_force() -> None:
    graph = chains(12)
    candidates = chain_candidates(12, backends=("a", "b", "c"))
    found = solve_all(graph, candidates, UNIT).placement
    assert found is not None
    assert found.total_ms == pytest.approx(solve(graph, candidates, UNIT).total_ms)


def test_cycles_are_cut_off() -> None:
    graph, candidates = crossing()
    found = solve_all(graph, candidates, NoTransferCosts())
    assert found.cuts >= 1
    assert found.placement is not None
    assert found.placement.total_ms == pytest.approx(5.0)


def test_errors() -> None:
    graph, candidates = crossing()
    with pytest.raises(NoCover):
        solve_all(graph, candidates[4:], UNIT)
    with pytest.raises(NoPlacement, match="op3"):
        solve_all(graph, candidates[:3], UNIT)


def test_no_time_gives_no_placement_and_a_bound() -> None:
    graph = chains(4)
    found = solve_all(graph, chain_candidates(4), UNIT, time_limit_s=0.0)
    assert found.placement is None
    assert found.lower_bound_ms == 0.0
