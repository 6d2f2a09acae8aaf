"""Einsum: as a matrix product of two operands, or sums and transpositions of one."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from bricolage.lowering.arrays import Arrays
from bricolage.native.ir.lowerings.lowering_context import NoLowering
from bricolage.native.ir.lowerings.traced import TracedArray


def contract_operands(xp: Arrays, equation: str, xs: Sequence[TracedArray]) -> TracedArray:
    """What an equation says of one or two operands.

    Raises:
        NoLowering: it says it of more, or of diagonals, sums of one operand alone, or broadcasting.
    """
    given, _, wanted = equation.partition("->")
    terms = given.split(",")
    if "->" not in equation:
        letters = sorted(given.replace(",", "").replace(".", ""))
        wanted = "".join(c for c in dict.fromkeys(letters) if letters.count(c) == 1)
        wanted = "..." * ("." in given) + wanted
    if len(terms) > 2 or any(len(set(term)) < len(term.replace(".", "")) + ("." in term) for term in terms):
        raise NoLowering(f"Einsum of {equation}")
    terms, wanted = _spelled_out(terms, wanted, [x.ndim for x in xs])
    if len(xs) == 1:
        (term,) = terms
        kept = [c for c in term if c in wanted]
        reduced: TracedArray = xp.sum(xs[0], tuple(i for i, c in enumerate(term) if c not in wanted))
        return _transpose_array(xp, reduced, [kept.index(c) for c in wanted])
    return _product(xp, terms, wanted, xs[0], xs[1])


def _product(xp: Arrays, terms: list[str], wanted: str, left: TracedArray, right: TracedArray) -> TracedArray:
    a, b = terms
    for letters, other in ((a, b), (b, a)):
        if any(c not in wanted and c not in other for c in letters):
            raise NoLowering("Einsum that sums over a dimension of one operand alone")
    sizes = dict(zip(b, right.shape, strict=True)) | dict(zip(a, left.shape, strict=True))
    if any(sizes[c] != extent for c, extent in zip(b, right.shape, strict=True)):
        raise NoLowering("Einsum that broadcasts")
    batch = [c for c in a if c in b and c in wanted]
    summed = [c for c in a if c in b and c not in wanted]
    rows = [c for c in a if c not in b]
    columns = [c for c in b if c not in a]

    def matrix(x: TracedArray, term: str, order: list[list[str]]) -> TracedArray:
        turned = _transpose_array(xp, x, [term.index(c) for part in order for c in part])
        return turned.reshape(tuple(math.prod(sizes[c] for c in part) for part in order))

    product = xp.matmul(matrix(left, a, [batch, rows, summed]), matrix(right, b, [batch, summed, columns]))
    order = batch + rows + columns
    apart = product.reshape(tuple(sizes[c] for c in order))
    return _transpose_array(xp, apart, [order.index(c) for c in wanted])


def _transpose_array(xp: Arrays, x: TracedArray, order: Sequence[int]) -> TracedArray:
    turned: TracedArray = xp.transpose(x, order)
    return turned


def _spelled_out(terms: list[str], wanted: str, ranks: list[int]) -> tuple[list[str], str]:
    """Letters in place of the ellipsis."""
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    free = "".join(c for c in string.ascii_letters if c not in "".join(terms))[: max(hidden)]
    full = [
        term.replace("...", free[len(free) - hidden_rank :]) for term, hidden_rank in zip(terms, hidden, strict=True)
    ]
    return full, wanted.replace("...", free)
