"""Values of the symbols of general shapes, solved for from given shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bricolage.device.tensor_form import Dimension
from bricolage.equations.term_shapes import Shape, Size, combine, is_row, shape_names
from bricolage.equations.term_shapes import format_terms as shown
from bricolage.rewrite.onnx_ops import Dimensions
from bricolage.rewrite.rule import MatchFailure

Known = dict[str, Any]
"""Size → dimension, row → dimensions."""


def solve(pairs: Iterable[tuple[Shape, Dimensions]]) -> Known:
    """The values of names for which general shapes are these shapes.

    Raises:
        MatchFailure: they cannot be.
    """
    solution: Known = {}
    waiting: list[tuple[tuple[Any, ...], Dimension]] = []
    for general, given in pairs:
        if general == () and given == (1,):
            continue  # a factor of one element
        row = general[:1] if general and is_row(general[0]) else ()
        extra = len(given) - len(general) + len(row)
        if extra < 0 or (extra and not row):
            raise MatchFailure(f"a shape {_words(given)} is not of the form {shown(general)}")
        if row and solution.setdefault(str(row[0]), given[:extra]) != given[:extra]:
            raise MatchFailure(f"the leading axes {_words(given[:extra])} and {_words(solution[str(row[0])])} differ")
        for size, given_size in zip(general[len(row) :], given[extra:], strict=True):
            if given_size == "?":
                raise MatchFailure("a size is not known")
            if isinstance(size, tuple):
                waiting.append((size, given_size))
            else:
                _agree(size, given_size, solution)
        if "?" in given[:extra]:
            raise MatchFailure("a size is not known")
    while waiting:
        rest = [(size, whole) for size, whole in waiting if not _settle_compound(size, whole, solution)]
        if len(rest) == len(waiting):
            raise MatchFailure(f"where {rest[0][1]} is to be divided is not known")
        waiting = rest
    return solution


def _agree(size: Size, given: Dimension, found: Known) -> None:
    wanted = size if isinstance(size, int) else found.setdefault(str(size), given)
    if wanted != given:
        raise MatchFailure(f"a size is {given}, not {wanted}")


def _settle_compound(size: tuple[Any, ...], whole: Dimension, found: Known) -> bool:
    """Checks a compound whose parts are known, or finds the one part that is not; False where that cannot be done yet."""
    kind, *parts = size
    open_parts = {part for part in parts if any(name not in found for name in shape_names((part,)))}
    if not isinstance(whole, int):
        raise MatchFailure(f"the size {whole} is not a number")
    if not open_parts:
        wanted = dimension(size, found)
        if wanted != whole:
            raise MatchFailure(f"a size is {whole}, not {wanted}")
        return True
    part = open_parts.pop()
    if open_parts or not isinstance(part, str) or kind == "half":
        return False
    if kind == "pad":
        rest = whole - 2
    else:
        if parts[0] == parts[1]:
            rest, left = divmod(whole, 2) if kind == "+" else (0, 1)
        else:
            (other,) = (dimension(p, found) for p in parts if p != part)
            if not isinstance(other, int):
                raise MatchFailure(f"the size {other} is not a number")
            rest, left = (whole - other, 0) if kind == "+" else divmod(whole, max(other, 1))
        if left:
            raise MatchFailure(f"the size {whole} cannot be divided")
    if rest < 1:
        raise MatchFailure(f"the size {whole} is too small")
    found[part] = rest
    return True


def dimension(size: Size, known: Known) -> Dimension:
    """Raises MatchFailure where a compound has a part that is not a number."""
    if isinstance(size, tuple):
        parts = [dimension(part, known) for part in size[1:]]
        numbers = [part for part in parts if isinstance(part, int)]
        if len(numbers) < len(parts):
            raise MatchFailure(f"a part of {shown((size,))} is not a number")
        return combine(size[0], numbers)
    extent: Dimension = size if isinstance(size, int) else known[size]
    return extent


def dimensions(general: Shape, known: Known) -> Dimensions:
    """A general shape where its names are known."""
    sizes: list[Dimension] = []
    for size in general:
        if is_row(size):
            sizes += known[str(size)]
        else:
            sizes.append(dimension(size, known))
    return tuple(sizes)


def _words(given: Dimensions) -> str:
    return "×".join(map(str, given)) or "scalar"
