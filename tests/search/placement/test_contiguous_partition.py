"""Cuts of a row, against all that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.search.placement.contiguous_partition import partition_row


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=9), st.integers(1, 4))
def test_cuts_against_brute_force(weights: list[float], parts: int) -> None:
    parts = min(parts, len(weights))

    def heaviest(cuts: tuple[int, ...]) -> float:
        ends = [0, *cuts, len(weights)]
        return max(sum(weights[begin:end]) for begin, end in itertools.pairwise(ends))

    found = tuple(partition_row(weights, parts))
    assert len(found) == parts - 1 and list(found) == sorted(set(found))
    every = itertools.combinations(range(1, len(weights)), parts - 1)
    assert heaviest(found) == pytest.approx(min(map(heaviest, every)))
