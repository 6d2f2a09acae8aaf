from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.search.placement.elimination import Factor, elimination_order, minimise_sum


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[int], list[Factor]]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    factors = []
    for _ in range(draw(st.integers(0, 8))):
        scope = tuple(draw(st.permutations(range(len(sizes))))[: draw(st.integers(1, min(3, len(sizes))))])
        shape = tuple(sizes[v] for v in scope)
        cost = st.one_of(st.integers(-4, 9).map(float), st.just(float("inf")))
        values = draw(st.lists(cost, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        factors.append(Factor(scope, np.array(values).reshape(shape)))
    return sizes, factors


@given(tables())
@settings(max_examples=80, deadline=None)
def test_equals_enumeration(problem) -> None:
    sizes, factors = problem

    def cost(values) -> float:
        return sum(float(f.table[tuple(values[v] for v in f.scope)]) for f in factors)

    order = elimination_order(sizes, [f.scope for f in factors])
    assert sorted(order.variables) == list(range(len(sizes)))
    found = minimise_sum(sizes, factors, order)
    best = min(cost(values) for values in itertools.product(*map(range, sizes)))
    if found is None:
        assert best == float("inf")
    else:
        assert found[0] == pytest.approx(best)
        assert cost(found[1]) == pytest.approx(best)


def test_order_foresees_the_tables() -> None:
    # A star: eliminated from its leaves, no table holds more than two variables.
    order = elimination_order([4] * 6, [(0, leaf) for leaf in range(1, 6)])
    assert order.largest == pytest.approx(16)
    # A clique of six variables needs one table over all of them.
    clique = elimination_order([4] * 6, list(itertools.combinations(range(6), 2)))
    assert clique.largest == pytest.approx(4**6)
    assert clique.entries == pytest.approx(sum(4**k for k in range(1, 7)))


def test_ties_go_to_the_lowest_value() -> None:
    factors = [Factor((0, 1), np.zeros((3, 3)))]
    assert minimise_sum([3, 3], factors, elimination_order([3, 3], [(0, 1)])) == (0.0, [0, 0])


def test_more_than_256_values() -> None:
    table = np.arange(300.0)[::-1].copy()
    assert minimise_sum([300], [Factor((0,), table)], elimination_order([300], [(0,)])) == (0.0, [299])
