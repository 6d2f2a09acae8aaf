"""The exact search over downsets, against all placements of small problems; and how it ends when it may not finish."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.search.devices.branch_blocks import contract_branches, label_biconnected
from bricolage.search.devices.colocation import contract, downsets
from bricolage.search.devices.device_problem import DevicePlacementProblem, least_load, max_load
from bricolage.search.devices.downsets import antichains, contiguous, pipedream, place_along_order
from tests.search.devices.problems import is_chain, load_of, made, placements, problems


@given(problems())
@settings(max_examples=70, deadline=None)
def test_no_chain_of_parts_has_a_smaller_largest_load(problem: DevicePlacementProblem) -> None:
    all_of_them = list(placements(problem))
    best = min((load_of(problem, one) for one in all_of_them if is_chain(problem, one)), default=math.inf)
    found = contiguous(problem)
    assert found.max_load == pytest.approx(best)
    if found.devices:
        assert is_chain(problem, found.devices) and load_of(problem, found.devices) == pytest.approx(best)
        assert found.proven and found.gap == 0.0
    along = place_along_order(problem)
    assert along.max_load >= best * (1 - 1e-9) and along.bound <= best * (1 + 1e-9)
    assert least_load(problem) <= min(map(load_of, [problem] * len(all_of_them), all_of_them)) * (1 + 1e-9)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_a_load_is_what_its_definition_says(problem: DevicePlacementProblem) -> None:
    for devices in list(placements(problem))[::7]:
        assert max_load(problem, devices) == pytest.approx(load_of(problem, devices))


def chain(count: int, **more: object) -> DevicePlacementProblem:
    consumers = [[one + 1] for one in range(count - 1)] + [[]]
    return made(consumers, [1.0] * count, [10.0] * count, [0.1] * count, [1.0] * count, **more)  # type: ignore[arg-type]


def test_a_chain_in_three() -> None:
    found = contiguous(chain(6, accelerators=3, processors=0))
    assert found.max_load == pytest.approx(2.2), "the middle part pays for its input and for its output"
    assert found.devices == (0, 0, 1, 1, 2, 2)
    assert pipedream(chain(6, accelerators=3)).devices == found.devices


def test_memory_sends_work_to_the_processor() -> None:
    found = contiguous(chain(3, accelerators=1, memory_bytes=2.0))
    assert found.max_load == pytest.approx(10.0) and sorted(found.devices) == [0, 0, 1]
    assert contiguous(chain(3, accelerators=1, processors=0, memory_bytes=2.0)).max_load == math.inf


def _pairs(count: int) -> st.SearchStrategy[tuple[int, int]]:
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    return st.sampled_from(pairs) if pairs else st.nothing()


def test_branches_are_one_block_for_pipedream() -> None:
    # 0 feeds 1, 2 and 3, which feed 4: what makes an output on a parallel path is one block, and 4 another.
    problem = made([[1, 2, 3], [4], [4], [4], []], [1.0] * 5, [9.0] * 5, [0.01] * 5, [0.0] * 5)
    assert contract_branches(problem).colours == (0, 0, 0, 0, 1)
    assert pipedream(problem).max_load == pytest.approx(4.03) and contiguous(problem).max_load < 3.1


def test_an_input_of_all_layers_does_not_make_them_one_block() -> None:
    # A row of four, each of which reads a mask that is there for nothing.
    consumers = [[1, 2, 3, 4], [2], [3], [4], []]
    mask = made(consumers, [0.0, *[1.0] * 4], [0.0, *[9.0] * 4], [0.0, *[0.1] * 4], [0.0] * 5)
    assert len(set(contract_branches(mask).colours)) == 5 and pipedream(mask).max_load == pytest.approx(2.1)
    dear = replace(mask, move_ms=(0.5, *[0.1] * 4))
    assert len(set(contract_branches(dear).colours)) == 2


@given(problems())
@settings(max_examples=50, deadline=None)
def test_no_chain_of_contracted_blocks_has_a_smaller_largest_load(problem: DevicePlacementProblem) -> None:
    contracted = contract_branches(problem)
    chains = [one for one in placements(contracted) if is_chain(problem, one)]
    best = min((load_of(problem, one) for one in chains), default=math.inf)
    assert pipedream(problem).max_load == pytest.approx(best)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_antichains_have_the_least_work_on_the_busiest_accelerator(problem: DevicePlacementProblem) -> None:
    free = replace(problem, move_ms=(0.0,) * len(problem))
    chains = [
        one
        for one in placements(problem)
        if is_chain(problem, one) and all(device < problem.accelerators for device in one)
    ]
    best = min((load_of(free, one) for one in chains), default=math.inf)
    found = antichains(problem)
    if not found.devices:
        assert best == math.inf
        return
    assert load_of(free, found.devices) == pytest.approx(best)
    assert found.max_load == pytest.approx(load_of(problem, found.devices)) and found.bound <= found.max_load


@given(st.integers(1, 7).flatmap(lambda count: st.tuples(st.just(count), st.sets(_pairs(count)))))
@settings(max_examples=100, deadline=None)
def test_edges_of_one_part_are_those_that_no_node_parts(graph: tuple[int, set[tuple[int, int]]]) -> None:
    count, edges = graph
    parts = label_biconnected(count, edges)
    assert set(parts) == {(min(edge), max(edge)) for edge in edges}
    for one, other in itertools.combinations(sorted(parts), 2):
        assert (parts[one] == parts[other]) == all(_meet(parts, one, other, without) for without in range(count))


def _meet(edges: Iterable[tuple[int, int]], one: tuple[int, int], other: tuple[int, int], without: int) -> bool:
    """Whether a path leads from an edge to another past a node."""
    reached = set(one) - {without}
    while True:
        grown = reached | {end for edge in edges if without not in edge and reached & set(edge) for end in edge}
        if grown == reached:
            return bool(reached & set(other))
        reached = grown


def test_blocks_that_cost_nothing_are_not_counted() -> None:
    # Eight results that nobody waits for would be 2**8 downsets.
    consumers = [[1, *range(2, 10)], [], *([] for _ in range(8))]
    problem = made(consumers, [1.0, 1.0] + [0.0] * 8, [5.0, 5.0] + [0.0] * 8, [0.1] * 10, [0.0] * 10)
    assert downsets(contract(problem), 10) == [0, 1, 3]
    assert contiguous(problem).max_load == pytest.approx(1.1)


def test_without_time_or_room_there_is_still_a_placement_and_a_bound() -> None:
    wide = made([[] for _ in range(12)], [1.0] * 12, [9.0] * 12, [0.0] * 12, [0.0] * 12)
    for found in (contiguous(wide, max_downsets=100), contiguous(wide, limit_s=-1.0)):
        assert found.max_load == 6.0 and 0.0 < found.bound <= 6.0 and found.note
    assert contiguous(wide).proven


def test_more_devices_than_blocks_are_not_looked_at() -> None:
    found = contiguous(chain(6, accelerators=10**6, processors=10**6))
    assert found.max_load == pytest.approx(1.2) and found.proven and max(found.devices) < 6
