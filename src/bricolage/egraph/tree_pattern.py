"""Tree patterns over an e-graph, and where they match.

A term is a variable or an operator on terms. A variable that occurs twice binds one class both times. Several patterns may
share variables: they are matched one by one and joined on what they share (as relational e-matching does: Zhang et al.,
POPL 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from bricolage.egraph.egraph import EGraph

Data = TypeVar("Data")


@dataclass(frozen=True)
class Variable:
    """Matches any class."""

    name: str


@dataclass(frozen=True)
class AnyOperator:
    """Matches any operator that `accepts` accepts; equal names mean the same operator."""

    name: str
    accepts: Callable[[Hashable], bool] = lambda _: True


@dataclass(frozen=True)
class Apply:
    """`operator`, exactly or as AnyOperator, on as many children as there are terms."""

    operator: Hashable | AnyOperator
    children: tuple[Term, ...] = ()


Term: TypeAlias = Variable | Apply
Bindings: TypeAlias = Mapping[str, Hashable]
"""Variable name → class number, AnyOperator name → operator."""


@dataclass(frozen=True)
class EGraphMatch:
    """Where the patterns of a rule matched: one root class for each, and what the variables are bound to."""

    roots: tuple[int, ...]
    bindings: Bindings

    def class_of(self, name: str) -> int:
        """The class that variable `name` is bound to."""
        number = self.bindings[name]
        assert isinstance(number, int)
        return number


class OperatorIndex:
    """Which classes hold which operator; valid until the e-graph changes."""

    def __init__(self, egraph: EGraph[Data]) -> None:
        self._nodes = {number: egraph.nodes(number) for number in egraph.classes()}
        self._holding: dict[Hashable, dict[int, None]] = {}
        for number, nodes in self._nodes.items():
            for node in nodes:
                self._holding.setdefault(node.operator, {})[number] = None

    def matches(self, patterns: Sequence[Apply]) -> Iterator[EGraphMatch]:
        """All matches of all `patterns` together, each once, as they are found."""
        joint_matches: Iterable[EGraphMatch] = self._single(patterns[0])
        bound = bound_names(patterns[0])
        for pattern in patterns[1:]:
            joint_matches = _join(joint_matches, self._single(pattern), sorted(bound & bound_names(pattern)))
            bound |= bound_names(pattern)
        yield from joint_matches

    def _single(self, pattern: Apply) -> Iterator[EGraphMatch]:
        operator = pattern.operator
        roots = self._nodes if isinstance(operator, AnyOperator) else self._holding.get(operator, ())
        for root in roots:
            seen = set()
            for bindings in self._match(pattern, root, {}):
                key = tuple(sorted(bindings.items(), key=lambda item: item[0]))
                if key not in seen:
                    seen.add(key)
                    yield EGraphMatch((root,), bindings)

    def _match(self, term: Term, number: int, bindings: dict[str, Hashable]) -> Iterator[dict[str, Hashable]]:
        if isinstance(term, Variable):
            if bindings.get(term.name, number) == number:
                yield {**bindings, term.name: number}
            return
        for node in self._nodes[number]:
            if len(node.children) != len(term.children):
                continue
            bound = bindings
            if isinstance(term.operator, AnyOperator):
                name = term.operator.name
                if bindings.get(name, node.operator) != node.operator or not term.operator.accepts(node.operator):
                    continue
                bound = {**bindings, name: node.operator}
            elif term.operator != node.operator:
                continue
            yield from self._children(term.children, node.children, bound)

    def _children(
        self, terms: Sequence[Term], numbers: Sequence[int], bindings: dict[str, Hashable]
    ) -> Iterator[dict[str, Hashable]]:
        if not terms:
            yield bindings
            return
        for bound in self._match(terms[0], numbers[0], bindings):
            yield from self._children(terms[1:], numbers[1:], bound)


def _join(left: Iterable[EGraphMatch], right: Iterable[EGraphMatch], shared: Sequence[str]) -> Iterator[EGraphMatch]:
    table: dict[tuple[Hashable, ...], list[EGraphMatch]] = {}
    for match in right:
        table.setdefault(tuple(match.bindings[name] for name in shared), []).append(match)
    for match in left:
        for other in table.get(tuple(match.bindings[name] for name in shared), ()):
            yield EGraphMatch(match.roots + other.roots, {**match.bindings, **other.bindings})


def pattern_variables(term: Term) -> set[str]:
    """The names of the variables in a term."""
    if isinstance(term, Variable):
        return {term.name}
    return set[str]().union(*(pattern_variables(child) for child in term.children))


def bound_names(term: Term) -> set[str]:
    """The names that a term binds or uses."""
    if isinstance(term, Variable):
        return {term.name}
    operator_names = {term.operator.name} if isinstance(term.operator, AnyOperator) else set()
    return operator_names.union(*(bound_names(child) for child in term.children))


def add_term(egraph: EGraph[Data], term: Term, bindings: Bindings) -> int:
    """Adds `term` with its variables replaced; its class."""
    if isinstance(term, Variable):
        number = bindings[term.name]
        assert isinstance(number, int)
        return egraph.find(number)
    operator = bindings[term.operator.name] if isinstance(term.operator, AnyOperator) else term.operator
    return egraph.add(operator, [add_term(egraph, child, bindings) for child in term.children])
