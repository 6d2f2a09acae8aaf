"""Rewriting a model by rules: which take part, at which opset, by fixpoint or search, at which sizes the result is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.driver.rewrites.verified_rewrite import (
    RewriteSubject,
    RewriteTrace,
    Rewritten,
    references,
    verify_rewritten,
)
from bricolage.errors import BadOption, StatedOtherwise
from bricolage.frontends.clean import forget_stated, raise_opset
from bricolage.graph.open_sizes import standing_in
from bricolage.graph.prepare import prepare, simplify, symbolic_dimensions
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.retrace import Fixpoint, Recorded, Retrace
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.graph_search import SearchResult, search_graphs
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.verify.reference import Evaluate
from bricolage.work.cost import CostModel

_DEFAULT_SIZES = (2, 3, 5, 7)
"""Sizes that stand in for symbolic dimensions, in turn, where none are given: unequal, so that mixing them up shows."""


@dataclass(frozen=True)
class RewriteChecks:
    """With what a rewritten model is checked."""

    seed: int = 0
    """Of the inputs."""
    budget_s: float | None = None
    """Seconds of one evaluation in a worker; None: by the graph."""
    memory_limit_mb: int | None = None
    """Of the worker; None: by what is free."""
    evaluate: Evaluate | None = None
    """Computes references without a worker."""


@dataclass(frozen=True)
class RewriteRequest:
    """How a model is rewritten. Fields that are not explained here are those of `rewrite`."""

    rules: Sequence[Rule]
    """That take part."""
    costs: CostModel
    """What a search minimises."""
    shapes: Mapping[str, int]
    checks: RewriteChecks
    search: SearchOptions | None = None
    limit: int | None = None
    opset: int | None = None


def combine_rules(only: Sequence[str], skip: Sequence[str], more: Sequence[Rule]) -> list[Rule]:
    """The rules of the catalogue that take part, and `more` of the user's.

    Raises:
        UnknownFamily: there is no such family or rule.
        BadOption: two rules have one name.
    """
    rules = [*choose_rules(only, skip, generated=False), *more]
    names = [rule.name for rule in rules]
    for rule in more:
        if names.count(rule.name) > 1:
            raise BadOption(option="own", value=rule.name, advice="Another rule has that name")
    return rules


def simplify_at_opset(original: ir.Model, opset: int | None) -> ir.Model:
    """A simplified copy of the model, raised to an opset if one is given.

    Raises:
        UnsupportedOpset, OpsetOutOfReach: it cannot be raised.
        BadOption: it is at a newer one. (Those older than 18 are brought to 18 when they are read.)
    """
    raised = original.clone()
    if opset is not None:
        current = raised.graph.opset_imports.get("", opset)
        if opset < current:
            advice = f"The model is at opset {current}, and models are only ever raised; leave it out to keep that"
            raise BadOption(option="--opset", value=opset, advice=advice)
        raise_opset(raised, opset)
    simplify(raised)
    return raised


def rewrite_model(original: ir.Model, request: RewriteRequest) -> Rewritten:
    """The model rewritten and checked. Where sizes that it states cannot be, they are forgotten in it.

    Raises:
        As `rewrite`.
    """
    try:
        return _rewrite_once(original, request)
    except StatedOtherwise:
        forget_stated(original)
        return _rewrite_once(original, request)


def _rewrite_once(original: ir.Model, request: RewriteRequest) -> Rewritten:
    simplified, checks = simplify_at_opset(original, request.opset), request.checks
    sizes = _choose_sizes(original, request.shapes)
    subject = RewriteSubject(original, prepare(original, sizes), simplified, sizes, checks.seed)
    trace = _apply_rules(simplified, request)
    if checks.evaluate is not None:
        return verify_rewritten(subject, trace, checks.evaluate)
    with references(subject.graph, checks.budget_s or 0.0, checks.memory_limit_mb) as evaluate:
        return verify_rewritten(subject, trace, evaluate)


def _apply_rules(simplified: ir.Model, request: RewriteRequest) -> RewriteTrace:
    """What the rules make of a model, which is not changed.

    Raises:
        BadOption: the number of applications is limited, and the search has no order of them.
    """
    limit, options = request.limit, request.search
    if options is None:
        return _trace_rewrite(Fixpoint(simplified, request.rules), limit, None)
    if limit is not None and options.method == "saturate":
        advice = "Equality saturation applies rules in no order; search otherwise"
        raise BadOption(option="--max-rewrites", value=limit, advice=advice)
    graphs = search_graphs(simplified, request.rules, request.costs, options, sizes=request.shapes)
    best = graphs.best
    if len(best.steps) < len(best.applications):
        return RewriteTrace(best.model, best.applications, graphs)
    return _trace_rewrite(Recorded(simplified, request.rules, best.steps), limit, graphs)


def _trace_rewrite(retrace: Retrace, limit: int | None, searched: SearchResult | None) -> RewriteTrace:
    rewritten = retrace.made(limit)
    return RewriteTrace(rewritten.model, rewritten.applications, searched, retrace)


def _choose_sizes(model: ir.Model, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all symbolic dimensions, to count and check with: those given, small and unequal ones for the rest, or where those
    do not fit the model others that do.

    Raises:
        UnboundDimension: none that fit were found.
    """
    groups: dict[str, list[str]] = {}
    for name, readers in symbolic_dimensions(model).items():
        nameless_first = any(name == f"{reader}.0" for reader in readers)  # rows of all inputs that do not say so
        groups.setdefault(".0" if nameless_first else name, []).append(name)
    drawn = {name: _DEFAULT_SIZES[i % len(_DEFAULT_SIZES)] for i, names in enumerate(groups.values()) for name in names}
    return standing_in(model, given, drawn)
