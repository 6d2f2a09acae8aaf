"""Variants of a graph: equal graphs among which placement and the race choose."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from bricolage.errors import EndlessRewriting, OpsetOutOfReach, UnsupportedOpset
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.impossible_branches import has_branches, impossible_branches
from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import RewriteConfig, RewriteStep
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.catalogue import choose_rules, rules
from bricolage.rewrite.engine.apply import Application, counts, rewrite
from bricolage.rewrite.engine.pipeline import PipelineRunner
from bricolage.rewrite.rule import MatchFailure
from bricolage.rewrite.search.graph_search import replay, search_graphs
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.work.cost import CostModel, Setting

_LOG = logging.getLogger(__name__)

REWRITTEN = "rewritten"
SEARCHED = "searched"
TAILORED = "tailored"


@dataclass(frozen=True)
class GraphVariant:
    """One of the equal graphs of a model: the original, or what rewriting made of it."""

    name: str
    graph: Graph
    rules: dict[str, int] = field(default_factory=dict)
    """How often each rule was applied, by name."""
    steps: tuple[RewriteStep, ...] = ()
    """How to make a variant that was searched again."""
    rewrite_config: RewriteConfig | None = None
    """How to make a variant that was tailored again."""
    predicted_ms: float | None = None
    quantised: bool = False
    """Whether it is no equal of the original, but computes about the same with integers."""

    @property
    def key(self) -> str:
        """Identity of the graph: equal for variants that differ in names and large weights only."""
        return Identities(self.graph).key(self.graph.everything)


def rewritten_variants(graph: Graph) -> tuple[GraphVariant, ...]:
    """The graph after the canonicalising rules; empty where none applies. The same every time."""
    model = graph.model.clone()
    try:
        applications = tuple(rewrite(model, rules()))
    except EndlessRewriting as error:
        _LOG.warning("the graph is used as it is: %s", error)
        return ()
    if not applications:
        return ()
    variant = _variant(REWRITTEN, model, applications)
    return (variant,) if _is_computable(variant) else ()


def _is_computable(variant: GraphVariant) -> bool:
    """Whether each branch can be computed at the sizes of the graph: what rules find out of ranks may show that one cannot, and
    then runtimes refuse the graph."""
    bad_branches = impossible_branches(variant.graph.model) if has_branches(variant.graph.model) else {}
    for branch, reason in bad_branches.items():
        _LOG.warning("the %s graph is left out: a branch of '%s': %s", variant.name, branch.operator, reason)
    return not bad_branches


def searched_variants(
    graph: Graph,
    costs: CostModel,
    on: Setting,
    options: SearchOptions,
    known: Sequence[GraphVariant],
    *,
    generated: bool = False,
) -> tuple[GraphVariant, ...]:
    """The cheapest graphs that a search over all rules finds that lose no accuracy, cheapest first: those that are cheaper than all
    that are `known`. With `generated`, the rules that were found by enumeration take part."""
    lowest = min(price_operators(costs, on, variant.graph.operators) for variant in known)
    try:
        result = search_graphs(graph.model, choose_rules(stable=True, generated=generated), costs, options, on=on)
    except EndlessRewriting as error:
        _LOG.warning("no search for better graphs: %s", error)
        return ()
    keys = {variant.key for variant in known}
    earlier = sum(variant.name.startswith(SEARCHED) for variant in known)
    variants: list[GraphVariant] = []
    for candidate in result.candidates:
        if candidate.cost >= lowest or len(candidate.steps) < len(candidate.applications):
            continue
        variant = _variant(
            f"{SEARCHED}-{earlier + len(variants) + 1}",
            candidate.model,
            candidate.applications,
            candidate.steps,
            candidate.cost,
        )
        if variant.key not in keys and _is_computable(variant):
            keys.add(variant.key)
            variants.append(variant)
    return tuple(variants)


def tailored_variant(graph: Graph, config: RewriteConfig) -> GraphVariant:
    """The variant that a configuration makes of a graph.

    Raises:
        EndlessRewriting: rules undo each other.
        KeyError: the configuration enables a rule that there is not.
        UnsupportedOpset, OpsetOutOfReach: the graph cannot be raised to the configuration's opset.
    """
    result = PipelineRunner(graph.model, rules()).run(config)
    variant = _variant(TAILORED, result.model, result.applications)
    return replace(variant, rewrite_config=config)


def recreated_variant(
    graph: Graph, name: str, steps: Sequence[RewriteStep], config: RewriteConfig | None = None
) -> GraphVariant | None:
    """The variant of a graph that was called `name`, made again; None where the rules do not lead to it any more."""
    if name == ORIGINAL:
        return GraphVariant(ORIGINAL, graph)
    if config is not None:
        try:
            return tailored_variant(graph, config)
        except (KeyError, EndlessRewriting, OpsetOutOfReach, UnsupportedOpset):
            return None
    if not steps:
        return next(iter(rewritten_variants(graph)), None)
    try:
        model = replay(graph.model, rules(), steps)
    except (MatchFailure, KeyError):  # a rule is gone or does something else now
        return None
    return _variant(name, model, (), tuple(steps))


def _variant(
    name: str,
    model: ir.Model,
    applications: Sequence[Application],
    steps: tuple[RewriteStep, ...] = (),
    predicted_ms: float | None = None,
) -> GraphVariant:
    return GraphVariant(name, simplify(model), counts(applications), steps, predicted_ms=predicted_ms)
