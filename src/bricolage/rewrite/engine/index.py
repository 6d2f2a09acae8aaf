"""Which rules may apply at an operator: found by its type and the types of the operators that compute its inputs, so that
the time at an operator grows with the patterns that begin like its surroundings, not with their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from operator import attrgetter

import onnx_ir as ir

from bricolage.rewrite.pattern import Either, Op, ValuePattern
from bricolage.rewrite.rule import GraphRule, Rule


@dataclass(frozen=True)
class Indexed:
    """One pattern of a rule."""

    order: int
    """Its position among all patterns."""
    rule: Rule
    pattern: int
    roots: tuple[Op, ...]


class RuleIndex:
    """Rules that an opset has the operators for: patterns by the type of their (first) root and by the types of one input that
    must be computed by an operator; whole-graph rules by themselves."""

    def __init__(self, rules: Iterable[Rule], opset: int) -> None:
        usable = [rule for rule in rules if rule.since <= opset]
        self.opset = opset
        self.graph_rules = [rule for rule in usable if isinstance(rule, GraphRule)]
        self._patterns: dict[tuple[str, int], Indexed] = {}
        self._entries: dict[str, dict[str, list[Indexed]]] = {}
        for rule in usable:
            for number, pattern in enumerate(rule.patterns()):
                roots = pattern if isinstance(pattern, tuple) else (pattern,)
                indexed = Indexed(len(self._patterns), rule, number, roots)
                self._patterns[rule.name, number] = indexed
                for root in sorted(roots[0].types):
                    for child in sorted(_computing(roots[0]) or ("",)):
                        self._entries.setdefault(root, {}).setdefault(child, []).append(indexed)

    def __bool__(self) -> bool:
        return bool(self._entries or self.graph_rules)

    def __contains__(self, op_type: str) -> bool:
        """Whether a pattern has a root of this type."""
        return op_type in self._entries

    @property
    def patterns(self) -> list[Indexed]:
        """All of them, in the order of the rules."""
        return list(self._patterns.values())

    def pattern(self, rule: str, number: int) -> Indexed:
        """A pattern by the name of its rule."""
        return self._patterns[rule, number]

    def graph_rule(self, name: str) -> GraphRule | None:
        """A whole-graph rule by name; None where there is none."""
        return next((rule for rule in self.graph_rules if rule.name == name), None)

    def at(self, node: ir.Node) -> Iterator[Indexed]:
        """What may match at a node, in order: no pattern that does is left out."""
        buckets = self._entries.get(node.op_type)
        if buckets is None:
            return iter(())
        computing = {
            producer.op_type
            for value in node.inputs
            if value is not None and (producer := value.producer()) is not None
        }
        return _distinct(merge(*(buckets[child] for child in ("", *computing) if child in buckets), key=_order))

    def rooted(self, op_type: str) -> Iterator[Indexed]:
        """Every pattern whose root has this type, in order."""
        return _distinct(merge(*self._entries.get(op_type, {}).values(), key=_order))


_order = attrgetter("order")


@lru_cache(maxsize=64)
def rule_index(rules: tuple[Rule, ...], opset: int) -> RuleIndex:
    """The index of these rules, made once: a search applies the same ones again and again, to small graphs."""
    return RuleIndex(rules, opset)


def _computing(root: Op) -> frozenset[str]:
    """Types of which one must compute an input; empty where none need be. The input with the fewest is taken."""
    choices = [types for pattern in root.inputs or () if (types := _types(pattern))]
    return min(choices, key=len, default=frozenset())


def _types(pattern: ValuePattern) -> frozenset[str]:
    """Types of the operator that a pattern describes; empty where it may be no operator."""
    if isinstance(pattern, Op):
        return pattern.types
    if isinstance(pattern, Either):
        choice_types = [_types(choice) for choice in pattern.choices]
        return frozenset().union(*choice_types) if all(choice_types) else frozenset()
    return frozenset()


def _distinct(entries: Iterable[Indexed]) -> Iterator[Indexed]:
    """Sorted entries, each once."""
    last = -1
    for entry in entries:
        if entry.order != last:
            last = entry.order
            yield entry
