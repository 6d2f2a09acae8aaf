"""Functions that are no polynomials, by the laws that are known of them and nothing else.

Each is a random function of the field, the same one wherever its name occurs in a sample, and built so that the laws named
beside it hold identically. A law that is not here cannot be used by a proof; a law that the real function lacks would let
wrong rules pass, so each is tested against false neighbours.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from bricolage.rewrite.proof.constants import read
from bricolage.rewrite.proof.degree import VARIABLE

if TYPE_CHECKING:
    from bricolage.rewrite.proof.tensor import FieldTensor

_LARGEST_EXPONENT = 64


def opaque(name: str, x: FieldTensor) -> FieldTensor:
    """f(x) = f(y) where x = y, and no other law."""
    x.sample.count(name, x.size, [x.degree])
    return x.derived(x.sample.function(name, x.values), VARIABLE)


def odd(name: str, x: FieldTensor) -> FieldTensor:
    """f(-x) = -f(x)."""
    return x * opaque(name, x * x)


def even(name: str, x: FieldTensor) -> FieldTensor:
    """f(-x) = f(x)."""
    return opaque(name, x * x)


# --- the exponential and what is made of it


def exponential(x: FieldTensor) -> FieldTensor:
    """exp(x) exp(y) = exp(x + y), exp(0) = 1; not inside another exp, where it is opaque.

    A power of a random base modulo P, with the exponent's value modulo Q (as Mirage does: Wu et al., OSDI 2025). Modulo Q
    the result is a random function, which has fewer laws.
    """
    sample = x.sample
    sample.count("exp", x.size, [x.degree])
    values = sample.exponential(x.values)
    values[1::2] = sample.function("exp", x.values)[1::2]
    return x.derived(values, VARIABLE)


def expm1(x: FieldTensor) -> FieldTensor:
    return exponential(x) - 1


def sigmoid(x: FieldTensor) -> FieldTensor:
    return 1 / (1 + exponential(-x))


def tanh(x: FieldTensor) -> FieldTensor:
    twice = exponential(2 * x)
    return (twice - 1) / (twice + 1)


def sinh(x: FieldTensor) -> FieldTensor:
    grown = exponential(x)
    return (grown - 1 / grown) / 2


def cosh(x: FieldTensor) -> FieldTensor:
    grown = exponential(x)
    return (grown + 1 / grown) / 2


def softplus(x: FieldTensor) -> FieldTensor:
    return opaque("log", 1 + exponential(x))


# --- roots and powers


def square_root(x: FieldTensor) -> FieldTensor:
    """sqrt(b) ** 2 = b for the inputs b that are declared not negative; literals with an exact root. Else opaque."""
    if x.literal is not None and x.literal.size and all(_has_root(float(v)) for v in x.literal.flat):
        values, degree = x.sample.constants(np.sqrt(x.literal.astype(np.float64)))
        return x.derived(values, degree)
    known, roots = x.sample.known_roots(x.values)
    if known.all():
        return x.derived(roots, x.degree)
    other = opaque("sqrt", x)
    return x.derived(np.where(known, roots, other.values), x.degree.either(other.degree))


def _has_root(value: float) -> bool:
    """Whether the float32 root of a literal is read as a number whose square is what the literal is read as."""
    if not 0 <= value < np.inf:
        return False
    whole, root = read(value), read(float(np.sqrt(value)))
    square = root.factor * root.factor * Fraction(2) ** root.root2
    return not whole.root2 and square == whole.factor and 2 * root.root_pi == whole.root_pi


def absolute(x: FieldTensor) -> FieldTensor:
    """|x y| = |x| |y|, |-x| = |x|, |1| = 1, |0| = 0, and |b| = b for inputs that are declared not negative.

    x ** k with a random even k.
    """
    sample = x.sample
    known, _ = sample.known_roots(x.values)
    if known.all():
        return x
    sample.count("abs", x.size, [x.degree])
    powers = sample.field.power(x.values, sample.exponents("abs"))
    return x.derived(np.where(known, x.values, powers), x.degree.either(VARIABLE))


def power(x: FieldTensor, exponent: FieldTensor) -> FieldTensor:
    """Whole literal exponents multiply; halves go through sqrt; others are opaque functions of the base."""
    literal = exponent.literal
    if literal is None or not literal.size or (literal != literal.flat[0]).any():
        sample = x.sample
        sample.count("pow", 3 * max(x.size, exponent.size), [x.degree, exponent.degree])
        base, other = sample.function("pow base", x.values), sample.function("pow exponent", exponent.values)
        return x.derived(sample.function("pow", sample.field.add(base, other)), VARIABLE)
    return _power(x + 0 * exponent, float(literal.flat[0]))


def _power(x: FieldTensor, exponent: float) -> FieldTensor:
    if exponent < 0:
        return 1 / _power(x, -exponent)
    whole, rest = divmod(exponent, 1)
    if rest not in (0, 0.5) or exponent > _LARGEST_EXPONENT:
        return opaque(f"pow {read(exponent).factor}", x)
    rows = len(x.values)
    raised = x.derived(x.sample.field.power(x.values, [int(whole)] * rows), x.degree.power(int(whole)))
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
    x.sample.count(name, x.size, [x.degree])
    values = np.where(x.values == 0, of_zero, x.sample.truth(name, x.values))
    return x.derived(values, VARIABLE, np.dtype(np.bool_))


def _named(
    law: Callable[[str, FieldTensor], FieldTensor], *names: str
) -> dict[str, Callable[[FieldTensor], FieldTensor]]:
    return {name: functools.partial(law, name) for name in names}


UNARY: dict[str, Callable[[FieldTensor], FieldTensor]] = {
    "abs": absolute,
    "cosh": cosh,
    "exp": exponential,
    "expm1": expm1,
    "logical_not": operator.invert,
    "negative": operator.neg,
    "reciprocal": lambda x: 1 / x,
    "sinh": sinh,
    "sqrt": square_root,
    "tanh": tanh,
    **_named(even, "cos"),
    **_named(odd, "arcsin", "arcsinh", "arctan", "arctanh", "round", "sign", "sin", "tan"),
    **_named(opaque, "arccos", "arccosh", "ceil", "floor", "log"),
}
"""By numpy's names, as `lowering.arrays` calls them."""
