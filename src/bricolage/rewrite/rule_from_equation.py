"""Equations of the generator as rules: pattern, check and rewrite are read off the two sides.

An equation holds wherever both sides are well-typed with one result. So its condition is that the given shapes are an
instance of the most general ones of both sides (`Typing`): the sizes are solved for, from every value on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import onnx_ir as ir

from bricolage.equations.evaluate_term import concrete, instances
from bricolage.equations.term import Equation, Term, Typing, subterms, variables
from bricolage.equations.term_shapes import Shape, shape_names
from bricolage.equations.vocabulary import BY_NAME
from bricolage.rewrite import pattern
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.onnx_ops import ONNX_OPERATORS, Parts
from bricolage.rewrite.pattern import AnyValue, Op, Roots
from bricolage.rewrite.predicates import floating, shape
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.unification import Known, dimension, dimensions, solve


class EquationRule(Rule):
    """One direction of an equation that the generator found, or that a rule file states."""

    family = "generated"
    since = 18

    def __init__(self, name: str, stated: Equation, *, unstable: bool = False, cost_based: bool = True) -> None:
        """The sides must have shapes in common; see `Equation.typing`."""
        self._name = name
        self.stated = stated
        self.unstable = unstable
        self.cost_based = cost_based

    @property
    def name(self) -> str:
        """As it was given: of a rule file the stem and the line."""
        return self._name

    @property
    def typing(self) -> Typing:
        """The most general shapes of the equation."""
        return self.stated.typing

    @property
    def equation(self) -> str:
        """Both sides as terms."""
        return str(self.stated)

    @property
    def conditions(self) -> str:
        """The shapes of the variables, which hold floating-point numbers."""
        shape_texts = ", ".join(f"{name}: {text}" for name, text in self.typing.text().items())
        return f"for floating-point {shape_texts}."

    # --- matching

    @cached_property
    def _roots(self) -> Roots:
        patterns = tuple(_pattern(term) for term in self.stated.left)
        return patterns[0] if len(patterns) == 1 or self._whole_split else patterns

    @property
    def _whole_split(self) -> bool:
        """Whether the left side is all outputs of one split: one root, whose outputs are replaced together."""
        return len({_key(term) for term in self.stated.left}) == 1 < len(self.stated.left)

    def patterns(self) -> Sequence[Roots]:
        """The left side, its variables of any value."""
        return [self._roots]

    def check(self, match: Match) -> None:
        """Floating-point numbers of shapes that the most general ones can be. Raises MatchFailure."""
        floating(match.root)
        for term in dict.fromkeys(part for side in self.stated.left for part in subterms(side)):
            if not isinstance(term, str):
                ONNX_OPERATORS[term[0]].accepts(match.node(_key(term)))
        self._solve(match)

    def _solve(self, match: Match) -> Known:
        """What the sizes of the most general shapes are in this match. Raises MatchFailure."""
        seen = dict.fromkeys(part for side in self.stated.left for part in subterms(side))
        solved_sizes = solve((self.typing.shapes[part], shape(_value(match, part))) for part in seen)
        missing = {name for term_shape in self.typing.shapes.values() for name in shape_names(term_shape)} - set(
            solved_sizes
        )
        if missing:
            raise MatchFailure(f"the left side does not say how large {min(missing)} is")
        return solved_sizes

    # --- writing

    def rewrite(self, op: Operators, match: Match) -> Result:
        """The right side, each operator once. Raises MatchFailure where a shape cannot be written."""
        writer = _RightSideWriter(op, self.typing.shapes, self._solve(match), match)
        pairs = list(zip(self.stated.left, self.stated.right, strict=True))
        if self._whole_split:
            pairs.sort(key=lambda pair: ONNX_OPERATORS[pair[0][0]].output)
        outputs = tuple(writer.value(term) for _, term in pairs)
        return outputs if len(outputs) > 1 else outputs[0]

    # --- examples

    @property
    def examples(self) -> tuple[Example, ...]:  # type: ignore[override]
        """The left side at two instances of its shapes."""
        return tuple(_example(self.stated, shapes) for shapes in instances(self.stated))[:2]


def _key(term: Term) -> str:
    """The name of a subterm's operator in the pattern: one for the outputs of a split."""
    (node,) = {(BY_NAME[term[0]].node or term[0], *term[1:])}
    return str(node)


def _pattern(term: Term) -> Op:
    operator = ONNX_OPERATORS[term[0]]
    inputs: list[pattern.ValuePattern] = [
        AnyValue(child) if isinstance(child, str) else _pattern(child) for child in term[1:]
    ]
    inputs += [AnyValue(f"{_key(term)} operand {i}", optional=True) for i in range(operator.operands)]
    return Op(frozenset([operator.op_type]), tuple(inputs), _key(term), operator.output)


def _value(match: Match, term: Term) -> ir.Value:
    if isinstance(term, str):
        return match[term]
    node = match.node(_key(term))
    return node.outputs[ONNX_OPERATORS[term[0]].output]


class _RightSideWriter:
    """The right side, each operator once."""

    def __init__(self, op: Operators, shapes: Mapping[Term, Shape], sizes: Known, match: Match) -> None:
        self._op, self._shapes, self._sizes, self._match = op, shapes, sizes, match
        self._made: dict[str, tuple[ir.Value, ...]] = {}

    def value(self, term: Term) -> ir.Value:
        if isinstance(term, str):
            return self._match[term]
        key, operator = _key(term), ONNX_OPERATORS[term[0]]
        if key not in self._made:
            operands = [self.value(child) for child in term[1:]]
            output_shape = dimensions(self._shapes[term], self._sizes)
            self._made[key] = operator.write(
                self._op, operands, output_shape, parts_of(term, self._shapes, self._sizes)
            )
        return self._made[key][operator.output]


def parts_of(term: Term, shapes: Mapping[Term, Shape], sizes: Known) -> Parts:
    """Where a split or slice cuts; None for any other operator."""
    bound = BY_NAME[term[0]].bind(*(shapes[child] for child in term[1:])) or {}
    if not term[0].startswith(("split", "slice")):
        return None
    return dimension(bound["a"], sizes), dimension(bound["b"], sizes)


# --- examples ---------------------------------------------------------------------------------------------------


class _ExampleText:
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
        output_names = tuple(self._fresh("t") for _ in range(outputs))
        words = ", ".join(f"{name}={str(value).replace(' ', '')}" for name, value in attributes.items())
        given = f"<{words}>" if words else ""
        self.lines.append(f"{', '.join(output_names)} = {op_type}{given}({', '.join(map(str, inputs))})")
        return output_names


def _example(equation: Equation, shapes: Mapping[str, Shape]) -> Example:
    """The left side at these shapes."""
    writer, term_shapes = _ExampleText(), dict[Term, Shape](shapes.items())
    written_outputs: dict[str, tuple[Any, ...]] = {}

    def visit(term: Term) -> str:
        if isinstance(term, str):
            return term
        children: list[Any] = [visit(child) for child in term[1:]]
        key, operator = _key(term), ONNX_OPERATORS[term[0]]
        term_shape = BY_NAME[term[0]].shape(*(term_shapes[child] for child in term[1:]))
        assert term_shape is not None
        term_shapes[term] = term_shape
        if key not in written_outputs:
            sizes = concrete(term_shape)
            written_outputs[key] = operator.write(
                cast(Operators, writer), children, sizes, parts_of(term, term_shapes, {})
            )
        return str(written_outputs[key][operator.output])

    outputs = [visit(term) for term in equation.left]
    inputs = ", ".join(
        f"float{str(list(concrete(shapes[name]))).replace(' ', '') if shapes[name] else ''} {name}"
        for name in variables(*equation.left)
    )
    return Example(inputs, " ".join(writer.lines), writer.constants, outputs=", ".join(outputs))
