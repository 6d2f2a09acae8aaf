"""The cheapest combinations, against trying all."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.rewrite.search.graph_search import combinations


@given(st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4).map(sorted), max_size=4), st.integers(1, 10))
def test_cheapest_first_and_none_left_out(costs: list[list[int]], count: int) -> None:
    found = list(combinations([[float(one) for one in own] for own in costs], count))
    total = [sum(own[i] for own, i in zip(costs, choice, strict=True)) for choice in found]
    everything = sorted(sum(choice) for choice in product(*costs))
    assert len(set(found)) == len(found)
    assert total == pytest.approx(everything[:count])
