"""What a backend offers to run: patterns over operators, constraints on what they match, and rules that grow it.

The three are those of Collage (section 3: backend pattern, constraint, pattern rule); patterns here may also share values and
operators, and have several roots. Backends import them from `bricolage.backends.interface`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bricolage.graph.graph import Graph, Operator


@dataclass(frozen=True)
class Shared:
    """In a pattern: a value left outside the region, the same wherever the name stands."""

    name: str


@dataclass(frozen=True)
class Pattern:
    """A graph over operators, read from its root (the last operator) to its inputs.

    `types` are the accepted operator types of the root; empty accepts any. `inputs` are matched to the root's inputs
    in order, in either order for commutative operators; None means any value that is not part of the region. Where
    a `label` stands several times, it is one operator that several others read.
    """

    types: frozenset[str]
    inputs: tuple[Pattern | Shared | None, ...] | None = None
    domain: str = ""
    label: str = ""


ANY: None = None
"""In a pattern: any value, left outside the region."""


def op(types: str, *inputs: Pattern | Shared | None, domain: str = "", label: str = "") -> Pattern:
    """`op("Conv")`, `op("Relu|Clip", op("Conv"))`, `op("Add", op("MatMul"), ANY)`. Without inputs, anything feeds it.
    `op("Mul", op("Conv", label="c"), op("Sigmoid", op("Conv", label="c")))` is a diamond."""
    return Pattern(frozenset(types.split("|")), inputs or None, domain, label)


def any_operator() -> Pattern:
    """Matches every single operator; the constraint then decides."""
    return Pattern(frozenset())


Constraint = Callable[["Graph", "tuple[Operator, ...]"], "str | None"]
"""Given the matched operators (topological order): None to accept, or the reason for declining."""


def accept(_graph: Graph, _operators: tuple[Operator, ...]) -> str | None:
    """The constraint that accepts everything."""
    return None


@dataclass(frozen=True)
class Growth:
    """How a match grows. From the matched region, the immediate post-dominator is absorbed with everything between, as long
    as `accepts` says None for each operator absorbed; every step is a candidate (nested prefixes). With `maximal`, the
    largest convex regions of accepted operators, and the graph's segments inside them, are candidates: this makes an engine.
    """

    accepts: Callable[[Graph, Operator], str | None]
    limit: int = 12
    """Largest number of operators of a grown prefix."""
    maximal: bool = False


@dataclass(frozen=True)
class Claim:
    """A pattern with its constraint and its growth rule. Several patterns are the roots of one region: each but the first shares a
    value or an operator with one before it, as in `(op("MatMul", Shared("x"), ANY), op("MatMul", Shared("x"), ANY))`.

    Raises ValueError when a root shares nothing, or a region of several roots is to grow.
    """

    name: str
    pattern: Pattern | tuple[Pattern, ...]
    constraint: Constraint = accept
    growth: Growth | None = None

    def __post_init__(self) -> None:
        first, *others = self.roots
        seen_names = _names(first)
        for root in others:
            if not seen_names & _names(root):
                raise ValueError(f"a root of the claim '{self.name}' shares nothing with those before it")
            seen_names |= _names(root)
        if others and self.growth is not None:
            raise ValueError(f"the claim '{self.name}' has several roots, so there is no one operator to grow from")

    @property
    def roots(self) -> tuple[Pattern, ...]:
        """The patterns."""
        return self.pattern if isinstance(self.pattern, tuple) else (self.pattern,)


def _names(pattern: Pattern) -> frozenset[str]:
    """Of shared values and labelled operators."""
    names = frozenset([pattern.label] if pattern.label else [])
    for wanted in pattern.inputs or ():
        if isinstance(wanted, Shared):
            names |= {wanted.name}
        elif wanted is not None:
            names |= _names(wanted)
    return names
