"""Whether a rule costs accuracy in float32, by measurement: both sides in float32 against float64.

Inputs are drawn around zero, of one sign, far from zero, of different magnitudes, and nearly opposite to one another, so that
their sums cancel: (x + y) w is then accurate where x w + y w is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Literal

import numpy as np

from bricolage.equations.evaluate_term import concrete, evaluate_term, instances
from bricolage.equations.number_domains import Array, Reals
from bricolage.equations.term import Equation, Terms
from bricolage.equations.term_shapes import Shape

BOUND = 1e-6
"""Relative error that the strictest precision word accepts."""
GROWTH = 8.0
"""A side that is less accurate than the other by this factor, and beyond the bound, loses accuracy."""
_TRIALS = 4
_NEAR = 1e-3
Side = Literal["left", "right"]


def inaccurate(equation: Equation, seed: int = 0) -> list[Side]:
    """The sides that somewhere are much less accurate than the other, and less than the strictest precision word allows."""
    lossy_sides: set[Side] = set()
    generator = np.random.default_rng([seed, 2])
    for shapes in instances(equation):
        sizes = {name: concrete(shape) for name, shape in shapes.items()}
        opposite = [pair for pair in combinations(sizes, 2) if sizes[pair[0]] == sizes[pair[1]]]
        for kind, pair in [*((kind, None) for kind in range(4)), *((0, pair) for pair in opposite)]:
            for _ in range(_TRIALS):
                arrays = {name: _draw_array(generator, dimensions, kind) for name, dimensions in sizes.items()}
                if pair is not None:
                    first, other = pair
                    near = -arrays[first] * (1 + _NEAR * generator.standard_normal(sizes[first]))
                    arrays[other] = np.asarray(near, np.float32)
                left, right = (_error(side, arrays, shapes) for side in (equation.left, equation.right))
                if left > max(BOUND, GROWTH * right):
                    lossy_sides.add("left")
                if right > max(BOUND, GROWTH * left):
                    lossy_sides.add("right")
    return sorted(lossy_sides)


def _draw_array(generator: np.random.Generator, shape: tuple[int, ...], kind: int) -> Array:
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
    largest_error = 0.0
    for term in side:
        exact = evaluate_term(term, wide, shapes, Reals())
        single = evaluate_term(term, arrays, shapes, Reals(np.float32))
        size = float(np.linalg.norm(exact))
        if size:
            largest_error = max(largest_error, float(np.linalg.norm(single - exact)) / size)
    return largest_error
