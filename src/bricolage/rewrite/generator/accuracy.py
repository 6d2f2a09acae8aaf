"""Whether a rule costs accuracy in float32, by measurement: both sides in float32 against float64.

Not an analysis of the worst case, which every distributive law fails: inputs are drawn as activations and weights are, around
zero, of one sign, far from zero, and of different magnitudes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bricolage.rewrite.generator.arithmetic import Array, Reals
from bricolage.rewrite.generator.evaluate import concrete, evaluate, instances
from bricolage.rewrite.generator.shapes import Shape
from bricolage.rewrite.generator.term import Equation, Terms

BOUND = 1e-6
"""Relative error that the strictest precision word accepts."""
GROWTH = 8.0
"""A side that is so many times less accurate than the other, and beyond the bound, loses accuracy."""
_TRIALS = 4


def loses_accuracy(equation: Equation, seed: int = 0) -> bool:
    """Whether one side is much less accurate than the other, and less than the strictest precision word allows."""
    generator = np.random.default_rng([seed, 2])
    for shapes in instances(equation):
        for kind in range(4):
            for _ in range(_TRIALS):
                arrays = {name: _drawn(generator, concrete(shape), kind) for name, shape in shapes.items()}
                errors = sorted(_error(side, arrays, shapes) for side in (equation.left, equation.right))
                if errors[1] > BOUND and errors[1] > GROWTH * errors[0]:
                    return True
    return False


def _drawn(generator: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
    drawn = np.asarray(generator.standard_normal(shape))
    if kind == 1:
        drawn = np.abs(drawn)
    elif kind == 2:
        drawn = drawn + 30.0
    elif kind == 3:
        drawn = drawn * 10.0 ** generator.integers(-3, 4)
    return drawn.astype(np.float32)


def _error(side: Terms, arrays: Mapping[str, Array], shapes: Mapping[str, Shape]) -> float:
    """The largest relative error of the side's terms, by norm."""
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    found = 0.0
    for term in side:
        exact = evaluate(term, wide, shapes, Reals())
        single = evaluate(term, arrays, shapes, Reals(np.float32))
        size = float(np.linalg.norm(exact))
        if size:
            found = max(found, float(np.linalg.norm(single - exact)) / size)
    return found
