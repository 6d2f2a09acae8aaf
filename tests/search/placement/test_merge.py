from __future__ import annotations

import time
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bricolage.search.placement.merge import merge_regions
from bricolage.work.placement import Candidate
from bricolage.work.work_graph import WorkGraph
from tests.search.problems import crossing, executable, graph_of, offer, problems, readers

CHAIN = graph_of([[1], [2], [3], []])


def single(graph: WorkGraph, backends: str) -> list[Candidate]:
    return [offer(1 << i, backends[i], 1.0) for i in range(len(graph))]


def merged(graph: WorkGraph, choices: list[Candidate]) -> list[tuple[int, str]]:
    return [(one.region, one.implementation.backend) for one in merge_regions(graph, choices)]


def test_neighbours_on_one_backend_become_one_region() -> None:
    assert merged(CHAIN, single(CHAIN, "aaba")) == [(0b0011, "a"), (0b0100, "b"), (0b1000, "a")]
    assert merged(CHAIN, single(CHAIN, "aaaa")) == [(0b1111, "a")]


def test_a_detour_keeps_regions_apart() -> None:
    diamond = graph_of([[1, 2], [3], [3], []])
    assert merged(diamond, single(diamond, "aaba")) == [(0b0011, "a"), (0b0100, "b"), (0b1000, "a")]


def test_other_implementations_and_candidates_that_do_not_merge_stay_apart() -> None:
    choices = [offer(1 << i, "a", 1.0, "bf16" if i == 2 else "f32") for i in range(4)]
    assert len(merge_regions(CHAIN, choices)) == 3
    assert len(merge_regions(CHAIN, [replace(choices[0], merges=False), *choices[1:]])) == 4
    one = choices[1].implementation
    for other in (
        replace(one, config=one.config.tuned({"width": 2})),
        replace(one, device="cpu:0-1"),
        replace(one, backend="b"),
    ):
        assert len(merge_regions(CHAIN, [choices[0], replace(choices[1], implementation=other), *choices[2:]])) == 4


def test_an_earlier_obstacle_can_vanish() -> None:
    # 0 -> 3 is barred by the way over 1 and 2 until these have joined.
    graph = graph_of([[1, 3], [2], [3], []])
    assert merged(graph, single(graph, "aaaa")) == [(0b1111, "a")]


def test_cyclic_choices_are_refused() -> None:
    graph, candidates = crossing()
    with pytest.raises(ValueError, match="cycle"):
        merge_regions(graph, candidates[4:])


@given(problems(), st.data())
@settings(max_examples=60, deadline=None)
def test_result_is_an_acyclic_maximal_cover(problem, data) -> None:
    graph = problem[0]
    backends = data.draw(st.lists(st.sampled_from("ab"), min_size=len(graph), max_size=len(graph)))
    choices = single(graph, "".join(backends))
    pairs = [c for c in problem[1] if c.region.bit_count() > 1 and graph.is_convex(c.region)]
    if pairs:
        pair = data.draw(st.sampled_from(pairs))
        choices = [pair, *(c for c in choices if not c.region & pair.region)]
    assume(executable(graph, choices))
    found = [Candidate(one.region, one.implementation, 0.0) for one in merge_regions(graph, choices)]
    assert sum(c.region for c in found) == graph.everything
    assert executable(graph, found)
    for choice in choices:
        own = [c for c in found if c.region & choice.region == choice.region]
        assert [c.implementation for c in own] == [choice.implementation]
    for first in found:
        assert graph.is_convex(first.region)
        for second in found:
            if first.implementation == second.implementation and readers(graph, first.region) & second.region:
                union = Candidate(first.region | second.region, first.implementation, 0.0)
                rest = [c for c in found if c not in (first, second)]
                assert not executable(graph, [union, *rest])


def test_thousands_of_operators_merge_in_moderate_time() -> None:
    size = 4000
    graph = graph_of([[i + 1] + ([i + 7] if i % 5 == 0 and i + 7 < size else []) for i in range(size - 1)] + [[]])
    choices = single(graph, "".join("ab"[i // 50 % 2] for i in range(size)))
    started = time.process_time()
    assert len(merge_regions(graph, choices)) >= size // 50
    assert time.process_time() - started < 5.0
