"""One part of a graph saturated, and the cheapest graph extracted from all that it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from bricolage.egraph.egraph import ENode
from bricolage.egraph.extraction.extraction_problem import Extraction, reachable_classes
from bricolage.egraph.extraction.methods import ExtractionLimits, extract
from bricolage.egraph.saturate import Saturation, SaturationLimits, saturate
from bricolage.rewrite.engine.index import RuleIndex
from bricolage.rewrite.search.fingerprint import constant_key
from bricolage.rewrite.search.lazy import Watch
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.saturation.bridge import AppliedRule, Bridge, give_type, instance
from bricolage.rewrite.search.saturation.terms import ConstantLeaf, Encoder, Operation


@dataclass(frozen=True)
class SaturatedPart:
    """The cheapest graph of a part.

    `chosen` are the classes that it needs with the node of each, what is read before what reads it; `outputs` the classes of the
    part's outputs. `by_values` says that a rule applied after a look at the numbers of a weight, so that all holds for these
    weights alone.
    """

    encoder: Encoder = field(repr=False)
    chosen: Mapping[int, ENode]
    originals: Mapping[ENode, tuple[int, ...]]
    """Which operators of the part a node is, by their place in it."""
    operators: tuple[tuple[str, ...], ...]
    """The names of what the part's operators compute."""
    weights: Mapping[ConstantLeaf, str]
    """The constants that the part itself reads."""
    outputs: tuple[int, ...]
    before: float
    extraction: Extraction
    saturation: Saturation
    applied: tuple[AppliedRule, ...]
    """The rules that made a chosen node, or made an operator of the part superfluous."""
    by_values: bool


def saturate_part(
    model: ir.Model, index: RuleIndex, pricing: Pricing, limits: SaturationLimits, extraction: ExtractionLimits
) -> SaturatedPart:
    """Saturates and extracts. The part (which is changed) has no operators with bodies, and its outputs are computed in it."""
    watch = Watch()
    weights: dict[ConstantLeaf, str] = {}
    for value in model.graph.initializers.values():
        watch.over(value)
        weights.setdefault(ConstantLeaf(constant_key(value)), value.name or "")
    before = pricing.total(model.graph)
    encoder = Encoder(model.graph.opset_imports)
    classes: dict[ir.Value, int] = {}
    nodes = list(model.graph)
    encoder.nodes(nodes, classes)
    bridge = Bridge(encoder, index, watch, model.graph, classes)
    report = saturate(encoder.egraph, bridge.rules, limits)
    egraph = encoder.egraph
    prices = _Prices(encoder, pricing)
    outputs = tuple(egraph.find(classes[value]) for value in model.graph.outputs)
    problem, numbers = egraph.snapshot(prices.of, outputs)
    solution = extract(problem, "anytime", extraction)
    order = reachable_classes(problem, solution.choice)
    assert order is not None, "extraction is acyclic"
    chosen: dict[int, ENode] = {}
    for place in order:
        node = problem.classes[place][solution.choice[place]].key
        assert isinstance(node, ENode)
        chosen[numbers[place]] = node
    originals = _originals(encoder, nodes, classes)
    return SaturatedPart(
        encoder,
        chosen,
        originals=originals,
        operators=tuple(tuple(value.name or "" for value in node.outputs) for node in nodes),
        weights=weights,
        outputs=outputs,
        before=before,
        extraction=solution,
        saturation=report,
        applied=tuple(_relevant(bridge.applied, encoder, chosen, originals)),
        by_values=any(application.by_values for application in bridge.applied),
    )


class _Prices:
    """Costs of e-nodes: those of operators with the types of their classes; leaves and projections cost nothing."""

    def __init__(self, encoder: Encoder, pricing: Pricing) -> None:
        self._encoder, self._pricing = encoder, pricing

    def of(self, number: int, node: ENode) -> float:
        """Milliseconds."""
        operation = node.operator
        if not isinstance(operation, Operation):
            return 0.0
        values = {child: self._value(child) for child in node.children}
        built = instance(operation, [values[child] for child in node.children])
        if len(built.outputs) == 1:
            give_type(built.outputs[0], self._encoder.egraph.data(number))
        else:
            for value, model in zip(built.outputs, operation.node.outputs, strict=True):
                value.type, value.shape = model.type, model.shape
        for value, present in zip(built.outputs, operation.outputs, strict=True):
            value.name = "output" if present else ""
        return self._pricing.of(built)

    def _value(self, number: int) -> ir.Value:
        value = ir.Value(name=f"class{number}")
        give_type(value, self._encoder.egraph.data(number))
        for node in self._encoder.egraph.nodes(number):
            if isinstance(node.operator, ConstantLeaf):
                value.const_value = self._encoder.constants[node.operator].const_value
        return value


def _originals(
    encoder: Encoder, nodes: Sequence[ir.Node], classes: Mapping[ir.Value, int]
) -> dict[ENode, tuple[int, ...]]:
    originals: dict[ENode, tuple[int, ...]] = {}
    for place, node in enumerate(nodes):
        children = tuple(encoder.egraph.find(classes[value]) for value in node.inputs if value is not None)
        key = ENode(encoder.operation(node), children)
        originals[key] = (*originals.get(key, ()), place)
    return originals


def _relevant(
    applied: Sequence[AppliedRule],
    encoder: Encoder,
    chosen: Mapping[int, ENode],
    originals: Mapping[ENode, tuple[int, ...]],
) -> list[AppliedRule]:
    """The rules that made a chosen node or one that such a rule matched, and those that made an operator superfluous."""
    egraph = encoder.egraph
    wanted = {egraph.age(number, node) for number, node in chosen.items()}
    changed = {number for number, node in chosen.items() if node not in originals}
    relevant_rules: list[AppliedRule] = []
    for application in reversed(applied):
        if application.ages & wanted or (not application.ages and egraph.find(application.number) in changed):
            relevant_rules.append(application)
            wanted |= application.needed
    return relevant_rules[::-1]
