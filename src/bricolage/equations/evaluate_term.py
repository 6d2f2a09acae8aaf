"""Evaluating terms at given shapes, and asking whether two of them are equal there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bricolage.equations.number_domains import Array, Reals, TermArithmetic
from bricolage.equations.term import Equation, Term
from bricolage.equations.term_shapes import Shape, is_row, substitute, substitute_size
from bricolage.equations.vocabulary import BY_NAME

_SIZES = ((2, 3, 4, 5, 6, 7), (3, 2, 5, 2, 4, 3), (1, 4, 2, 3, 1, 5))
_ROWS = (0, 2, 1)
_ROUNDING = 1e-9


def evaluate_term(term: Term, arrays: Mapping[str, Array], shapes: Mapping[str, Shape], xp: TermArithmetic) -> Array:
    """What a term computes from arrays [samples..., *shape] of its variables; `shapes` hold names nowhere."""
    term_values: dict[Term, tuple[Array, Shape]] = {name: (arrays[name], shape) for name, shape in shapes.items()}

    def visit(part: Term) -> tuple[Array, Shape]:
        if part not in term_values:
            operator = BY_NAME[part[0]]
            children = [visit(child) for child in part[1:]]
            bound = operator.bind(*(shape for _, shape in children))
            assert bound is not None, f"{part} is not well-typed"
            sizes = {name: substitute_size(size, {}) for name, size in bound.items() if not is_row(name)}
            value = np.asarray(operator.meaning(xp, sizes, tuple(array for array, _ in children)))
            term_values[part] = value, substitute(operator.output, bound)
        return term_values[part]

    return visit(term)[0]


def instances(equation: Equation) -> Iterator[dict[str, Shape]]:
    """A few shapes of the variables, instances of the most general ones, compounds kept as they are."""
    typing = equation.typing
    for sizes, extra in zip(_SIZES, _ROWS, strict=True):
        bound: dict[str, object] = {}
        for i, name in enumerate(typing.names()):
            bound[name] = tuple(sizes[j] for j in range(extra)) if is_row(name) else sizes[i % len(sizes)]
        yield {name: substitute(shape, bound) for name, shape in typing.variables().items()}


def concrete(shape: Shape) -> tuple[int, ...]:
    """The sizes of a shape without names."""
    return tuple(substitute_size(size, {}) for size in shape)


def is_equal(equation: Equation, seed: int = 0) -> bool:
    """Whether both sides agree in float64 at several instances of their shapes, on inputs of either sign, of one, and large."""
    generator = np.random.default_rng([seed, 1])
    for shapes in instances(equation):
        drawn = {name: generator.standard_normal((4, *concrete(shape))) for name, shape in shapes.items()}
        arrays = {name: np.stack([x[0], abs(x[1]), -abs(x[2]), 5 * x[3]]) for name, x in drawn.items()}
        for a, b in zip(equation.left, equation.right, strict=True):
            left, right = (evaluate_term(term, arrays, shapes, Reals()) for term in (a, b))
            if left.shape != right.shape:
                return False
            if left.size and np.abs(left - right).max() > _ROUNDING * max(np.abs(left).max(), 1.0):
                return False
    return True
