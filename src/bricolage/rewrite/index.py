"""Which rules may apply at an operator: found by its type and the types of the operators that compute its inputs, so that
the time at an operator grows with the patterns that begin like its surroundings, not with their number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge

import onnx_ir as ir

from bricolage.rewrite.pattern import Either, Op, Pattern
from bricolage.rewrite.rule import Rule

Entry = tuple[int, Rule, tuple[Op, ...]]
"""A place in the order of all patterns, a rule, and the roots of one of its patterns."""


class RuleIndex:
    """Patterns by the type of their (first) root and by the types of one input that must be computed by an operator."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._entries: dict[str, dict[str, list[Entry]]] = {}
        order = 0
        for rule in rules:
            for pattern in rule.patterns():
                roots = pattern if isinstance(pattern, tuple) else (pattern,)
                entry = (order, rule, roots)
                order += 1
                for root in sorted(roots[0].types):
                    for child in sorted(_computing(roots[0]) or ("",)):
                        self._entries.setdefault(root, {}).setdefault(child, []).append(entry)

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __contains__(self, op_type: str) -> bool:
        """Whether a pattern has a root of this type."""
        return op_type in self._entries

    def at(self, node: ir.Node) -> Iterator[Entry]:
        """What may match at a node, in order: no pattern that does is left out."""
        found = self._entries.get(node.op_type)
        if found is None:
            return iter(())
        computing = {
            producer.op_type
            for value in node.inputs
            if value is not None and (producer := value.producer()) is not None
        }
        return _distinct(merge(*(found[child] for child in ("", *computing) if child in found), key=_order))

    def rooted(self, op_type: str) -> Iterator[Entry]:
        """Every pattern whose root has this type, in order."""
        return _distinct(merge(*self._entries.get(op_type, {}).values(), key=_order))


def _order(entry: Entry) -> int:
    return entry[0]


def _computing(root: Op) -> frozenset[str]:
    """Types of which one must compute an input; empty where none need be. The input with the fewest is taken."""
    choices = [types for pattern in root.inputs or () if (types := _types(pattern))]
    return min(choices, key=len, default=frozenset())


def _types(pattern: Pattern) -> frozenset[str]:
    """Types of the operator that a pattern describes; empty where it may be no operator."""
    if isinstance(pattern, Op):
        return pattern.types
    if isinstance(pattern, Either):
        found = [_types(choice) for choice in pattern.choices]
        return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def _distinct(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Sorted entries, each once."""
    last = -1
    for entry in entries:
        if entry[0] != last:
            last = entry[0]
            yield entry
