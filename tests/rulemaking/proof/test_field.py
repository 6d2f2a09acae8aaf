"""Field arithmetic against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rulemaking.proof.field import Exponential, Field, P, Q, ZeroDivisor

FIELD = Field(2)


def drawn(seed: int, *shape: int) -> np.ndarray:
    """Residues, with the extreme ones among them."""
    generator = np.random.default_rng(seed)
    values = generator.integers(0, FIELD.modulus(1 + len(shape)), size=(FIELD.rows, *shape))
    largest = FIELD.modulus(1 + len(shape)) - 1
    return np.where(
        generator.random(values.shape) < 0.2, largest, np.where(generator.random(values.shape) < 0.1, 0, values)
    )


def exactly(values: np.ndarray) -> np.ndarray:
    """An object array of Python integers reduced row by row."""
    return np.stack([row % int(m) for row, m in zip(values, FIELD.moduli, strict=True)])


def is_prime(n: int) -> bool:
    """Miller-Rabin with the bases that decide every number below 3.3e24 (Sorenson and Webster, 2015)."""
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
        x = pow(base, odd, n)
        if x not in (1, n - 1) and not any((x := x * x % n) == n - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_primes_are_what_the_functions_need() -> None:
    assert is_prime(P) and is_prime(Q) and P == 2 * Q + 1
    assert P % 8 == Q % 8 == 7
    assert P < 2**50  # residues and their quotients are exact in float64


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_arithmetic(seed: int) -> None:
    a, b = drawn(seed, 5, 3), drawn(seed + 1, 5, 3)
    x, y = a.astype(object), b.astype(object)
    assert (FIELD.add(a, b) == exactly(x + y)).all()
    assert (FIELD.subtract(a, b) == exactly(x - y)).all()
    assert (FIELD.multiply(a, b) == exactly(x * y)).all()
    assert (FIELD.sum(a, (1, 2))[:, 0, 0] == exactly(x.sum((1, 2)))).all()
    assert (FIELD.product(a, 2)[..., 0] == exactly(x.prod(2))).all()


def test_products_of_many_residues() -> None:
    a, b = drawn(0, 20000), drawn(1, 20000)
    assert (FIELD.multiply(a, b) == exactly(a.astype(object) * b.astype(object))).all()


@pytest.mark.parametrize("inner", [0, 1, 7, 2047, 2048, 2049, 5000])
def test_matrix_products_of_the_largest_residues(inner: int) -> None:
    a = np.broadcast_to(FIELD.modulus(3) - 1, (FIELD.rows, 2, inner))
    assert (FIELD.matmul(a, a.transpose(0, 2, 1)) == exactly(np.full((FIELD.rows, 2, 2), inner, object))).all()


def test_batched_matrix_products() -> None:
    a, b = drawn(0, 3, 1, 4, 5), drawn(1, 1, 2, 5, 3)
    expected = np.stack([np.matmul(x, y) for x, y in zip(a.astype(object), b.astype(object), strict=True)])
    assert (FIELD.matmul(a, b) == exactly(expected)).all()


def test_a_sum_beyond_what_int64_holds() -> None:
    a = np.broadcast_to(FIELD.modulus(2) - 1, (FIELD.rows, 30000))
    assert FIELD.sum(a, (1,))[:, 0].tolist() == [(30000 * (int(m) - 1)) % int(m) for m in FIELD.moduli]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 8, 13, 1000])
def test_inverses(size: int) -> None:
    a = np.maximum(drawn(size, size), 1)
    assert (FIELD.multiply(FIELD.inverse(a), a) == 1).all()
    assert FIELD.inverse(a).shape == a.shape


def test_zero_has_no_inverse() -> None:
    a = np.ones((FIELD.rows, 4), np.int64)
    a[2, 3] = 0
    with pytest.raises(ZeroDivisor):
        FIELD.inverse(a)


def test_powers_with_an_exponent_for_each_row() -> None:
    a, exponents = drawn(3, 6), [0, 1, Q - 1, 12345678901]
    for row, (found, e) in enumerate(zip(FIELD.power(a, exponents), exponents, strict=True)):
        assert found.tolist() == [pow(int(x), e, int(FIELD.moduli[row])) for x in a[row]]


def test_the_exponential_is_a_power_of_its_base() -> None:
    bases = [9, pow(12345, 2, P)]
    x = drawn(5, 3, 4)
    found = Exponential(bases)(x)
    for pair, base in enumerate(bases):
        expected = [pow(base, int(e), P) for e in x[2 * pair + 1].flat]
        assert found[2 * pair].reshape(-1).tolist() == expected


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_the_exponential_turns_sums_into_products(seed: int) -> None:
    grow = Exponential([4, 25])
    x, y = drawn(seed, 7), drawn(seed + 1, 7)
    assert (grow(FIELD.add(x, y))[::2] == FIELD.multiply(grow(x), grow(y))[::2]).all()
    assert (grow(np.zeros_like(x))[::2] == 1).all()
