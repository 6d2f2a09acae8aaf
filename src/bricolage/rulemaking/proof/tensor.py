"""Tensors over the field, with the arithmetic, powers, comparisons and indexing that operators are written in.

What is no polynomial (a fractional power, an absolute value, a comparison) is a random function of which only the laws named
next to it hold; `functions` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import EllipsisType
from typing import TypeAlias

import ml_dtypes
import numpy as np

from bricolage.lowering.common import Array
from bricolage.rulemaking.proof.degree import VARIABLE, Degree
from bricolage.rulemaking.proof.field import Residues
from bricolage.rulemaking.proof.literals import read_literal
from bricolage.rulemaking.proof.random_point import NotModelled, RandomPoint

FLOAT = np.dtype(np.float32)
BOOL = np.dtype(np.bool_)
Positions = np.ndarray
_LARGEST_EXPONENT = 64


@dataclass(frozen=True)
class Extreme:
    """How a value came about as the maximum (or minimum) of a set: `members` is [rows, *shape, count], unordered."""

    kind: str
    members: Residues


class FieldTensor:
    """A tensor of real numbers, or of truth values that are not known, at a random point: one number a trial.

    `values` is [rows, *shape]. A truth value is a number that is 1 where it holds and 0 where not; every law that is used
    holds for all numbers in its place. Whatever moves, repeats or drops elements goes through `gather`.
    """

    __array_ufunc__ = None  # numpy arrays leave arithmetic with these tensors to them
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        point: RandomPoint,
        values: Residues,
        degree: Degree,
        dtype: np.dtype = FLOAT,
        extreme: Extreme | None = None,
        literal: np.ndarray | None = None,
    ) -> None:
        self.point = point
        self.values = values
        self.degree = degree
        self.dtype = dtype
        self.extreme = extreme
        self.literal = literal
        """The numbers themselves, where they stand in the graph."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, without the axis of rows."""
        return tuple(self.values.shape[1:])

    @property
    def ndim(self) -> int:
        """Number of axes, without that of rows."""
        return self.values.ndim - 1

    @property
    def size(self) -> int:
        """Number of elements, of one row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def derived(self, values: Residues, degree: Degree, dtype: np.dtype = FLOAT) -> FieldTensor:
        """A result computed from this tensor."""
        return FieldTensor(self.point, values, degree, dtype)

    def typed(self, dtype: np.dtype) -> FieldTensor:
        """The same numbers under another type."""
        return FieldTensor(self.point, self.values, self.degree, dtype, self.extreme, self.literal)

    # --- movement

    def move(self, place: Callable[[Positions], Positions]) -> FieldTensor:
        """Elements moved as `place` moves the elements of a numpy array of the same shape."""
        moved = gather([self], place)
        if self.literal is not None:
            moved.literal = place(self.literal)
        return moved

    def reshape(self, *shape: int | Sequence[int]) -> FieldTensor:
        """As of numpy: sizes one by one, or as one sequence."""
        sizes: list[int] = []
        for size in shape:
            sizes += [size] if isinstance(size, int) else size
        return self.move(lambda i: i.reshape(sizes))

    def __getitem__(self, key: Index | tuple[Index, ...]) -> FieldTensor:
        return self.move(lambda i: np.asarray(i[key]))

    # --- arithmetic

    def __add__(self, other: Operand) -> FieldTensor:
        a, b = align(self, other)
        total = self.derived(self.point.field.add(a.values, b.values), a.degree.plus(b.degree))
        extreme, shift = (a.extreme, b) if b.extreme is None else (b.extreme, a)
        if extreme is not None and shift.extreme is None:
            total.extreme = Extreme(extreme.kind, self.point.field.add(extreme.members, shift.values[..., None]))
        return total

    def __sub__(self, other: Operand) -> FieldTensor:
        a, b = align(self, other)
        field = self.point.field
        difference = self.derived(field.subtract(a.values, b.values), a.degree.plus(b.degree))
        if a.extreme is not None and b.extreme is None:
            difference.extreme = Extreme(a.extreme.kind, field.subtract(a.extreme.members, b.values[..., None]))
        if b.extreme is not None and a.extreme is None:
            turned = {"max": "min", "min": "max"}[b.extreme.kind]
            difference.extreme = Extreme(turned, field.subtract(a.values[..., None], b.extreme.members))
        return difference

    def __rsub__(self, other: Operand) -> FieldTensor:
        return tensor(self.point, other) - self

    def __mul__(self, other: Operand) -> FieldTensor:
        a, b = align(self, other)
        return self.derived(self.point.field.multiply(a.values, b.values), a.degree.times(b.degree))

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> FieldTensor:
        return 0 - self

    def inverse(self) -> FieldTensor:
        """Raises ZeroDivisor where an element is zero."""
        return self.derived(self.point.field.inverse(self.values), self.degree.inverse())

    def __truediv__(self, other: Operand) -> FieldTensor:
        return self * tensor(self.point, other).inverse()

    def __rtruediv__(self, other: Operand) -> FieldTensor:
        return tensor(self.point, other) * self.inverse()

    def __pow__(self, exponent: Operand) -> FieldTensor:
        a, b = align(self, exponent)
        return power(a, b)

    def __abs__(self) -> FieldTensor:
        return absolute(self)

    # --- comparison: two uninterpreted predicates of a difference, "is positive" and "is zero"

    def __gt__(self, other: Array) -> FieldTensor:
        return is_positive(self - other)

    def __lt__(self, other: Array) -> FieldTensor:
        return is_positive(other - self)

    def __ge__(self, other: Array) -> FieldTensor:
        return ~is_positive(other - self)

    def __le__(self, other: Array) -> FieldTensor:
        return ~is_positive(self - other)

    def __eq__(self, other: Operand) -> FieldTensor:  # type: ignore[override]
        return is_zero(self - other)

    def __ne__(self, other: Operand) -> FieldTensor:  # type: ignore[override]
        return ~(self == other)

    # --- truth values

    def __invert__(self) -> FieldTensor:
        return (1 - self._truth(self)).typed(BOOL)

    def __and__(self, other: Operand) -> FieldTensor:
        return (self._truth(self) * self._truth(other)).typed(BOOL)

    def __or__(self, other: Operand) -> FieldTensor:
        return ~(~self & ~self._truth(other))

    def __xor__(self, other: Operand) -> FieldTensor:
        a, b = self._truth(self), self._truth(other)
        return (a + b - 2 * a * b).typed(BOOL)

    __rand__ = __and__
    __ror__ = __or__
    __rxor__ = __xor__

    def _truth(self, value: Operand) -> FieldTensor:
        operand = tensor(self.point, value)
        if operand.dtype != BOOL:
            raise NotModelled("bits of numbers")
        return operand

    def __bool__(self) -> bool:
        raise NotModelled("a decision that depends on data")


Operand: TypeAlias = FieldTensor | np.ndarray | float
Index: TypeAlias = int | slice | EllipsisType | None


def tensor(point: RandomPoint, value: Operand) -> FieldTensor:
    """A number or an array of numbers as a tensor over the field; a tensor as it is.

    Raises:
        NotModelled: it holds infinities, or is no number.
    """
    if isinstance(value, FieldTensor):
        return value
    array = np.asarray(value)
    if array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    if array.dtype.kind not in "biuf":
        raise NotModelled(f"numbers of type {array.dtype}")
    values, degree = point.constants(array)
    return FieldTensor(point, values, degree, BOOL if array.dtype == BOOL else FLOAT, literal=array)


def align(a: FieldTensor, other: Operand) -> tuple[FieldTensor, FieldTensor]:
    """Both operands with the same number of axes, so that their rows stay in front when they broadcast."""
    b = tensor(a.point, other)
    rank = max(a.ndim, b.ndim)
    return _lift_rank(a, rank), _lift_rank(b, rank)


def _lift_rank(x: FieldTensor, rank: int) -> FieldTensor:
    if x.ndim == rank:
        return x
    return x.reshape((1,) * (rank - x.ndim) + x.shape)


def gather(tensors: Sequence[FieldTensor], place: Callable[..., Positions]) -> FieldTensor:
    """Elements of one or several tensors, put where `place` puts their numbers.

    `place` gets one integer array for each tensor, in its shape, holding different numbers; it returns the array that says
    which element stands where in the result. The result still knows the members of maxima.
    """
    offset = 0
    numbered = []
    for x in tensors:
        numbered.append(np.arange(offset, offset + x.size).reshape(x.shape))
        offset += x.size
    positions = place(*numbered)
    first = tensors[0]
    rows = len(first.values)
    flat = np.concatenate([x.values.reshape(rows, -1) for x in tensors], 1)
    degree = first.degree
    for x in tensors[1:]:
        degree = degree.either(x.degree)
    dtype = first.dtype if all(x.dtype == first.dtype for x in tensors) else FLOAT
    return FieldTensor(first.point, flat[:, positions], degree, dtype, _gather_members(tensors, positions))


def _gather_members(tensors: Sequence[FieldTensor], positions: Positions) -> Extreme | None:
    """Members of the gathered elements; an element that is no extreme is the only member of its own set."""
    kinds = {x.extreme.kind for x in tensors if x.extreme is not None}
    if len(kinds) != 1:
        return None
    kind = kinds.pop()
    width = max(x.extreme.members.shape[-1] for x in tensors if x.extreme is not None)
    columns = []
    for x in tensors:
        members = x.extreme.members if x.extreme is not None else x.values[..., None]
        members = members.reshape(len(members), x.size, members.shape[-1])
        missing = width - members.shape[-1]
        columns.append(np.concatenate([members, np.repeat(members[..., :1], missing, -1)], -1) if missing else members)
    return Extreme(kind, np.concatenate(columns, 1)[:, positions])


# --- what is no polynomial


def opaque(name: str, x: FieldTensor) -> FieldTensor:
    """f(x) = f(y) where x = y, and no other law."""
    x.point.count(name, x.size, [x.degree])
    return x.derived(x.point.function(name, x.values), VARIABLE)


# --- roots and powers


def square_root(x: FieldTensor) -> FieldTensor:
    """sqrt(b) ** 2 = b for the inputs b that are declared not negative; literals with an exact root. Else opaque."""
    if x.literal is not None and x.literal.size and all(_has_root(float(v)) for v in x.literal.flat):
        values, degree = x.point.constants(np.sqrt(x.literal.astype(np.float64)))
        return x.derived(values, degree)
    square_mask, roots = x.point.known_roots(x.values)
    if square_mask.all():
        return x.derived(roots, x.degree)
    other = opaque("sqrt", x)
    return x.derived(np.where(square_mask, roots, other.values), x.degree.either(other.degree))


def _has_root(value: float) -> bool:
    """Whether the float32 root of a literal is read as a number whose square is what the literal is read as."""
    if not 0 <= value < np.inf:
        return False
    whole, root = read_literal(value), read_literal(float(np.sqrt(value)))
    square = root.factor * root.factor * Fraction(2) ** root.root2
    return not whole.root2 and square == whole.factor and 2 * root.root_pi == whole.root_pi


def absolute(x: FieldTensor) -> FieldTensor:
    """|x y| = |x| |y|, |-x| = |x|, |1| = 1, |0| = 0, and |b| = b for inputs that are declared not negative.

    x ** k with a random even k.
    """
    point = x.point
    square_mask, _ = point.known_roots(x.values)
    if square_mask.all():
        return x
    point.count("abs", x.size, [x.degree])
    powers = point.field.power(x.values, point.exponents("abs"))
    return x.derived(np.where(square_mask, x.values, powers), x.degree.either(VARIABLE))


def power(x: FieldTensor, exponent: FieldTensor) -> FieldTensor:
    """Whole literal exponents multiply; halves go through sqrt; others are opaque functions of the base."""
    literal = exponent.literal
    if literal is None or not literal.size or (literal != literal.flat[0]).any():
        point = x.point
        point.count("pow", 3 * max(x.size, exponent.size), [x.degree, exponent.degree])
        base, other = point.function("pow base", x.values), point.function("pow exponent", exponent.values)
        return x.derived(point.function("pow", point.field.add(base, other)), VARIABLE)
    return _power(x + 0 * exponent, float(literal.flat[0]))


def _power(x: FieldTensor, exponent: float) -> FieldTensor:
    if exponent < 0:
        return 1 / _power(x, -exponent)
    whole, rest = divmod(exponent, 1)
    if rest not in (0, 0.5) or exponent > _LARGEST_EXPONENT:
        return opaque(f"pow {read_literal(exponent).factor}", x)
    rows = len(x.values)
    raised = x.derived(x.point.field.power(x.values, [int(whole)] * rows), x.degree.power(int(whole)))
    return raised * square_root(x) if rest else raised


# --- predicates


def is_positive(x: FieldTensor) -> FieldTensor:
    """The truth value of x > 0: 0 is not positive, and no other law."""
    return _predicate("is positive", x, 0)


def is_zero(x: FieldTensor) -> FieldTensor:
    """The truth value of x = 0: true of 0, the same for x and -x, and no other law.

    At a random point nothing but an expression that is 0 everywhere is 0, and real data are not random: so a number that
    happens not to be 0 here must not count as one that never is.
    """
    return _predicate("is zero", x * x, 1)


def _predicate(name: str, x: FieldTensor, of_zero: int) -> FieldTensor:
    x.point.count(name, x.size, [x.degree])
    values = np.where(x.values == 0, of_zero, x.point.truth(name, x.values))
    return x.derived(values, VARIABLE, np.dtype(np.bool_))
