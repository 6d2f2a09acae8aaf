"""The meaning of a literal floating-point number in a graph.

A finite float is a dyadic rational, m * 2 ** e, and that is how it is read: 0.5 * 2 is 1. But no float is 1/3 or
sqrt(2) as a float, so a literal that is the float32 nearest to one of a few declared numbers is read as that number:

* n / d with |n| and d at most 128 (0.1 is 1/10, 0.16666667 is 1/6), d no power of two;
* a power of two times sqrt(2), pi, or one of the products of their roots in `BASES`, of either sign.

Exact relations hold between them: sqrt(2) * sqrt(2) = 2, and sqrt(2 / pi) = sqrt(2) * (1 / sqrt(pi)). A proof lists what
was read in this way, because it then holds up to the rounding of these literals.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_LARGEST = 128
_BEYOND = float(np.finfo(np.float32).max)

BASES: dict[str, tuple[int, int, float]] = {
    "sqrt(2)": (1, 0, math.sqrt(2)),
    "1/sqrt(pi)": (0, 1, 1 / math.sqrt(math.pi)),
    "sqrt(2/pi)": (1, 1, math.sqrt(2 / math.pi)),
    "sqrt(pi)": (0, -1, math.sqrt(math.pi)),
    "sqrt(2 pi)": (1, -1, math.sqrt(2 * math.pi)),
    "pi": (0, -2, math.pi),
    "1/pi": (0, 2, 1 / math.pi),
}
"""Name -> (exponent of sqrt(2), exponent of 1/sqrt(pi), value)."""


@dataclass(frozen=True)
class Reading:
    """factor * sqrt(2) ** root2 * (1 / sqrt(pi)) ** root_pi; `name` is empty when the literal is read digit by digit."""

    factor: Fraction
    root2: int = 0
    root_pi: int = 0
    name: str = ""


@functools.lru_cache(maxsize=4096)
def read_literal(value: float) -> Reading:
    """The number that a finite literal means. It is rounded to float32 first, as ONNX attributes are.

    Raises:
        ValueError: the literal is infinite, not a number, or beyond float32.
    """
    single = _nearest(value)
    if not math.isfinite(single):
        raise ValueError(f"the constant {value} is not finite in float32")
    exact = Fraction(single)
    simple = exact.limit_denominator(_LARGEST)
    if (
        simple != exact
        and abs(simple.numerator) <= _LARGEST
        and _nearest(simple.numerator / simple.denominator) == single
    ):
        return Reading(simple, name=f"{single!r} = {simple}")
    for name, (root2, root_pi, base) in BASES.items():
        if single:
            power = round(math.log2(abs(single) / base))
            if _nearest(math.copysign(math.ldexp(base, power), single)) == single:
                factor = Fraction(2) ** power * (1 if single > 0 else -1)
                return Reading(factor, root2, root_pi, f"{single!r} = {factor} {name}")
    return Reading(exact)


def _nearest(number: float) -> float:
    """The nearest float32; infinite beyond them."""
    return float(np.float32(number)) if abs(number) <= _BEYOND else math.inf
