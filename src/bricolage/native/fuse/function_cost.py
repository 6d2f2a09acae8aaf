"""What element-wise functions cost."""

from __future__ import annotations

from collections.abc import Mapping

NANOSECONDS: Mapping[str, float] = {
    "exp": 0.18,
    "expm1": 0.2,
    "pow": 1.9,
    "sin": 1.1,
    "cos": 1.1,
    "log": 0.27,
    "erf": 0.53,
    "tanh": 0.5,
    "sigmoid": 0.2,
    "silu": 0.2,
    "softplus": 0.9,
    "gelu": 0.6,
    "gelu_tanh": 0.6,
    "elu": 0.2,
    "sqrt": 0.035,
    "div": 0.02,
    "reciprocal": 0.02,
    "quotient": 2.0,
    "remainder": 2.0,
    "modulo": 2.0,
    "fmod": 10.0,
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh", "tan"), 10.0),
}
"""What an element of a function takes where that is clearly longer than a sum: `exp`, `pow`, `sin`, `log`, `erf`, `tanh`, `gelu`,
`sigmoid`, `softplus`, `sqrt` and `div` measured (see `memory_cost`), the others by their likeness. Powers and sines are computed in
double; integer division has no vector instruction, and `fmod` is a call."""

EXPENSIVE = frozenset(NANOSECONDS)
"""Not worth computing twice, by the rules of thumb."""
