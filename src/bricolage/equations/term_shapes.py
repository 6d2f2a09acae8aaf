"""Shapes with symbolic sizes: what an operator of the vocabulary accepts, and what a term has most generally.

A size is a whole number, a name, or a compound: `("+", a, b)` is what a concatenation makes and a split takes apart again (the
split tree of TASO, SOSP 2019), `("*", a, b)` two merged axes, `("half", a)` what a stride of 2 leaves, `("pad", a)` one more at
both ends. A shape may begin with a row, a name such as `...`, which means any number of axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Size: TypeAlias = "int | str | tuple[Any, ...]"
Shape: TypeAlias = tuple[Size, ...]
Bound: TypeAlias = dict[str, Any]
"""Size name → size; row → shape."""


class IllTyped(Exception):
    """Shapes that do not go together."""


def is_row(size: Size) -> bool:
    """Whether a size means any number of leading axes: `...`, `...2`."""
    return isinstance(size, str) and size.startswith("...")


def matches_ground(pattern: Shape, ground: Shape, bound: Bound) -> bool:
    """Whether names can be chosen so that `pattern` is `ground`, whose names are constants; `bound` gains the choice."""
    if pattern and is_row(pattern[0]):
        extra = len(ground) - len(pattern) + 1
        if extra < 0 or bound.setdefault(str(pattern[0]), ground[:extra]) != ground[:extra]:
            return False
        pattern, ground = pattern[1:], ground[extra:]
    return len(pattern) == len(ground) and all(_fits(p, g, bound) for p, g in zip(pattern, ground, strict=True))


def _fits(pattern: Size, ground: Size, bound: Bound) -> bool:
    if isinstance(pattern, str):
        return bool(bound.setdefault(pattern, ground) == ground)
    if isinstance(pattern, tuple):
        return (
            isinstance(ground, tuple)
            and pattern[0] == ground[0]
            and all(_fits(p, g, bound) for p, g in zip(pattern[1:], ground[1:], strict=True))
        )
    return pattern == ground


def substitute(shape: Shape, bound: Mapping[str, Any]) -> Shape:
    """Names replaced by what they are bound to; a name that is not bound stays."""
    sizes: list[Size] = []
    for size in shape:
        if is_row(size):
            sizes += bound.get(str(size), (size,))
        else:
            sizes.append(_substitute(size, bound))
    return tuple(sizes)


def _substitute(size: Size, bound: Mapping[str, Any]) -> Size:
    if isinstance(size, str):
        bound_size: Size = bound.get(size, size)
        return bound_size
    if isinstance(size, tuple):
        return (size[0], *(_substitute(part, bound) for part in size[1:]))
    return size


def shape_names(shape: Shape) -> Iterator[str]:
    """Names in a shape, rows included, in order, with repetitions."""
    for size in shape:
        if isinstance(size, str):
            yield size
        elif isinstance(size, tuple):
            yield from shape_names(size[1:])


def nesting_depth(shape: Shape) -> int:
    """How deep compounds lie in one another."""
    return max((1 + nesting_depth(size[1:]) for size in shape if isinstance(size, tuple)), default=0)


def substitute_size(size: Size, sizes: Mapping[str, int]) -> int:
    """The size where names have these values."""
    if isinstance(size, int):
        return size
    if isinstance(size, str):
        return sizes[size]
    parts = [substitute_size(part, sizes) for part in size[1:]]
    return combine(size[0], parts)


def combine(kind: str, parts: list[int]) -> int:
    """The number that a compound of numbers is."""
    if kind == "+":
        return parts[0] + parts[1]
    if kind == "*":
        return parts[0] * parts[1]
    return (parts[0] + 1) // 2 if kind == "half" else parts[0] + 2


def format_terms(shape: Shape) -> str:
    """`[..., m, k+l]`."""
    return f"[{', '.join(_text(size) for size in shape)}]"


def _text(size: Size) -> str:
    if not isinstance(size, tuple):
        return str(size)
    if size[0] in "+*":
        left, right = (f"({_text(part)})" if isinstance(part, tuple) else _text(part) for part in size[1:])
        return f"{left}{size[0]}{right}"
    return f"{size[0]}({_text(size[1])})"


@dataclass
class Unifier:
    """Robinson's unification over shapes. Raises IllTyped where two shapes cannot be made equal."""

    bound: Bound = field(default_factory=dict)

    def size(self, size: Size) -> Size:
        """A size with everything known put in."""
        while isinstance(size, str) and size in self.bound:
            size = self.bound[size]
        if isinstance(size, tuple):
            return (size[0], *(self.size(part) for part in size[1:]))
        return size

    def shape(self, shape: Shape) -> Shape:
        """A shape with everything known put in."""
        while shape and is_row(shape[0]) and shape[0] in self.bound:
            shape = (*self.bound[str(shape[0])], *shape[1:])
        return tuple(size if is_row(size) else self.size(size) for size in shape)

    def unify(self, left: Shape, right: Shape) -> None:
        """Binds names so that the two shapes are equal. Raises IllTyped where they cannot be."""
        left, right = self.shape(left), self.shape(right)
        if len(left) - _open(left) > len(right) - _open(right):
            left, right = right, left
        tail = len(left) - _open(left)
        for a, b in zip(left[len(left) - tail :], right[len(right) - tail :], strict=True):
            self._unify_sizes(a, b)
        rest = right[: len(right) - tail]
        if _open(left):
            if rest != left[:1]:
                if left[0] in rest:
                    raise IllTyped(f"{format_terms(left)} has not the rank of {format_terms(right)}")
                self.bound[str(left[0])] = rest
        elif rest:
            if len(rest) > 1 or not is_row(rest[0]):
                raise IllTyped(f"{format_terms(left)} has not the rank of {format_terms(right)}")
            self.bound[str(rest[0])] = ()

    def _unify_sizes(self, a: Size, b: Size) -> None:
        a, b = self.size(a), self.size(b)
        if a == b:
            return
        if not isinstance(a, str):
            a, b = b, a
        if isinstance(a, str):
            if isinstance(b, tuple) and a in shape_names((b,)):
                raise IllTyped(f"{a} would be part of itself")
            self.bound[a] = b
        elif isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0]:
            for x, y in zip(a[1:], b[1:], strict=True):
                self._unify_sizes(x, y)
        else:
            raise IllTyped(f"{_text(a)} is not {_text(b)}")


def _open(shape: Shape) -> int:
    return int(bool(shape) and is_row(shape[0]))
