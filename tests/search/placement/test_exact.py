"""The exact searches against brute force, their anchors and their limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.costs.models.measured_transfer import MeasuredTransferCosts
from bricolage.errors import NoCover, NoPlacement
from bricolage.search.placement.dynamic import additive_optimum
from bricolage.search.placement.exact import solve, solve_additive, solve_with_transfers
from bricolage.work.placement import PlacementResult
from bricolage.work.transfer import NoTransferCosts
from bricolage.work.work_graph import WorkGraph
from tests.search.problems import (
    PairCosts,
    brute_force,
    chain_candidates,
    chains,
    crossing,
    executable,
    graph_of,
    offer,
    problems,
    total_cost,
)

UNIT = PairCosts(((0.0, 1.0, 1.0), (1.0, 0.0, 1.0), (1.0, 1.0, 0.0)))


def check(graph: WorkGraph, found: PlacementResult, transfers, expected: float | None) -> None:
    assert found.proven_optimal
    assert found.total_ms == pytest.approx(expected, abs=1e-9)
    assert found.total_ms == pytest.approx(total_cost(graph, found.choices, transfers), abs=1e-9)
    assert found.lower_bound_ms == pytest.approx(found.total_ms)
    assert executable(graph, found.choices)
    assert found.total_ms == pytest.approx(found.compute_ms + found.transfer_ms)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_additive_equals_brute_force(problem) -> None:
    graph, candidates, _ = problem
    free = NoTransferCosts()
    check(graph, solve_additive(graph, candidates), free, brute_force(graph, candidates, free))


@given(problems())
@settings(max_examples=80, deadline=None)
def test_with_transfers_equals_brute_force(problem) -> None:
    graph, candidates, transfers = problem
    check(
        graph, solve_with_transfers(graph, candidates, transfers), transfers, brute_force(graph, candidates, transfers)
    )


@given(problems(most=6))
@settings(max_examples=25, deadline=None)
def test_handing_over_to_the_binary_programme_changes_nothing(problem) -> None:
    graph, candidates, transfers = problem
    found = solve_with_transfers(graph, candidates, transfers, max_table=0)
    assert found.statistics.method == "binary programme"
    check(graph, found, transfers, brute_force(graph, candidates, transfers))


@given(problems(most=6))
@settings(max_examples=25, deadline=None)
def test_additive_hand_over_changes_nothing(problem) -> None:
    graph, candidates, _ = problem
    free = NoTransferCosts()
    check(graph, solve_additive(graph, candidates, max_states=0), free, brute_force(graph, candidates, free))


@pytest.mark.parametrize(("count", "states", "transitions"), [(4, 15, 22), (8, 27, 42), (10, 33, 52), (32, 99, 162)])
def test_parallel_chains_need_linear_states(count: int, states: int, transitions: int) -> None:
    found = additive_optimum(chains(count), chain_candidates(count))
    assert found is not None
    assert (found[1].states, found[1].transitions) == (states, transitions)


def test_transfers_keep_parallel_chains_linear() -> None:
    backends = ("a", "b", "c")
    entries = {}
    for count in (8, 16, 32):
        found = solve_with_transfers(chains(count), chain_candidates(count, backends=backends), UNIT)
        assert found.statistics.method == "variable elimination"
        entries[count] = found.statistics.transitions
    assert entries[32] - entries[16] <= 2.1 * (entries[16] - entries[8])


def test_a_transfer_is_paid_once_for_a_region_and_tensor() -> None:
    graph = graph_of([[1, 2], [], []], [10, 1, 1])
    candidates = [offer(0b001, "a", 1.0), offer(0b110, "b", 1.0)]
    found = solve(graph, candidates, UNIT)
    assert found.transfer_ms == 10.0
    apart = [candidates[0], offer(0b010, "b", 1.0), offer(0b100, "b", 1.0)]
    assert solve(graph, apart, UNIT).transfer_ms == 20.0


def test_transfers_change_the_placement() -> None:
    graph = graph_of([[1], [2], []])
    candidates = [offer(1 << i, b, 1.0 if (i == 1) == (b == "b") else 1.9) for i in range(3) for b in "ab"]
    assert [c.implementation.backend for c in solve(graph, candidates, NoTransferCosts()).choices] == ["a", "b", "a"]
    assert [c.implementation.backend for c in solve(graph, candidates, UNIT).choices] == ["a", "a", "a"]


def test_one_backend_on_two_devices_hands_over_its_tensors() -> None:
    """What a transfer depends on: backend and device, not the configuration."""
    graph = graph_of([[1], []], [1000, 1])
    first, second = offer(0b01, "a", 1.0), offer(0b10, "a", 1.0, "bf16")
    there = replace(second, implementation=replace(second.implementation, device="cpu:0-1"), cost_ms=0.9)
    costs = MeasuredTransferCosts({(first.implementation.endpoint, there.implementation.endpoint): [(1000, 0.2)]})
    assert solve(graph, [first, there], costs).total_ms == pytest.approx(1.0 + 0.9 + 0.2)
    assert solve(graph, [first, second, there], costs).choices == (first, second)
    assert solve(graph, [first, second, there], NoTransferCosts()).choices == (first, there)


def test_cycle_between_regions_is_avoided() -> None:
    graph, candidates = crossing()
    cover = additive_optimum(graph, candidates)
    assert cover is not None
    assert not executable(graph, cover[0])
    for found in (solve_additive(graph, candidates), solve(graph, candidates, PairCosts(((0.0,) * 3,) * 3))):
        assert found.total_ms == 5.0
        assert found.proven_optimal
        assert found.statistics.cuts > 0
        assert executable(graph, found.choices)


def test_only_cyclic_covers_are_an_error() -> None:
    graph, candidates = crossing()
    with pytest.raises(NoCover):
        solve(graph, candidates[4:], UNIT)
    with pytest.raises(NoCover):
        solve_additive(graph, candidates[4:])
    with pytest.raises(NoCover):
        solve_with_transfers(graph, candidates[4:], UNIT, max_table=0)


def test_operator_without_candidate_is_named() -> None:
    graph = graph_of([[1], [2], []])
    incomplete = [
        offer(0b001, "a", 1.0),
        offer(0b100, "a", 1.0),
        offer(0b010, "a", float("inf")),
    ]
    with pytest.raises(NoPlacement, match="op1"):
        solve(graph, incomplete, UNIT)


def test_overlapping_candidates_alone_are_no_cover() -> None:
    graph = graph_of([[1], [2], []])
    overlapping = [offer(0b011, "a", 1.0), offer(0b110, "a", 1.0)]
    for transfers in (UNIT, NoTransferCosts()):
        with pytest.raises(NoCover):
            solve(graph, overlapping, transfers)


def test_order_of_candidates_does_not_matter() -> None:
    graph = chains(3)
    candidates = [offer(c.region, b, 1.0) for c in chain_candidates(3) for b in "ab"]
    for transfers in (UNIT, NoTransferCosts()):
        assert solve(graph, candidates, transfers) == solve(graph, candidates[::-1], transfers)


def test_out_of_time_still_gives_a_placement_and_a_bound() -> None:
    graph = chains(6)
    candidates = chain_candidates(6, backends=("a", "b"))
    best = solve(graph, candidates, UNIT)
    hurried = solve_with_transfers(graph, candidates, UNIT, max_table=0, time_limit_s=0.0)
    assert executable(graph, hurried.choices)
    assert hurried.lower_bound_ms <= best.total_ms + 1e-9 <= hurried.total_ms + 2e-9


def test_empty_graph() -> None:
    for transfers in (UNIT, NoTransferCosts()):
        assert solve(WorkGraph((), ()), [], transfers).choices == ()
