"""Index expressions: how the coordinates of an element in one tensor follow from those in another.

An expression is a linear combination of atoms with integer coefficients. Atoms are loop variables, and quotients and
remainders of expressions that do not simplify. Every expression knows the range of its values, from which most quotients and
remainders that reshapes bring in disappear.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Var:
    """A loop variable that runs from 0 to `extent - 1`."""

    name: str
    extent: int

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        return 0, self.extent - 1

    def c(self) -> str:
        """As C."""
        return self.name


@dataclass(frozen=True)
class Quotient:
    """`of` divided by `by`, rounded down; `of` is never negative."""

    of: Index
    by: int

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value."""
        low, high = self.of.range
        return low // self.by, high // self.by

    def c(self) -> str:
        """As C."""
        return f"({self.of.c()}) / {self.by}"


@dataclass(frozen=True)
class Remainder:
    """`of` modulo `by`; `of` is never negative."""

    of: Index
    by: int

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value (bounds, not necessarily reached)."""
        return 0, min(self.by - 1, self.of.range[1])

    def c(self) -> str:
        """As C."""
        return f"({self.of.c()}) % {self.by}"


Atom = Var | Quotient | Remainder


@dataclass(frozen=True)
class Index:
    """A sum of atoms times coefficients, and a constant."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    @cached_property
    def range(self) -> tuple[int, int]:
        """Smallest and largest value that can occur (bounds, not necessarily reached)."""
        low = high = self.constant
        for atom, factor in self.terms:
            ends = sorted((atom.range[0] * factor, atom.range[1] * factor))
            low, high = low + ends[0], high + ends[1]
        return low, high

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        total = Index(
            tuple((atom, factor) for atom, factor in factors.items() if factor), self.constant + other.constant
        )
        return _rejoin_remainder(total)

    def __mul__(self, factor: int) -> Index:
        if factor == 0:
            return ZERO
        return Index(tuple((atom, coefficient * factor) for atom, coefficient in self.terms), self.constant * factor)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def split(self, by: int) -> tuple[Index, Index]:
        """Quotient and remainder of a division by a positive number. The expression must never be negative."""
        if by == 1:
            return self, ZERO
        whole = Index(
            tuple((atom, factor // by) for atom, factor in self.terms if factor % by == 0), self.constant // by
        )
        rest = Index(tuple((atom, factor) for atom, factor in self.terms if factor % by), self.constant % by)
        low, high = rest.range
        if low < 0:  # negative factors: nothing can be said term by term
            whole, rest = ZERO, self
            low, high = rest.range
        if high < by:
            return whole, rest
        return whole + _atom(_quotient(rest, by)), _atom(Remainder(rest, by))

    @property
    def variables(self) -> frozenset[Var]:
        """Loop variables that it depends on."""
        loop_variables: set[Var] = set()
        for atom, _ in self.terms:
            loop_variables |= {atom} if isinstance(atom, Var) else atom.of.variables
        return frozenset(loop_variables)

    def stride(self, variable: Var) -> int | None:
        """What a step of `variable` adds; None where that differs."""
        total = 0
        for atom, factor in self.terms:
            if atom == variable:
                total += factor
            elif not isinstance(atom, Var) and variable in atom.of.variables:
                return None
        return total

    def substitute(self, values: Mapping[Var, Index]) -> Index:
        """With other expressions in place of variables."""
        total = Index((), self.constant)
        for atom, factor in self.terms:
            match atom:
                case Var():
                    new = values.get(atom, _atom(atom))
                case Quotient():
                    new = atom.of.substitute(values).split(atom.by)[0]
                case Remainder():
                    new = atom.of.substitute(values).split(atom.by)[1]
            total = total + new * factor
        return total

    def c(self) -> str:
        """As C."""
        parts = [f"{factor} * {_group(atom)}" if factor != 1 else _group(atom) for atom, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


ZERO = Index()


def _rejoin_remainder(index: Index) -> Index:
    """`by * (x / by) + x % by` is `x` again."""
    factors = dict(index.terms)
    for atom, factor in index.terms:
        if isinstance(atom, Remainder):
            quotient = _quotient(atom.of, atom.by)
            if factors.get(quotient) == factor * atom.by:
                rest = Index(tuple((a, f) for a, f in index.terms if a not in (atom, quotient)), index.constant)
                return rest + atom.of * factor
    return index


def _group(atom: Atom) -> str:
    return atom.c() if isinstance(atom, Var) else f"({atom.c()})"


def _atom(atom: Atom) -> Index:
    return Index(((atom, 1),))


def _quotient(of: Index, by: int) -> Atom:
    """A quotient of a quotient is one division."""
    if len(of.terms) == 1 and of.constant == 0 and of.terms[0][1] == 1 and isinstance(of.terms[0][0], Quotient):
        inner = of.terms[0][0]
        return Quotient(inner.of, inner.by * by)
    return Quotient(of, by)


def variable(name: str, extent: int) -> Index:
    """A loop variable; one that has only the value 0 vanishes."""
    return ZERO if extent == 1 else _atom(Var(name, extent))


def constant(value: int) -> Index:
    """The index that is always `value`."""
    return Index((), value)


def flatten(coords: Sequence[Index], shape: Sequence[int]) -> Index:
    """Position in row-major order of coordinates in a tensor of that shape."""
    total = ZERO
    for index, extent in zip(coords, shape, strict=True):
        total = total * extent + index
    return total


def unflatten(position: Index, shape: Sequence[int]) -> tuple[Index, ...]:
    """Coordinates in a tensor of that shape of a position in row-major order."""
    coords: list[Index] = []
    for extent in reversed(shape):
        position, index = position.split(extent)
        coords.append(index)
    return tuple(reversed(coords))


def nested_extents(variable: Var, indices: Sequence[Index]) -> tuple[int, ...]:
    """Extents, outermost first, of nested loops in the place of a variable's: in their variables no quotient or remainder of it is
    left in `indices`. Its own extent alone where there are none, or where they do not divide each other."""
    sizes = {size for index in indices for size in _divisors(index, variable)}
    extents: list[int] = []
    inner = 1
    for size in [*sorted(sizes), variable.extent]:
        if size % inner:
            return (variable.extent,)
        extents.insert(0, size // inner)
        inner = size
    return tuple(extent for extent in extents if extent > 1) or (variable.extent,)


def _divisors(index: Index, variable: Var) -> set[int]:
    """By what a variable is divided in an expression, more than itself and less than its extent."""
    sizes: set[int] = set()
    for atom, _ in index.terms:
        if isinstance(atom, Var):
            continue
        sizes |= _divisors(atom.of, variable)
        match atom.of.terms:
            case ((Var() as divided, 1),) if divided == variable and not atom.of.constant:
                sizes.add(atom.by)
            case ((Quotient() as inner, 1),) if inner.of == _atom(variable) and not atom.of.constant:
                sizes.add(inner.by * atom.by)
    return {size for size in sizes if 1 < size < variable.extent}


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements that a step along each dimension moves on."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_coords(coords: Sequence[Index], shape: Sequence[int]) -> tuple[Index, ...]:
    """The coordinates in an input that broadcasts to the shape of `coords`."""
    trailing_coords = coords[len(coords) - len(shape) :]
    return tuple(ZERO if extent == 1 else index for index, extent in zip(trailing_coords, shape, strict=True))
