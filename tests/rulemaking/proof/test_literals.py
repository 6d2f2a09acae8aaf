"""What literals are read as."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.rulemaking.proof.literals import BASES, read_literal
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint


@given(st.integers(-(2**24), 2**24), st.integers(-60, 60))
def test_a_literal_is_its_dyadic_value_unless_it_is_the_nearest_to_a_declared_number(m: int, e: int) -> None:
    value = math.ldexp(m, e)
    reading = read_literal(value)
    if not reading.name:
        assert reading.factor == Fraction(value)
    else:
        base = math.sqrt(2) ** reading.root2 * math.pi ** (-reading.root_pi / 2)
        assert np.float32(float(reading.factor) * base) == np.float32(value)


def test_declared_numbers() -> None:
    assert read_literal(float(np.float32(1 / 3))).factor == Fraction(1, 3)
    assert read_literal(1 / 6).factor == Fraction(1, 6)
    assert read_literal(-0.1).factor == Fraction(-1, 10)
    for name, (root2, root_pi, value) in BASES.items():
        for factor in (1, -2, 0.25):
            reading = read_literal(factor * value)
            assert (reading.factor, reading.root2, reading.root_pi) == (Fraction(factor), root2, root_pi), name


@pytest.mark.parametrize("value", [0.0, 1.0, 0.5, 0.044715, 1e-5, 1.702, 3.4e38, 127 / 128, -6.0])
def test_other_literals_are_exact(value: float) -> None:
    assert read_literal(value).name == ""
    assert read_literal(value).factor == Fraction(float(np.float32(value)))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e39])
def test_what_is_not_finite_is_no_rational(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        read_literal(value)


def test_infinity_is_a_variable_and_nan_is_refused() -> None:
    point = RandomPoint(0, 1)
    values, degree = point.constants(np.asarray([math.inf, -math.inf]))
    assert degree.total > 0 and point.readings == {"infinity = any number"}
    assert (point.field.add(values[:, 0], values[:, 1]) == 0).all()
    with pytest.raises(NotModelled, match="not finite"):
        point.constants(np.asarray([1.0, math.nan]))


def test_roots_multiply_exactly_in_both_fields() -> None:
    point = RandomPoint(0, 2)
    values = np.asarray([math.sqrt(2), 1 / math.sqrt(math.pi), math.sqrt(2 / math.pi), math.pi, 2.0, 1.0])
    root2, root_pi, both, pi, two, one = (point.constants(values)[0][:, i] for i in range(6))
    multiply = point.field.multiply
    assert (multiply(root2, root2) == two).all()
    assert (multiply(root2, root_pi) == both).all()
    assert (multiply(multiply(root_pi, root_pi), pi) == one).all()


def test_arrays_keep_their_shape_and_integers_their_sign() -> None:
    point = RandomPoint(0, 1)
    values, degree = point.constants(np.asarray([[1, -1], [0, 5]]))
    assert values.shape == (2, 2, 2) and degree.total == 0
    assert values[:, 0, 1].tolist() == [int(m) - 1 for m in point.field.moduli]
    assert point.constants(np.zeros((0, 3), np.float32))[0].shape == (2, 0, 3)
