"""Which of our rules derive a rule of another system.

Both sides are put into one e-graph, and our rules are applied, in whichever direction they have, until the sides are in one class
or a limit is reached. That operators commute is taken for granted, as matching does everywhere. Before that the equation itself is
proved or refuted (`proof`): a rule of a file need not be true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import onnx_ir as ir

from bricolage.egraph.egraph import ENode
from bricolage.egraph.saturate import EGraphRule, SaturationLimits, saturate
from bricolage.egraph.tree_pattern import EGraphMatch
from bricolage.graph.properties import COMMUTATIVE
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.engine.index import rule_index
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.lazy import LazyBuilder, Watch
from bricolage.rewrite.search.saturation.bridge import Bridge
from bricolage.rewrite.search.saturation.terms import Data, Encoder, Operation, Terms
from bricolage.rulemaking.proof.prove import Disproved, Proved, prove
from bricolage.rulemaking.taso import TermEquation
from bricolage.rulemaking.term_graphs import Shapes, TermBuilder, UnknownTerm, make_inputs, shapes

_OPSETS = {"": 18}
LIMITS = SaturationLimits(rounds=4, nodes=400, seconds=3.0, multi_rounds=1)
"""For one equation, read in one way."""

Verdict: TypeAlias = Literal["derived", "not derived", "false", "not expressed"]
"""Not derived: not within the limits. Not expressed: an operator has no counterpart here, or shapes do not fit."""
Truth: TypeAlias = Literal["proved", "refuted", "no proof"]


@dataclass(frozen=True)
class RuleCoverage:
    """What becomes of one equation."""

    equation: TermEquation
    verdict: Verdict
    rules: tuple[str, ...] = ()
    """Of ours, that derive it together; none where both sides are one graph here."""
    constant_weights: bool = False
    """Whether kernels of convolutions and right sides of products have to be constants."""
    truth: Truth = "no proof"
    reason: str = ""
    """Why it is not expressed, or what refutes it."""


def cover_equations(
    equations: Sequence[TermEquation], rules: Sequence[Rule], limits: SaturationLimits | None = None
) -> Iterator[RuleCoverage]:
    """For each equation, whether `rules` derive it, one after another."""
    for equation in equations:
        yield cover(equation, rules, limits or LIMITS)


def cover(equation: TermEquation, rules: Sequence[Rule], limits: SaturationLimits = LIMITS) -> RuleCoverage:
    """Whether `rules` derive an equation within `limits`: first with variables alone, then with constant weights."""
    term_shapes = shapes(equation)
    try:
        truth, reason = _truth(equation, term_shapes)
        if truth == "refuted":
            return RuleCoverage(equation, "false", truth=truth, reason=reason)
        for constant in (False, True) if term_shapes.weights else (False,):
            attempt = _Derivation(equation, term_shapes, constant)
            used = attempt.used(rules, limits)
            if used is not None:
                needed = attempt.needed(used, limits)
                return RuleCoverage(equation, "derived", tuple(rule.name for rule in needed), constant, truth)
    except UnknownTerm as error:
        return RuleCoverage(equation, "not expressed", reason=str(error))
    return RuleCoverage(equation, "not derived", truth=truth)


def _truth(equation: TermEquation, found: Shapes) -> tuple[Truth, str]:
    """Whether the equation holds at these shapes, by the prover."""
    sides = []
    for term in (equation.left, equation.right):
        given = make_inputs(found, constant=False)
        model = _model(given)
        builder = GraphBuilder(_OPSETS, Names(model), fold=False)
        value = builder.identity(TermBuilder(builder, given).value(term))
        sides.append(_close_model(model, builder, [value]))
    verdict = prove(*sides)
    if isinstance(verdict, Disproved):
        return "refuted", verdict.reason or f"{verdict.left:.6g} and {verdict.right:.6g} at {list(verdict.index)}"
    return ("proved" if isinstance(verdict, Proved) else "no proof"), ""


def _model(given: dict[str, ir.Value]) -> ir.Model:
    inputs = [value for value in given.values() if value.const_value is None]
    weights = [value for value in given.values() if value.const_value is not None]
    graph = ir.Graph(inputs, [], nodes=[], initializers=weights, opset_imports=_OPSETS, name="rule")
    return ir.Model(graph, ir_version=10)


def _close_model(model: ir.Model, builder: GraphBuilder, outputs: Sequence[ir.Value]) -> ir.Model:
    """The model with what the builder made in it."""
    for constant in builder.constants:
        if constant.name is not None:
            model.graph.register_initializer(constant)
    model.graph.extend(builder.nodes)
    model.graph.outputs.extend(outputs)
    return model


@dataclass(frozen=True)
class _Derivation:
    """One equation with its variables as they are."""

    equation: TermEquation
    shapes: Shapes
    constant: bool

    def used(self, rules: Sequence[Rule], limits: SaturationLimits) -> tuple[Rule, ...] | None:
        """The rules that were applied until both sides were in one class; None where they never were.

        Raises:
            UnknownTerm: a side cannot be written.
        """
        given = make_inputs(self.shapes, self.constant)
        model = _model(given)
        watch = Watch()
        builder = LazyBuilder(_OPSETS, Names(model))
        terms = TermBuilder(builder, given)
        sides = [terms.value(self.equation.left), terms.value(self.equation.right)]
        encoder = Encoder(_OPSETS)
        classes: dict[ir.Value, int] = {}
        encoder.nodes(builder.nodes, classes)
        for side in sides:
            if side not in classes:
                classes[side] = encoder.leaf(side)
        for constant in builder.constants:
            watch.over(constant)
        model.graph.extend(builder.nodes)
        model.graph.outputs.extend(side for side in dict.fromkeys(sides) if side.producer() is not None)
        bridge = Bridge(encoder, rule_index(tuple(rules), _OPSETS[""]), watch, model.graph, classes)
        left, right = (classes[side] for side in sides)
        egraph = encoder.egraph
        every = [*bridge.rules, EGraphRule[Data]("commutativity", _swappable, _swap)]
        round_limits, seconds = replace(limits, rounds=1), limits.seconds
        for _ in range(limits.rounds):
            before = egraph.node_count, egraph.merges
            if egraph.find(left) == egraph.find(right) or seconds <= 0.0:
                break
            seconds -= saturate(egraph, every, replace(round_limits, seconds=seconds)).seconds
            if (egraph.node_count, egraph.merges) == before:
                break
        if egraph.find(left) != egraph.find(right):
            return None
        return tuple({each.rule.name: each.rule for each in bridge.applied}.values())

    def needed(self, used: Sequence[Rule], limits: SaturationLimits) -> list[Rule]:
        """A set of the rules that still derives it and of which none can be left out."""
        kept = list(used)
        for rule in used:
            fewer = [other for other in kept if other is not rule]
            derivation = self.used(fewer, limits)
            if derivation is not None:
                kept = [other for other in fewer if other in derivation]
        return kept


def _swappable(egraph: Terms) -> Iterator[EGraphMatch]:
    """Operators of two inputs that commute."""
    for number in list(egraph.classes()):
        for node in egraph.nodes(number):
            operation = node.operator
            if isinstance(operation, Operation) and operation.op_type in COMMUTATIVE and len(node.children) == 2:
                yield EGraphMatch((number,), {"node": node, "class": number})


def _swap(egraph: Terms, match: EGraphMatch) -> Sequence[int] | None:
    node, number = match.bindings["node"], match.bindings["class"]
    assert isinstance(node, ENode) and isinstance(number, int)
    count_before = egraph.node_count
    swapped_class = egraph.add(node.operator, node.children[::-1])
    return (
        None
        if egraph.node_count == count_before and egraph.find(swapped_class) == egraph.find(number)
        else [swapped_class]
    )
