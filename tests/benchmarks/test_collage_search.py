"""Collage's algorithm as a baseline, on small problems that can be tried out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from benchmarks.placement.collage_search import GROUP_MS, graph_level, op_level
from bricolage.search.placement.merge import merge_regions
from bricolage.work.implementation import Placement
from tests.search.problems import graph_of, offer

CHAIN = graph_of([[1], [2], [3], []])


def test_each_group_costs_a_constant_more() -> None:
    apart = [offer(1 << number, "a", 1.0) for number in range(4)]
    together = offer(0b0011, "a", 2.0 + 0.5 * GROUP_MS)
    found = op_level(CHAIN, [*apart, together])
    assert [one.region for one in found.choices] == [0b0011, 0b0100, 0b1000], (
        "half a constant dearer, a whole one saved"
    )
    assert found.total_ms == pytest.approx(4.0 + 3.5 * GROUP_MS)


def test_patterns_have_one_root() -> None:
    fork = graph_of([[1, 2], [], []])
    singles = [offer(1 << number, "a", 1.0) for number in range(3)]
    found = op_level(fork, [*singles, offer(0b110, "a", 0.1), offer(0b011, "a", 0.1)])
    assert {one.region for one in found.choices} == {1, 2, 4}, (
        "both of the cheap ones have results that are read outside"
    )


def test_the_graph_level_finds_what_trying_all_finds() -> None:
    groups = [offer(1 << number, "a", 1.0, merges=False) for number in range(4)]
    engine = offer(1, "b", 1.0).implementation

    def time(placement: Placement) -> float | None:
        """Entering the engine costs; it is fast on the second and third operator; it fails on the last one."""
        if any(one.implementation == engine and one.region >> 3 & 1 for one in placement):
            return None
        own = {0: 1.5, 1: 0.2, 2: 0.3}
        return sum(
            0.4 + sum(ms for number, ms in own.items() if one.region >> number & 1)
            if one.implementation == engine
            else 1.0
            for one in placement
        )

    def measured(placements: Sequence[Placement]) -> list[float | None]:
        return [time(one) for one in placements]

    found = graph_level(CHAIN, groups, engine, 0b1111, measured, lambda: False)
    assert found.bits == 4 and found.evaluations == 2**4, "every genome once"
    every = [
        merge_regions(CHAIN, [offer(1 << n, "b" if bit else "a", 1.0, merges=bool(bit)) for n, bit in enumerate(bits)])
        for bits in itertools.product((0, 1), repeat=4)
    ]
    assert found.ms == min(ms for ms in map(time, every) if ms is not None) == pytest.approx(2.9)


def test_groups_that_the_engine_does_not_take_stay() -> None:
    groups = [offer(1 << number, "a", 1.0, merges=False) for number in range(4)]
    engine = offer(1, "b", 1.0).implementation
    found = graph_level(CHAIN, groups, engine, 0b0110, lambda several: [1.0] * len(several), lambda: False)
    assert found.bits == 2
    nothing = graph_level(CHAIN, groups, engine, 0, lambda several: [None] * len(several), lambda: False)
    assert nothing.ms is None and nothing.bits == 0 and len(nothing.placement) == 4
