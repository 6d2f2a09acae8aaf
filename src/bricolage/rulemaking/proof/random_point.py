"""A random point, together with random functions: everything that one evaluation of a graph draws."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np

from bricolage.rulemaking.proof.degree import Degree
from bricolage.rulemaking.proof.field import Exponential, Field, P, Q, Residues
from bricolage.rulemaking.proof.lattice import RandomOrder
from bricolage.rulemaking.proof.literals import read_literal

_DRAWS = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)  # the finaliser of MurmurHash3
_SHIFT = np.uint64(33)
_WHOLE = 1 << 24  # whole numbers up to here are exact in float32


class NotModelled(Exception):
    """The graph does something that exact arithmetic has no model for; `prove` turns it into `Unprovable`."""


class RandomPoint:
    """`trials` independent draws. The same seed draws the same; what a name draws depends on seed and name alone.

    While graphs are evaluated on it, the point counts what the error bound needs. With an `order`, maxima choose and truth
    values are 0 or 1; see `order`.
    """

    def __init__(self, seed: int, trials: int, order: RandomOrder | None = None) -> None:
        self.field = Field(trials)
        self.order = order
        self._seed = seed
        self._squares: list[tuple[Residues, Residues]] = []
        self._root_pi = self._uniform("constant 1/sqrt(pi)", ())
        self._infinity = self._uniform("constant infinity", ())
        self.literals: dict[float, Residues] = {}
        """Residues [rows] of the literals that were read."""
        self.readings: set[str] = set()
        """Literals that were read as a declared number."""
        self.functions: set[str] = set()
        """Functions that took part uninterpreted."""
        self.applications = 0
        """How many numbers such functions were applied to, in one trial."""
        self.argument = Degree()
        """Of what they were applied to."""

    def _generator(self, name: str) -> np.random.Generator:
        return np.random.default_rng(list(self._digest(name, 32)))

    def _digest(self, name: str, size: int) -> bytes:
        return hashlib.shake_256(f"{self._seed}/{name}".encode()).digest(size)

    # --- points

    def draw(self, name: str, shape: Sequence[int]) -> Residues:
        """Independent uniform residues for the input `name`: [rows, *shape]."""
        return self._uniform(f"input {name}", shape)

    def _uniform(self, name: str, shape: Sequence[int]) -> Residues:
        limits = self.field.modulus(1 + len(shape))
        return self._generator(name).integers(0, limits, size=(self.field.rows, *shape))

    def draw_square(self, name: str, shape: Sequence[int]) -> Residues:
        """Squares of uniform residues, whose roots `known_roots` finds again."""
        roots = self.draw(name, shape)
        squares = self.field.multiply(roots, roots)
        flat = squares.reshape(self.field.rows, -1)
        order = np.argsort(flat, 1)
        flat_roots = roots.reshape(self.field.rows, -1)
        self._squares.append((np.take_along_axis(flat, order, 1), np.take_along_axis(flat_roots, order, 1)))
        return squares

    def known_roots(self, values: Residues) -> tuple[np.ndarray, Residues]:
        """Which of the values are squares drawn before, in every row, and the roots of those."""
        flat = values.reshape(self.field.rows, -1)
        square_mask, roots = np.zeros(flat.shape, bool), np.zeros_like(flat)
        for squares, square_roots in self._squares:
            for row in range(self.field.rows if squares.shape[1] else 0):
                position = np.minimum(np.searchsorted(squares[row], flat[row]), squares.shape[1] - 1)
                here = squares[row][position] == flat[row]
                roots[row] = np.where(here, square_roots[row][position], roots[row])
                square_mask[row] |= here
        shape = values.shape
        return np.broadcast_to(square_mask.all(0), flat.shape).reshape(shape), roots.reshape(shape)

    # --- constants

    def constants(self, values: np.ndarray) -> tuple[Residues, Degree]:
        """A numpy array of numbers or booleans as residues [rows, *shape].

        Infinity is a number that is drawn: what holds for every number in its place holds in the limit, wherever neither
        side is NaN.

        Raises:
            NotModelled: it holds NaN.
        """
        rank = 1 + values.ndim
        if values.dtype.kind in "biu":
            if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
                raise NotModelled("an unsigned number of 64 bits")
            if values.size == 1 and abs(int(values.item())) <= _WHOLE:
                self._literal(float(values.item()))  # an order must know it
            return values.astype(np.int64) % self.field.modulus(rank), Degree()
        unique, positions = np.unique(values.astype(np.float64), return_inverse=True)
        if not unique.size:
            return np.zeros((self.field.rows, *values.shape), np.int64), Degree()
        columns = np.stack([self._literal(float(v)) for v in unique], 1)
        variable = any(math.isinf(v) or read_literal(float(v)).root_pi for v in unique)
        return columns[:, positions.reshape(values.shape)], Degree(2, 2) if variable else Degree()

    def _literal(self, value: float) -> Residues:
        if math.isinf(value):
            self.readings.add("infinity = any number")
            return self._infinity if value > 0 else -self._infinity % self.field.moduli
        if value not in self.literals:
            try:
                reading = read_literal(value)
            except ValueError as error:
                raise NotModelled(str(error)) from error
            number = self.field.integers(reading.factor.numerator)
            number = self.field.multiply(number, self.field.inverse(self.field.integers(reading.factor.denominator)))
            if reading.root2:
                number = self.field.multiply(number, self.field.integers([pow(2, (m + 1) // 4, m) for m in (P, Q)]))
            for _ in range(abs(reading.root_pi)):
                root = self._root_pi if reading.root_pi > 0 else self.field.inverse(self._root_pi)
                number = self.field.multiply(number, root)
            self.literals[value] = number
        name = read_literal(value).name
        if name:
            self.readings.add(name)
        return self.literals[value]

    # --- functions

    def function(self, name: str, values: Residues) -> Residues:
        """A random function of each row, the one that belongs to `name`: equal arguments give equal results."""
        keys = np.frombuffer(self._digest(f"function {name}", 16 * self.field.rows), np.uint64)
        first, second = (half.reshape((-1,) + (1,) * (values.ndim - 1)) for half in np.split(keys, 2))
        mixed = values.astype(np.uint64)
        for key in (first, second):
            mixed = mixed ^ key
            for factor in _DRAWS:
                mixed = (mixed ^ (mixed >> _SHIFT)) * factor
            mixed = mixed ^ (mixed >> _SHIFT)
        return (mixed % self.field.modulus(values.ndim).astype(np.uint64)).astype(np.int64)

    @functools.cached_property
    def exponential(self) -> Exponential:
        """x -> w ** x with a random base for each trial."""
        drawn = self._generator("bases").integers(2, P - 1, size=self.field.rows // 2)
        return Exponential([int(r) ** 2 % P for r in drawn])

    def truth(self, name: str, values: Residues) -> Residues:
        """A random truth value for each argument: any number, which has fewer laws, or 0 or 1 where there is an order."""
        return self.function(name, values) if self.order is None else self.order.decide(self, name, values)

    def exponents(self, name: str) -> list[int]:
        """An even exponent for each row, random."""
        limits = self.field.moduli // 2
        return [2 * k for k in self._generator(f"exponent {name}").integers(1, limits).tolist()]

    def count(self, name: str, arguments: int, degrees: Iterable[Degree]) -> None:
        """Note that the function `name` was applied to that number of elements in every trial."""
        self.functions.add(name)
        self.applications += arguments
        for degree in degrees:
            self.argument = self.argument.either(degree)

    def chance(self, degree: int) -> float:
        """Bound on the chance that one trial hides a difference of this total degree.

        Schwartz (1980), Zippel (1979): a polynomial of degree d that is not zero vanishes on at most d/Q of the points.
        Two different arguments of random functions meet with at most twice the arguments' degree over Q, for each pair;
        where none meet, results are independent new variables.
        """
        pairs = math.comb(self.applications, 2)
        hidden = degree + pairs * 2 * max(self.argument.total, 1) + self.applications
        smallest = int(self.field.moduli.min())
        return min(hidden / max(smallest - hidden, 1), 1.0)
