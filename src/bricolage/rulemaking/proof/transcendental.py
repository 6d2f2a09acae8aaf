"""Functions that are no polynomials, by the laws that are known of them and nothing else.

Each is a random function of the field, the same one wherever its name occurs in a point, and built so that the laws named
next to it hold identically. A law that is not here cannot be used by a proof; a law that the real function lacks would let
wrong rules pass, so each is tested against false neighbours.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from bricolage.rulemaking.proof.degree import VARIABLE
from bricolage.rulemaking.proof.tensor import FieldTensor, absolute, opaque, square_root


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
    point = x.point
    point.count("exp", x.size, [x.degree])
    values = point.exponential(x.values)
    values[1::2] = point.function("exp", x.values)[1::2]
    return x.derived(values, VARIABLE)


def expm1(x: FieldTensor) -> FieldTensor:
    """exp(x) - 1, by the laws of exp."""
    return exponential(x) - 1


def sigmoid(x: FieldTensor) -> FieldTensor:
    """1 / (1 + exp(-x)), by the laws of exp."""
    return 1 / (1 + exponential(-x))


def tanh(x: FieldTensor) -> FieldTensor:
    """(exp(2x) - 1) / (exp(2x) + 1), by the laws of exp."""
    twice = exponential(2 * x)
    return (twice - 1) / (twice + 1)


def sinh(x: FieldTensor) -> FieldTensor:
    """(exp(x) - exp(-x)) / 2, by the laws of exp."""
    grown = exponential(x)
    return (grown - 1 / grown) / 2


def cosh(x: FieldTensor) -> FieldTensor:
    """(exp(x) + exp(-x)) / 2, by the laws of exp."""
    grown = exponential(x)
    return (grown + 1 / grown) / 2


def softplus(x: FieldTensor) -> FieldTensor:
    """log(1 + exp(x)), where log is opaque."""
    return opaque("log", 1 + exponential(x))


def _bind_names(
    law: Callable[[str, FieldTensor], FieldTensor], *names: str
) -> dict[str, Callable[[FieldTensor], FieldTensor]]:
    return {name: functools.partial(law, name) for name in names}


_ODD = ("arcsin", "arcsinh", "arctan", "arctanh", "round", "sign", "sin", "tan")
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
    **_bind_names(even, "cos"),
    **_bind_names(odd, *_ODD),
    **_bind_names(opaque, "arccos", "arccosh", "ceil", "floor", "log"),
}
"""By numpy's names, as `lowering.arrays` calls them."""
