"""Whether equations follow from others: equality saturation over typed terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from bricolage.egraph import tree_pattern
from bricolage.egraph.egraph import EGraph, ENode
from bricolage.egraph.saturate import EGraphRule, SaturationLimits, saturate
from bricolage.equations.term import Equation, Term, is_directed, subterms
from bricolage.equations.term_shapes import Shape, is_row, substitute
from bricolage.equations.vocabulary import BY_NAME, OPERATORS

_ROUNDS = 3
_LIMITS = SaturationLimits(rounds=1, nodes=200, seconds=1e9)
"""No limit of time: the same rules come out on every machine."""


@dataclass(frozen=True)
class TypedRule:
    """A rewrite of terms, with the operators that its sides need and make."""

    rule: EGraphRule[Shape]
    needs: frozenset[str]
    makes: frozenset[str]


@dataclass(frozen=True)
class _Leaf:
    """A variable of an equation, as an operator without operands."""

    name: str
    shape: Shape


@cache
def _result(name: str, *given: Shape) -> Shape | None:
    return BY_NAME[name].shape(*given)


class _Shapes:
    """The shape of every class. Leaves carry their own."""

    def make(self, egraph: EGraph[Shape], node: ENode, /) -> Shape:
        if isinstance(node.operator, _Leaf):
            return node.operator.shape
        shape = _result(str(node.operator), *(egraph.data(child) for child in node.children))
        assert shape is not None, "only well-typed terms are added"
        return shape

    def join(self, left: Shape, right: Shape, /) -> Shape:
        assert left == right, "only terms of one shape are merged"
        return left


def rules_of(equation: Equation, name: str) -> list[TypedRule]:
    """An equation as rewrites of terms, in the directions that it has."""
    return [
        TypedRule(
            EGraphRule(f"{name}{mark}", tuple(_apply(term) for term in left), _make_typed_writer(right)),
            _operators(left),
            _operators(right),
        )
        for mark, (left, right) in zip(
            ("", " back"), ((equation.left, equation.right), (equation.right, equation.left)), strict=True
        )
        if is_directed(Equation(left, right))
    ]


def _operators(terms: Sequence[Term]) -> frozenset[str]:
    return frozenset(part[0] for term in terms for part in subterms(term) if not isinstance(part, str))


def _relevant(rules: Sequence[TypedRule], terms: Sequence[Term]) -> list[EGraphRule[Shape]]:
    """Those that can ever match, by operators alone."""
    present, left, egraph_rules = _operators(terms), list(enumerate(rules)), dict[int, EGraphRule[Shape]]()
    while True:
        usable = [(i, rule) for i, rule in left if rule.needs <= present]
        if not usable:
            return [egraph_rules[i] for i in sorted(egraph_rules)]
        egraph_rules.update((i, rule.rule) for i, rule in usable)
        left = [(i, rule) for i, rule in left if i not in egraph_rules]
        present = present.union(*(rule.makes for _, rule in usable))


def _commutative() -> list[TypedRule]:
    return [
        rule
        for operator in OPERATORS
        if operator.commutative
        for rule in rules_of(Equation(((operator.name, "x", "y"),), ((operator.name, "y", "x"),)), operator.name)[:1]
    ]


def _apply(term: Term) -> tree_pattern.Apply:
    pattern = _pattern(term)
    assert isinstance(pattern, tree_pattern.Apply)
    return pattern


def _pattern(term: Term) -> tree_pattern.Term:
    if isinstance(term, str):
        return tree_pattern.Variable(term)
    return tree_pattern.Apply(term[0], tuple(_pattern(child) for child in term[1:]))


def _make_typed_writer(terms: Sequence[Term]) -> Callable[[EGraph[Shape], tree_pattern.EGraphMatch], list[int] | None]:
    """The right side where it has the shapes of the left."""
    patterns = [_pattern(term) for term in terms]

    def write(egraph: EGraph[Shape], match: tree_pattern.EGraphMatch) -> list[int] | None:
        for root, term in zip(match.roots, terms, strict=True):
            if _shape(egraph, term, match) != egraph.data(root):
                return None
        return [tree_pattern.add_term(egraph, term, match.bindings) for term in patterns]

    return write


def _shape(egraph: EGraph[Shape], term: Term, match: tree_pattern.EGraphMatch) -> Shape | None:
    if isinstance(term, str):
        return egraph.data(match.class_of(term))
    shapes = [_shape(egraph, child, match) for child in term[1:]]
    known_shapes = [shape for shape in shapes if shape is not None]
    return _result(term[0], *known_shapes) if len(known_shapes) == len(shapes) else None


def derivable(equation: Equation, rules: Sequence[TypedRule]) -> bool:
    """Whether `rules` make both sides one class within a few rounds.

    An equation with several terms on a side is to be *reached* from its left, since a search finds only those there.
    """
    egraph: EGraph[Shape] = EGraph(_Shapes())
    typing = equation.typing
    rows = {
        name: (name.strip("."),) for name in typing.names() if is_row(name)
    }  # a row as one axis with a size of its own
    leaves = {name: substitute(shape, rows) for name, shape in typing.variables().items()}
    numbers = {name: egraph.add(_Leaf(name, shape)) for name, shape in leaves.items()}

    def add(term: Term) -> int:
        return numbers[term] if isinstance(term, str) else egraph.add(term[0], [add(child) for child in term[1:]])

    left = [add(term) for term in equation.left]
    several = len(left) > 1
    right = [] if several else [add(term) for term in equation.right]
    usable = _relevant([*COMMUTATIVE, *rules], (*equation.left, *([] if several else equation.right)))
    for _ in range(_ROUNDS):
        done = saturate(egraph, usable, _LIMITS)
        if not several and egraph.find(left[0]) == egraph.find(right[0]):
            return True
        if done.stop in ("saturated", "nodes"):
            break
    if several:
        right = [add(term) for term in equation.right]
    return all(egraph.find(a) == egraph.find(b) for a, b in zip(left, right, strict=True))


COMMUTATIVE = _commutative()
