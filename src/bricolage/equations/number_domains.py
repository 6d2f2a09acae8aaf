"""The numbers that terms are evaluated on: residues modulo a prime for fingerprints, real numbers for tests.

Residues are kept in [-P/2, P/2), so that they have an order and a sign as real numbers do. Addition, multiplication and division by
a count are those of the field. Relu and maxima use the order; Sigmoid and Tanh are hash functions that grow with their argument,
Sigmoid into the positive numbers, Tanh odd. So the laws that hold for all growing functions hold exactly (a maximum of
Sigmoids is the Sigmoid of the maximum, Relu of Sigmoid is Sigmoid), and hardly any other does. TASO puts a polynomial in the
place of Relu, which keeps no law of maxima. Laws that join order with addition or scaling do not hold here, and are not found.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np

P = (1 << 29) - 3
"""A prime. A sum of 64 products of residues stays below 2^62."""
_HALF = P // 2
_SMALL = 1 << 12
_MIX = np.uint64(0x9E3779B97F4A7C15)
_KEYS = {"sigmoid": np.uint64(0xD6E8FEB86659FD93), "tanh": np.uint64(0xA5A3564E1D4B7C29)}

Array: TypeAlias = np.ndarray


class TermArithmetic(Protocol):
    """What operators need of numbers. Axes are counted from the end: arrays have sample axes in front."""

    lowest: float

    def add(self, a: Array, b: Array) -> Array:
        """a + b, with broadcasting."""
        ...

    def multiply(self, a: Array, b: Array) -> Array:
        """a · b, element by element, with broadcasting."""
        ...

    def matmul(self, a: Array, b: Array) -> Array:
        """The product of the matrices in the last two axes."""
        ...

    def sum(self, a: Array, axes: tuple[int, ...]) -> Array:
        """Over axes, which stay with size 1."""
        ...

    def divide(self, a: Array, count: int) -> Array:
        """a / count, for the mean of `count` numbers."""
        ...

    def function(self, name: str, a: Array) -> Array:
        """Relu, sigmoid or tanh."""
        ...


class Residues:
    """The field of P elements, with an order."""

    lowest: float = -P

    def draw(self, generator: np.random.Generator, samples: int, shape: tuple[int, ...]) -> Array:
        """[samples, *shape]. In the second sample all numbers are small and negative, in the third small and positive: a maximum
        of many numbers that are drawn freely is positive, and hides what happens when it is not."""
        drawn = generator.integers(-_HALF, _HALF + 1, size=(samples, *shape))
        drawn[1:2] = -generator.integers(1, _SMALL, size=drawn[1:2].shape)
        drawn[2:3] = generator.integers(1, _SMALL, size=drawn[2:3].shape)
        return drawn

    def add(self, a: Array, b: Array) -> Array:
        return _reduce_modulo(a + b)

    def multiply(self, a: Array, b: Array) -> Array:
        return _reduce_modulo(a * b)

    def matmul(self, a: Array, b: Array) -> Array:
        return _reduce_modulo(np.matmul(a, b))

    def sum(self, a: Array, axes: tuple[int, ...]) -> Array:
        return _reduce_modulo(a.sum(axes, keepdims=True))

    def divide(self, a: Array, count: int) -> Array:
        inverse = pow(count, -1, P)
        return _reduce_modulo(a * (inverse - P if inverse > _HALF else inverse))

    def function(self, name: str, a: Array) -> Array:
        if name == "relu":
            output: Array = np.maximum(a, 0)
        elif name == "tanh":
            output = np.sign(a) * _evaluate_growing(np.abs(a), _KEYS[name])
        else:
            output = 1 + _evaluate_growing(a + _HALF, _KEYS[name])
        return output


def _evaluate_growing(a: Array, key: np.uint64) -> Array:
    """A random growing function from [0, P) into [0, P/2) that keeps 0 at 0."""
    steps = a >> 3
    mixed = (steps.astype(np.uint64) ^ key) * _MIX
    return np.where(steps > 0, 3 * steps + ((mixed >> np.uint64(40)) % np.uint64(3)).astype(np.int64), 0)


def _reduce_modulo(a: Array) -> Array:
    a = np.remainder(a, P)
    return np.where(a > _HALF, a - P, a)


class Reals:
    """Floating-point numbers of one type."""

    lowest = -np.inf

    def __init__(self, dtype: type[np.floating] = np.float64) -> None:
        self._dtype = dtype

    def add(self, a: Array, b: Array) -> Array:
        total: Array = a + b
        return total

    def multiply(self, a: Array, b: Array) -> Array:
        product: Array = a * b
        return product

    def matmul(self, a: Array, b: Array) -> Array:
        product: Array = np.matmul(a, b)
        return product

    def sum(self, a: Array, axes: tuple[int, ...]) -> Array:
        total: Array = a.sum(axes, keepdims=True)
        return total

    def divide(self, a: Array, count: int) -> Array:
        quotient: Array = a / self._dtype(count)
        return quotient

    def function(self, name: str, a: Array) -> Array:
        half = self._dtype(0.5)
        if name == "relu":
            output: Array = np.maximum(a, self._dtype(0))
        elif name == "tanh":
            output = np.tanh(a)
        else:
            output = half + half * np.tanh(half * a)
        return output
