from __future__ import annotations

import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bricolage.search.merge import merge_regions
from bricolage.work.graph import Candidate, WorkGraph
from tests.search.problems import crossing, executable, graph_of, problems

CHAIN = graph_of([[1], [2], [3], []])


def single(graph: WorkGraph, backends: str) -> list[Candidate]:
    return [Candidate(1 << i, backends[i], "", 1.0) for i in range(len(graph))]


def always(_: Candidate) -> bool:
    return True


def test_neighbours_on_one_backend_become_one_region() -> None:
    assert merge_regions(CHAIN, single(CHAIN, "aaba"), always) == (
        (0b0011, "a", ""),
        (0b0100, "b", ""),
        (0b1000, "a", ""),
    )
    assert merge_regions(CHAIN, single(CHAIN, "aaaa"), always) == ((0b1111, "a", ""),)


def test_a_detour_keeps_regions_apart() -> None:
    diamond = graph_of([[1, 2], [3], [3], []])
    assert merge_regions(diamond, single(diamond, "aaba"), always) == (
        (0b0011, "a", ""),
        (0b0100, "b", ""),
        (0b1000, "a", ""),
    )


def test_variants_and_unmergeable_candidates_stay_apart() -> None:
    choices = [
        Candidate(1 << i, "a", "bf16" if i == 2 else "", 1.0, kind="engine" if i else "kernels") for i in range(4)
    ]
    assert len(merge_regions(CHAIN, choices, always)) == 3
    assert len(merge_regions(CHAIN, choices, lambda c: c.kind == "engine")) == 4


def test_an_earlier_obstacle_can_vanish() -> None:
    # 0 -> 3 is barred by the way over 1 and 2 until these have joined.
    graph = graph_of([[1, 3], [2], [3], []])
    assert merge_regions(graph, single(graph, "aaaa"), always) == ((0b1111, "a", ""),)


def test_cyclic_choices_are_refused() -> None:
    graph, candidates = crossing()
    with pytest.raises(ValueError, match="cycle"):
        merge_regions(graph, candidates[4:], always)


@given(problems(), st.data())
@settings(max_examples=120, deadline=None)
def test_result_is_an_acyclic_maximal_cover(problem, data) -> None:
    graph = problem[0]
    backends = data.draw(st.lists(st.sampled_from("ab"), min_size=len(graph), max_size=len(graph)))
    choices = single(graph, "".join(backends))
    pairs = [c for c in problem[1] if c.region.bit_count() > 1 and graph.is_convex(c.region)]
    if pairs:
        pair = data.draw(st.sampled_from(pairs))
        choices = [pair, *(c for c in choices if not c.region & pair.region)]
    assume(executable(graph, choices))
    merged = [Candidate(*region, 0.0) for region in merge_regions(graph, choices, always)]
    assert sum(c.region for c in merged) == graph.everything
    assert executable(graph, merged)
    for choice in choices:
        assert any(c.region & choice.region == choice.region and c.backend == choice.backend for c in merged)
    for first in merged:
        assert graph.is_convex(first.region)
        for second in merged:
            alike = (first.backend, first.variant) == (second.backend, second.variant)
            if alike and graph.successors_of(first.region) & second.region:
                union = Candidate(first.region | second.region, first.backend, first.variant, 0.0)
                rest = [c for c in merged if c not in (first, second)]
                assert not executable(graph, [union, *rest])


def test_thousands_of_operators_merge_in_moderate_time() -> None:
    size = 4000
    graph = graph_of([[i + 1] + ([i + 7] if i % 5 == 0 and i + 7 < size else []) for i in range(size - 1)] + [[]])
    choices = single(graph, "".join("ab"[i // 50 % 2] for i in range(size)))
    started = time.process_time()
    assert len(merge_regions(graph, choices, always)) >= size // 50
    assert time.process_time() - started < 5.0
