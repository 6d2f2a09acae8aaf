"""Random orders: literals keep theirs, every order occurs, and the chance of one is bounded from below."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from bricolage.rulemaking.proof.lattice import RandomOrder
from bricolage.rulemaking.proof.random_point import RandomPoint

LITERALS = (-1.0, 0.0, 6.0)


def columns(point: RandomPoint, numbers: list[float | str]) -> np.ndarray:
    """[rows, count]: literals, and inputs by name."""
    drawn = [point.constants(np.asarray([v]))[0] if isinstance(v, float) else point.draw(v, (1,)) for v in numbers]
    return np.concatenate(drawn, 1)


def test_literals_keep_their_order_and_inputs_fall_into_every_gap() -> None:
    order = RandomOrder(LITERALS)
    point = RandomPoint(0, 400, order)
    ranks = order.ranks(point, columns(point, [6.0, -1.0, "x", 0.0]))
    assert (ranks[:, 1] < ranks[:, 3]).all() and (ranks[:, 3] < ranks[:, 0]).all()
    assert (ranks[::2] == ranks[1::2]).all()  # both rows of a trial choose alike
    gaps = Counter((ranks[::2, [0, 1, 3]] < ranks[::2, 2:3]).sum(1).tolist())
    assert set(gaps) == {0, 1, 2, 3} and min(gaps.values()) > 50
    assert order.met == set(LITERALS)


def test_every_order_of_three_inputs_is_as_likely() -> None:
    order = RandomOrder()
    point = RandomPoint(0, 600, order)
    ranks = order.ranks(point, columns(point, ["x", "y", "z"]))[::2]
    found = Counter(tuple(row) for row in ranks.argsort(1).tolist())
    assert len(found) == 6 and min(found.values()) > 60


def test_equal_numbers_have_equal_ranks_at_any_time() -> None:
    order = RandomOrder(LITERALS)
    point = RandomPoint(0, 3, order)
    first = order.ranks(point, columns(point, ["x", 0.0]))
    later = order.ranks(point, columns(point, [0.0, "y", "x"]))
    assert (first[:, 0] == later[:, 2]).all() and (first[:, 1] == later[:, 0]).all()


def test_the_chance_counts_numbers_literals_and_truth_values() -> None:
    order = RandomOrder(LITERALS)
    point = RandomPoint(0, 5, order)
    assert order.chance() == 1
    order.ranks(point, columns(point, ["x", 0.0, 6.0]))
    assert order.chance() == pytest.approx(1 / 3)  # below 0, between, above 6
    order.ranks(point, columns(point, ["x", "y", 0.0]))
    assert order.chance() == pytest.approx(1 / (3**2 * math.factorial(2)))
    bits = order.decide(point, "b", columns(point, ["x", "y", "z", "x"]))
    assert set(np.unique(bits)) == {0, 1} and (bits[:, 0] == bits[:, 3]).all() and (bits[::2] == bits[1::2]).all()
    assert order.chance() == pytest.approx(1 / (3**2 * math.factorial(2) * 2**3))
