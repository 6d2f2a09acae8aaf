"""Equations of the generator as rules: pattern, check and rewrite are read off the two sides.

An equation holds wherever both sides are well-typed with one result. So its condition is that the shapes at hand are an
instance of the most general ones of both sides (`Typing`): the sizes are solved for, from every value on the left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import onnx_ir as ir

from bricolage.graph.graph import Dimension
from bricolage.rewrite import pattern
from bricolage.rewrite.facts import floating, shape
from bricolage.rewrite.generator.evaluate import concrete, instances
from bricolage.rewrite.generator.shapes import Shape, Size, combine, is_row, names
from bricolage.rewrite.generator.shapes import text as shown
from bricolage.rewrite.generator.term import Equation, Term, subterms, variables
from bricolage.rewrite.generator.vocabulary import BY_NAME
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any as AnyValue
from bricolage.rewrite.pattern import Op, Roots
from bricolage.rewrite.rule import Example, Mismatch, Operators, Result, Rule
from bricolage.rewrite.translation import FORMS, Dimensions, Parts

Known = dict[str, Any]
"""Size → dimension, row → dimensions."""


class EquationRule(Rule):
    """One direction of an equation that the generator found, or that a rule file states."""

    family = "generated"
    exploring = True
    since = 18

    def __init__(self, name: str, stated: Equation, *, unstable: bool = False) -> None:
        """Raises IllTyped: the sides have no shapes in common."""
        self._name = name
        self.stated = stated
        self.unstable = unstable
        self.typing = stated.typing

    @property
    def name(self) -> str:
        return self._name

    @property
    def equation(self) -> str:
        return str(self.stated)

    @property
    def conditions(self) -> str:
        found = ", ".join(f"{name}: {text}" for name, text in self.typing.text().items())
        return f"for floating-point {found}."

    # --- matching

    @cached_property
    def _roots(self) -> Roots:
        found = tuple(_pattern(term) for term in self.stated.left)
        return found[0] if len(found) == 1 or self._whole_split else found

    @property
    def _whole_split(self) -> bool:
        """Whether the left side is all outputs of one split: one root, whose outputs are replaced together."""
        return len({_key(term) for term in self.stated.left}) == 1 < len(self.stated.left)

    def patterns(self) -> Sequence[Roots]:
        return [self._roots]

    def check(self, match: Match) -> None:
        floating(match.root)
        for term in dict.fromkeys(part for side in self.stated.left for part in subterms(side)):
            if not isinstance(term, str):
                FORMS[term[0]].accepts(match.node(_key(term)))
        self._solve(match)

    def _solve(self, match: Match) -> Known:
        """What the sizes of the most general shapes are in this match. Raises Mismatch."""
        seen = dict.fromkeys(part for side in self.stated.left for part in subterms(side))
        found = solve((self.typing.shapes[part], shape(_value(match, part))) for part in seen)
        missing = {name for own in self.typing.shapes.values() for name in names(own)} - set(found)
        if missing:
            raise Mismatch(f"the left side does not say how large {min(missing)} is")
        return found

    # --- writing

    def rewrite(self, op: Operators, match: Match) -> Result:
        writer = _Writer(op, self.typing.shapes, self._solve(match), match)
        pairs = list(zip(self.stated.left, self.stated.right, strict=True))
        if self._whole_split:
            pairs.sort(key=lambda pair: FORMS[pair[0][0]].output)
        made = tuple(writer.value(term) for _, term in pairs)
        return made if len(made) > 1 else made[0]

    # --- examples

    @property
    def examples(self) -> tuple[Example, ...]:  # type: ignore[override]
        return tuple(_example(self.stated, shapes) for shapes in instances(self.stated))[:2]


def _key(term: Term) -> str:
    """The name of a subterm's operator in the pattern: one for the outputs of a split."""
    (node,) = {(BY_NAME[term[0]].node or term[0], *term[1:])}
    return str(node)


def _pattern(term: Term) -> Op:
    form = FORMS[term[0]]
    inputs: list[pattern.Pattern] = [
        AnyValue(child) if isinstance(child, str) else _pattern(child) for child in term[1:]
    ]
    inputs += [AnyValue(f"{_key(term)} operand {i}", optional=True) for i in range(form.operands)]
    return Op(frozenset([form.op_type]), tuple(inputs), _key(term), form.output)


def _value(match: Match, term: Term) -> ir.Value:
    if isinstance(term, str):
        return match[term]
    node = match.node(_key(term))
    return node.outputs[FORMS[term[0]].output]


class _Writer:
    """The right side, each operator once."""

    def __init__(self, op: Operators, shapes: Mapping[Term, Shape], sizes: Known, match: Match) -> None:
        self._op, self._shapes, self._sizes, self._match = op, shapes, sizes, match
        self._made: dict[str, tuple[ir.Value, ...]] = {}

    def value(self, term: Term) -> ir.Value:
        if isinstance(term, str):
            return self._match[term]
        key, form = _key(term), FORMS[term[0]]
        if key not in self._made:
            operands = [self.value(child) for child in term[1:]]
            made = dimensions(self._shapes[term], self._sizes)
            self._made[key] = form.write(self._op, operands, made, parts_of(term, self._shapes, self._sizes))
        return self._made[key][form.output]


def parts_of(term: Term, shapes: Mapping[Term, Shape], sizes: Known) -> Parts:
    """Where a split or slice cuts; None for any other operator."""
    bound = BY_NAME[term[0]].bind(*(shapes[child] for child in term[1:])) or {}
    if not term[0].startswith(("split", "slice")):
        return None
    return _dimension(bound["a"], sizes), _dimension(bound["b"], sizes)


# --- sizes ------------------------------------------------------------------------------------------------------


def solve(pairs: Iterable[tuple[Shape, Dimensions]]) -> Known:
    """What names stand for, where general shapes are these shapes.

    Raises:
        Mismatch: they cannot be.
    """
    found: Known = {}
    waiting: list[tuple[tuple[Any, ...], Dimension]] = []
    for general, given in pairs:
        if general == () and given == (1,):
            continue  # a factor of one element
        row = general[:1] if general and is_row(general[0]) else ()
        extra = len(given) - len(general) + len(row)
        if extra < 0 or (extra and not row):
            raise Mismatch(f"a shape {_words(given)} is not of the form {shown(general)}")
        if row and found.setdefault(str(row[0]), given[:extra]) != given[:extra]:
            raise Mismatch(f"the leading axes {_words(given[:extra])} and {_words(found[str(row[0])])} differ")
        for size, dimension in zip(general[len(row) :], given[extra:], strict=True):
            if dimension == "?":
                raise Mismatch("a size is not known")
            if isinstance(size, tuple):
                waiting.append((size, dimension))
            else:
                _agree(size, dimension, found)
        if "?" in given[:extra]:
            raise Mismatch("a size is not known")
    while waiting:
        rest = [(size, dimension) for size, dimension in waiting if not _settled(size, dimension, found)]
        if len(rest) == len(waiting):
            raise Mismatch(f"where {rest[0][1]} is to be divided is not known")
        waiting = rest
    return found


def _agree(size: Size, dimension: Dimension, found: Known) -> None:
    wanted = size if isinstance(size, int) else found.setdefault(str(size), dimension)
    if wanted != dimension:
        raise Mismatch(f"a size is {dimension}, not {wanted}")


def _settled(size: tuple[Any, ...], dimension: Dimension, found: Known) -> bool:
    """Checks a compound whose parts are known, or finds the one part that is not; False where that cannot be done yet."""
    kind, *parts = size
    open_parts = {part for part in parts if any(name not in found for name in names((part,)))}
    if not isinstance(dimension, int):
        raise Mismatch(f"the size {dimension} is not a number")
    if not open_parts:
        wanted = _dimension(size, found)
        if wanted != dimension:
            raise Mismatch(f"a size is {dimension}, not {wanted}")
        return True
    part = open_parts.pop()
    if open_parts or not isinstance(part, str) or kind == "half":
        return False
    if kind == "pad":
        rest = dimension - 2
    else:
        if parts[0] == parts[1]:
            rest, left = divmod(dimension, 2) if kind == "+" else (0, 1)
        else:
            (other,) = (_dimension(p, found) for p in parts if p != part)
            if not isinstance(other, int):
                raise Mismatch(f"the size {other} is not a number")
            rest, left = (dimension - other, 0) if kind == "+" else divmod(dimension, max(other, 1))
        if left:
            raise Mismatch(f"the size {dimension} cannot be divided")
    if rest < 1:
        raise Mismatch(f"the size {dimension} is too small")
    found[part] = rest
    return True


def _dimension(size: Size, known: Known) -> Dimension:
    """Raises Mismatch where a compound has a part that is not a number."""
    if isinstance(size, tuple):
        parts = [_dimension(part, known) for part in size[1:]]
        numbers = [part for part in parts if isinstance(part, int)]
        if len(numbers) < len(parts):
            raise Mismatch(f"a part of {shown((size,))} is not a number")
        return combine(size[0], numbers)
    found: Dimension = size if isinstance(size, int) else known[size]
    return found


def dimensions(general: Shape, known: Known) -> Dimensions:
    """A general shape where its names are known."""
    found: list[Dimension] = []
    for size in general:
        if is_row(size):
            found += known[str(size)]
        else:
            found.append(_dimension(size, known))
    return tuple(found)


def _words(given: Dimensions) -> str:
    return "×".join(map(str, given)) or "scalar"


# --- examples ---------------------------------------------------------------------------------------------------


class _Text:
    """Writes operators as the text of an example."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, list[int]] = {}
        self._count = 0

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def integers(self, values: Sequence[int]) -> Any:
        name = self._fresh("i")
        self.constants[name] = [int(value) for value in values]
        return name

    def many(self, op_type: str, outputs: int, *inputs: Any, **attributes: object) -> tuple[Any, ...]:
        made = tuple(self._fresh("t") for _ in range(outputs))
        words = ", ".join(f"{name}={str(value).replace(' ', '')}" for name, value in attributes.items())
        given = f"<{words}>" if words else ""
        self.lines.append(f"{', '.join(made)} = {op_type}{given}({', '.join(map(str, inputs))})")
        return made


def _example(equation: Equation, shapes: Mapping[str, Shape]) -> Example:
    """The left side at these shapes."""
    writer, own = _Text(), dict[Term, Shape](shapes.items())
    made: dict[str, tuple[Any, ...]] = {}

    def visit(term: Term) -> str:
        if isinstance(term, str):
            return term
        children: list[Any] = [visit(child) for child in term[1:]]
        key, form = _key(term), FORMS[term[0]]
        found = BY_NAME[term[0]].shape(*(own[child] for child in term[1:]))
        assert found is not None
        own[term] = found
        if key not in made:
            sizes = concrete(found)
            made[key] = form.write(cast(Operators, writer), children, sizes, parts_of(term, own, {}))
        return str(made[key][form.output])

    outputs = [visit(term) for term in equation.left]
    inputs = ", ".join(
        f"float{str(list(concrete(shapes[name]))).replace(' ', '') if shapes[name] else ''} {name}"
        for name in variables(*equation.left)
    )
    return Example(inputs, " ".join(writer.lines), writer.constants, outputs=", ".join(outputs))
