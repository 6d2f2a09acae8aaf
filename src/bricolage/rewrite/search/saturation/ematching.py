"""Finding the patterns of rules among classes: the same language and the same answers as `bricolage.rewrite.engine.matching`, where
an operator may be any node of its class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, product
from typing import TypeAlias

from bricolage.egraph.egraph import ENode
from bricolage.graph.properties import COMMUTATIVE
from bricolage.rewrite.engine.matching import matches_number, way_up
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, ValuePattern, Weight
from bricolage.rewrite.search.saturation.terms import ConstantLeaf, Encoder, Operation, OutputProjection

_CHOICES = 16
"""Ways tried to take a node from each class that a pattern with open inputs reads."""
MOST_LOOKS = 200_000
"""Nodes that are held against the operators of one rule's patterns; some half a second. In classes that contain
themselves (x = x · 1), the ways through a pattern grow exponentially with its depth."""


@dataclass(frozen=True)
class MatchedNode:
    """An operator of a match: a node, what it reads, which of its outputs is meant. An input is a class, or another operator."""

    node: ENode
    inputs: tuple[MatchedNode | int | None, ...]
    output: int
    name: str

    @property
    def operation(self) -> Operation:
        """What the operator is. The node is none of a leaf or a projection."""
        assert isinstance(self.node.operator, Operation)
        return self.node.operator


Bound: TypeAlias = Mapping[str, int | None]
"""The class of each variable; None for an absent input."""


@dataclass(frozen=True)
class EMatch:
    """The operators that match the roots of a pattern, and the classes of its variables."""

    roots: tuple[MatchedNode, ...]
    classes: tuple[int, ...]
    """What the roots compute."""
    bound: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True)
class _PartialMatch:
    bound: Bound = field(default_factory=dict)
    named: Mapping[str, ENode] = field(default_factory=dict)


class _MatchLimitError(Exception):
    """More would take too long."""


class ClassIndex:
    """An e-graph as it was when this was made, indexed: which classes hold which operator types, and who reads what."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, egraph = encoder, encoder.egraph
        self.looks = 0
        """Nodes held against operators by the last `matches`."""
        self._nodes = {number: egraph.nodes(number) for number in egraph.classes()}
        self._holding: dict[str, dict[int, None]] = {}
        self.readers: dict[int, list[tuple[ENode, int]]] = {}
        for number, nodes in self._nodes.items():
            for node in nodes:
                for child in dict.fromkeys(node.children):
                    self.readers.setdefault(child, []).append((node, number))
                if isinstance(node.operator, Operation):
                    self._holding.setdefault(node.operator.op_type, {})[number] = None

    def nodes(self, number: int) -> Sequence[ENode]:
        """The nodes of a class; none of one that is younger."""
        return self._nodes.get(number, ())

    def matches(self, roots: Sequence[Op]) -> Iterator[EMatch]:
        """Every way in which the patterns match together, as far as `MOST_LOOKS` reach; roots are different classes."""
        self.looks = 0
        try:
            yield from self._matches(roots)
        except _MatchLimitError:
            return

    def _matches(self, roots: Sequence[Op]) -> Iterator[EMatch]:
        first = roots[0]
        for op_type in sorted(first.types):
            for whole in self._holding.get(op_type, ()):
                for number in self._outputs(whole, op_type, first.output):
                    for state, chosen in self._operator(first, number, _PartialMatch()):
                        if chosen.operation.op_type == op_type:
                            yield from self._more(roots[1:], EMatch((chosen,), (number,), ()), state)

    def _outputs(self, whole: int, op_type: str, index: int) -> list[int]:
        """The classes of an output of the operators in a class."""
        output_classes: dict[int, None] = {}
        for node in self._nodes[whole]:
            if not isinstance(node.operator, Operation) or node.operator.op_type != op_type:
                continue
            if len(node.operator.outputs) == 1:
                if index == 0:
                    output_classes[whole] = None
            else:
                output_classes.update(
                    (n, None) for reader, n in self.readers.get(whole, ()) if reader.operator == OutputProjection(index)
                )
        return list(output_classes)

    def _more(self, roots: Sequence[Op], found: EMatch, state: _PartialMatch) -> Iterator[EMatch]:
        if not roots:
            yield replace(found, bound=tuple(sorted(state.bound.items())))
            return
        for number in self._candidates(roots[0], state):
            if number in found.classes:
                continue
            for further, chosen in self._operator(roots[0], number, state):
                more = EMatch((*found.roots, chosen), (*found.classes, number), ())
                yield from self._more(roots[1:], more, further)

    def _candidates(self, root: Op, state: _PartialMatch) -> list[int]:
        way = way_up(root, {name for name, number in state.bound.items() if number is not None})
        if way is None:
            raise ValueError(f"the root {root} shares no variable with the roots before it")
        name, operators = way
        start = state.bound[name]
        assert start is not None
        reached = {start: None}
        for operator in operators:
            above: dict[int, None] = {}
            for number in reached:
                for node, home in self.readers.get(number, ()):
                    if isinstance(node.operator, Operation) and node.operator.op_type in operator.types:
                        above.update(dict.fromkeys(self._outputs(home, node.operator.op_type, operator.output)))
            reached = above
        return list(reached)

    def _operator(self, pattern: Op, number: int, state: _PartialMatch) -> Iterator[tuple[_PartialMatch, MatchedNode]]:
        for node in self._computing(number, pattern.output):
            self.looks += 1
            if self.looks > MOST_LOOKS:
                raise _MatchLimitError
            operation = node.operator
            if not isinstance(operation, Operation) or operation.op_type not in pattern.types:
                continue
            if pattern.name and state.named.get(pattern.name, node) != node:
                continue
            named_state = replace(state, named={**state.named, pattern.name: node}) if pattern.name else state
            children = iter(node.children)
            given: list[int | None] = [next(children) if present else None for present in operation.inputs]
            if pattern.inputs is None:
                for inputs in self._open(given):
                    yield named_state, MatchedNode(node, inputs, pattern.output, pattern.name)
                continue
            given += [None] * (len(pattern.inputs) - len(given))
            if any(each is not None for each in given[len(pattern.inputs) :]):
                continue
            orders = [given]
            if len(pattern.inputs) == 2 and operation.op_type in COMMUTATIVE and given[0] != given[1]:
                orders.append(given[::-1])
            for turned, order in enumerate(orders):
                for further, inputs in self._inputs(pattern.inputs, order, named_state):
                    inputs = inputs[::-1] if turned else inputs
                    yield further, MatchedNode(node, inputs[: len(operation.inputs)], pattern.output, pattern.name)

    def _computing(self, number: int, index: int) -> Iterator[ENode]:
        """The operators whose output of that index a class is."""
        for node in self.nodes(number):
            if isinstance(node.operator, Operation):
                if len(node.operator.outputs) == 1 and index == 0:
                    yield node
            elif node.operator == OutputProjection(index):
                yield from self.nodes(node.children[0])

    def _open(self, given: Sequence[int | None]) -> Iterator[tuple[MatchedNode | int | None, ...]]:
        """Inputs that the pattern leaves open, with an operator for each: the rule looks at what computes them."""
        options: list[list[MatchedNode | int | None]] = []
        for number in given:
            alternatives: list[MatchedNode | int | None] = []
            if number is not None:
                for node in self.nodes(number):
                    alternatives += self._below(node)
            options.append(alternatives or [number])
        yield from islice(product(*options), _CHOICES)

    def _below(self, node: ENode) -> list[MatchedNode | int | None]:
        index = 0
        if isinstance(node.operator, OutputProjection):
            index = node.operator.index
            node = next(iter(self.nodes(node.children[0])))
        if not isinstance(node.operator, Operation):
            return []
        children = iter(node.children)
        inputs = tuple(next(children) if present else None for present in node.operator.inputs)
        return [MatchedNode(node, inputs, index, "")]

    def _inputs(
        self, patterns: Sequence[ValuePattern], given: Sequence[int | None], state: _PartialMatch
    ) -> Iterator[tuple[_PartialMatch, tuple[MatchedNode | int | None, ...]]]:
        if not patterns:
            yield state, ()
            return
        for next_state, first in self._value(patterns[0], given[0], state):
            for further, rest in self._inputs(patterns[1:], given[1:], next_state):
                yield further, (first, *rest)

    def _value(
        self, pattern: ValuePattern, number: int | None, state: _PartialMatch
    ) -> Iterator[tuple[_PartialMatch, MatchedNode | int | None]]:
        if isinstance(pattern, Op):
            if number is not None:
                yield from self._operator(pattern, number, state)
        elif isinstance(pattern, Either):
            for choice in pattern.choices:
                yield from self._value(choice, number, state)
        elif isinstance(pattern, Number):
            constant = None if number is None else self.constant(number)
            if constant is not None and matches_number(self._encoder.constants[constant], pattern.value):
                yield state, number
        elif isinstance(pattern, AnyValue | Weight):
            if number is None and not pattern.optional:
                return
            if isinstance(pattern, Weight) and number is not None and self.constant(number) is None:
                return
            if pattern.name not in state.bound:
                yield replace(state, bound={**state.bound, pattern.name: number}), number
            elif state.bound[pattern.name] == number:
                yield state, number

    def constant(self, number: int) -> ConstantLeaf | None:
        """The constant that a class holds."""
        return next((node.operator for node in self.nodes(number) if isinstance(node.operator, ConstantLeaf)), None)
