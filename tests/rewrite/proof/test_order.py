"""Random orders: literals keep theirs, every order occurs, and the chance of one is bounded from below."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from bricolage.rewrite.proof.order import Order
from bricolage.rewrite.proof.random_point import RandomPoint

LITERALS = (-1.0, 0.0, 6.0)


def columns(sample: RandomPoint, numbers: list[float | str]) -> np.ndarray:
    """[rows, count]: literals, and inputs by name."""
    drawn = [sample.constants(np.asarray([v]))[0] if isinstance(v, float) else sample.draw(v, (1,)) for v in numbers]
    return np.concatenate(drawn, 1)


def test_literals_keep_their_order_and_inputs_fall_into_every_gap() -> None:
    order = Order(LITERALS)
    sample = RandomPoint(0, 400, order)
    ranks = order.ranks(sample, columns(sample, [6.0, -1.0, "x", 0.0]))
    assert (ranks[:, 1] < ranks[:, 3]).all() and (ranks[:, 3] < ranks[:, 0]).all()
    assert (ranks[::2] == ranks[1::2]).all()  # both rows of a trial choose alike
    gaps = Counter((ranks[::2, [0, 1, 3]] < ranks[::2, 2:3]).sum(1).tolist())
    assert set(gaps) == {0, 1, 2, 3} and min(gaps.values()) > 50
    assert order.met == set(LITERALS)


def test_every_order_of_three_inputs_is_as_likely() -> None:
    order = Order()
    sample = RandomPoint(0, 600, order)
    ranks = order.ranks(sample, columns(sample, ["x", "y", "z"]))[::2]
    found = Counter(tuple(row) for row in ranks.argsort(1).tolist())
    assert len(found) == 6 and min(found.values()) > 60


def test_equal_numbers_have_equal_ranks_at_any_time() -> None:
    order = Order(LITERALS)
    sample = RandomPoint(0, 3, order)
    first = order.ranks(sample, columns(sample, ["x", 0.0]))
    later = order.ranks(sample, columns(sample, [0.0, "y", "x"]))
    assert (first[:, 0] == later[:, 2]).all() and (first[:, 1] == later[:, 0]).all()


def test_the_chance_counts_numbers_literals_and_truth_values() -> None:
    order = Order(LITERALS)
    sample = RandomPoint(0, 5, order)
    assert order.chance() == 1
    order.ranks(sample, columns(sample, ["x", 0.0, 6.0]))
    assert order.chance() == pytest.approx(1 / 3)  # below 0, between, above 6
    order.ranks(sample, columns(sample, ["x", "y", 0.0]))
    assert order.chance() == pytest.approx(1 / (3**2 * math.factorial(2)))
    bits = order.decide(sample, "b", columns(sample, ["x", "y", "z", "x"]))
    assert set(np.unique(bits)) == {0, 1} and (bits[:, 0] == bits[:, 3]).all() and (bits[::2] == bits[1::2]).all()
    assert order.chance() == pytest.approx(1 / (3**2 * math.factorial(2) * 2**3))
