"""An application of a rule that is proposed: its new operators are made, and the graph is as it was until it is accepted."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.analyses.profitability import compare_costs
from bricolage.rewrite.builder import GraphBuilder
from bricolage.rewrite.engine import edit
from bricolage.rewrite.engine.index import Indexed
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.rule import GraphRule, MatchFailure, Replacement, Rule


@dataclass(frozen=True, eq=False)
class RewriteProposal:
    """What an application would do: `pairs` are values with what replaces them, `gone` the operators that nothing needs
    afterwards. Exactly one of `accept` and `discard` must follow."""

    rule: Rule
    step: RewriteStep
    pairs: list[tuple[ir.Value, ir.Value]]
    builder: GraphBuilder
    roots: list[ir.Node]
    gone: list[ir.Node]
    built: int
    """How many operators the rule made; those after them are Identities that keep names."""

    @property
    def new(self) -> list[ir.Node]:
        """The operators that it adds."""
        return self.builder.nodes

    def is_profitable(self, opset: int) -> bool:
        """Whether the driver would make it: it costs less by counting, or no more where the rule enables others."""
        before, after = compare_costs(self.gone, self.new, opset)
        return not self.rule.cost_based and (after < before or (self.rule.enabling and after <= before))

    def accept(self) -> None:
        """Changes the graph."""
        home, placed = edit.owning_graph(self.roots[0]), bool(self.builder.insertion_points)
        edit.replace(self.pairs, self.gone, self.builder, self.roots[0])
        if len(self.roots) > 1 and not placed:
            home.sort()

    def discard(self) -> None:
        """Forgets what was made."""
        self.builder.discard()


def propose(indexed: Indexed, match: Match, builder: GraphBuilder) -> RewriteProposal:
    """The application of a rule to a match.

    Raises:
        MatchFailure: a condition does not hold. What `builder` made is discarded.
    """
    rule = indexed.rule
    try:
        rule.check(match)
        result = rule.rewrite(builder, match)
        values = result if isinstance(result, tuple) else (result,)
        old = match.roots
        producers = [_producer(value) for value in old]
        if len(old) == 1 and len(values) > 1:
            old = tuple(producers[0].outputs)
        if len(old) != len(values):
            raise ValueError(f"rule {rule.name} replaces {len(old)} values by {len(values)}")
        pairs = [(value, new) for value, new in zip(old, values, strict=True) if new is not None]
        replaced = {_producer(value) for value, _ in pairs}
        for value in (value for node in producers if node in replaced for value in node.outputs if value not in old):
            if value.uses() or value.is_graph_output():
                raise MatchFailure(f"another output of '{_producer(value).name}' is in use")
    except MatchFailure:
        builder.discard()
        raise
    bound = tuple((name, None if value is None else value.name or "") for name, value in sorted(match.values.items()))
    step = RewriteStep(rule.name, indexed.pattern, tuple(value.name or "" for value in match.roots), bound)
    return _proposal(rule, step, pairs, builder, producers)


def propose_replacement(rule: GraphRule, replacement: Replacement, builder: GraphBuilder) -> RewriteProposal:
    """The application of a rule at a place that it found itself.

    Raises:
        MatchFailure: a condition does not hold, or types would change. What `builder` made is discarded.
    """
    try:
        pairs = list(replacement(builder).items())
        if not pairs:
            raise MatchFailure("nothing reads what it computes")
    except MatchFailure:
        builder.discard()
        raise
    step = RewriteStep(rule.name, 0, tuple(old.name or "" for old, _ in pairs), ())
    return _proposal(rule, step, pairs, builder, list(dict.fromkeys(_producer(old) for old, _ in pairs)))


def _proposal(
    rule: Rule, step: RewriteStep, pairs: list[tuple[ir.Value, ir.Value]], builder: GraphBuilder, roots: list[ir.Node]
) -> RewriteProposal:
    built = len(builder.nodes)
    try:
        home = edit.owning_graph(roots[0])
        pairs = edit.own_outputs(pairs, builder, home)
        edit.check_replacements(pairs)
        if (
            len(roots) > 1
            and not isinstance(rule, GraphRule)
            and (
                edit.depends(builder.nodes, {_producer(old) for old, _ in pairs})
                or any(edit.owning_graph(root) is not home for root in roots)
            )
        ):
            raise MatchFailure("one of the roots depends on another")
    except MatchFailure:
        builder.discard()
        raise
    return RewriteProposal(rule, step, pairs, builder, roots, edit.collect_dead_nodes(pairs), built)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node
