"""`rewrite`: a model in, an equal model with less to do out, checked against float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bricolage.base.options import BOUNDS, Options
from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.driver.checking import Check, references
from bricolage.driver.constants import fold_inputs
from bricolage.errors import BadOption, BricolageError, StatedOtherwise, WrongRewrite
from bricolage.frontends import raise_opset, to_model
from bricolage.frontends.clean import forget_stated
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import externalise_model
from bricolage.graph.open_sizes import standing_in
from bricolage.graph.prepare import prepare, simplify, symbolic_dimensions
from bricolage.graph.work import bytes_moved, flops
from bricolage.rewrite.catalogue import choose_rules, find_rule
from bricolage.rewrite.engine import apply
from bricolage.rewrite.engine.apply import Application, FailedMatch
from bricolage.rewrite.engine.retrace import Fixpoint, Recorded, Retrace
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.graph_search import SearchResult, search_graphs
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.trust.rewrite_bisection import first_wrong
from bricolage.verify.reference import Evaluate
from bricolage.work.cost import CostModel

if TYPE_CHECKING:
    from bricolage.tune.rewrites import RewriteTuningResult

_MOST_ZEROS = 3
_DEFAULT_SIZES = (2, 3, 5, 7)
"""Sizes that stand in for symbolic dimensions, in turn, where none are given: unequal, so that mixing them up shows."""


@dataclass(frozen=True)
class Amount:
    """What a model asks for in one run: operators (constants and what sub-graphs hold aside), floating-point operations,
    and the bytes that its operators read and write."""

    operators: int
    flops: int
    bytes: int


@dataclass(frozen=True)
class Rewritten:
    """A rewritten model with its evidence."""

    model: ir.Model = field(repr=False)
    applications: tuple[Application, ...]
    before: Amount
    simplified: Amount
    """After constants are folded and identities dropped, before any rule."""
    after: Amount
    sizes: Mapping[str, int]
    """Of symbolic dimensions, for counting and checking only: the model keeps them symbolic."""
    error: float
    """‖y - y64‖ / ‖y64‖ of the rewritten model against the original, both in float64."""
    bound: float
    predicted_ms: tuple[float, float]
    """Estimates for the original and the rewritten model by the operators' work; only their ratio means anything."""
    searched: SearchResult | None = field(default=None, repr=False)
    """What a search found, cheapest first, where there was one; `model` is the first."""
    tailored: RewriteTuningResult | None = None
    """What was measured on the backend that the variant was made for."""

    @property
    def counts(self) -> dict[str, int]:
        """How often each rule was applied, by name, most often first."""
        return apply.counts(self.applications)


def rewrite(
    source: Any,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    limit: int | None = None,
    opset: int | None = None,
    shapes: Mapping[str, int] | None = None,
    constants: Mapping[str, str | None] | None = None,
    seed: int = 0,
    example_inputs: Any = None,
    search: SearchOptions | None = None,
    cost: CostModel | None = None,
    own: Sequence[Rule] = (),
    budget_s: float | None = None,
    memory_limit_mb: int | None = None,
    evaluate: Evaluate | None = None,
) -> Rewritten:
    """Applies every canonicalising rule where it is profitable, and checks the result against float64 on random inputs.

    Args:
        source: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a PyTorch module (with `example_inputs`).
        only: families or rules to use; where empty all but those that were found by enumeration, which make a search slow.
        skip: families or rules to leave out.
        limit: stop after that many applications. The first N are the same in every run.
        opset: raise the model to this opset of the default domain first: newer ones have operators for what older write out.
        shapes: sizes of symbolic dimensions for counting and checking; small ones where they are not given.
        constants: words of inputs' values that never change (see `Options.constants`): the rewritten model takes them no more.
        search: look for the cheapest graph that rules lead to, cost-based ones too (see `bricolage.rewrite.search`).
        cost: what the search minimises, asked operator by operator; an estimate from its work where it is not given.
        own: rules of the user's, tried after the known ones; `bricolage.rulemaking.verification.verify` proves them.
        budget_s: seconds of one evaluation in float64, if that is more than `measure.reference_worker.reference_limit` allows.
        memory_limit_mb: megabytes that it may take; 80 % of what is free by default.
        evaluate: computes in float64 what the check compares; by default a worker process with these limits. A model of which
            it is known that it ends can do without: `verify.reference.evaluate`.

    Raises:
        WrongRewrite: the answer changed; the rule that changed it was found by bisection.
        BadOption: two rules have one name; or `limit` with equality saturation, which has no order of applications; or
            `opset` is older than the model's.
        UnknownFamily: there is no such family or rule.
        UnsupportedOpset, OpsetOutOfReach: the model cannot be raised to `opset`.
        UnboundDimension: no sizes that fit the model were found; name some.
        NoReference: the model cannot be evaluated in float64.
        ReferenceLimit: that takes too much time or memory.
        CacheNotWritable, NotWritable, UnsafeCache: there is no place for the files of a check.
        UsageError: the model is not usable, see `bricolage.frontends`.
    """
    rules = taking_part(only, skip, own)
    original = _open_model(source, example_inputs, constants or {}, shapes or {})

    def rewriter() -> _ModelRewriter:
        return _ModelRewriter(at_opset(original, opset), rules, search, cost or OperatorRoofline(), shapes or {})

    checking = partial(_rewritten, limit=limit, seed=seed, evaluate=evaluate, limits=(budget_s or 0.0, memory_limit_mb))
    try:
        return checking(original, rewriter(), shapes or {})
    except StatedOtherwise:
        forget_stated(original)
        return checking(original, rewriter(), shapes or {})


def _open_model(
    source: object, example_inputs: object, constants: Mapping[str, str | None], shapes: Mapping[str, int]
) -> ir.Model:
    """The model without the inputs that never change."""
    model = to_model(source, example_inputs=example_inputs)
    fold_inputs(model, Options(constants=constants, shapes={name: (size,) for name, size in shapes.items()}))
    return model


def _rewritten(
    original: ir.Model,
    rewriter: _ModelRewriter,
    shapes: Mapping[str, int],
    *,
    limit: int | None,
    seed: int,
    evaluate: Evaluate | None,
    limits: tuple[float, int | None],
) -> Rewritten:
    """The model rewritten and checked. `limits`: seconds and megabytes of one evaluation, where it is not given."""
    sizes = _sizes(original, shapes)
    start = prepare(original, sizes)
    trace = rewriter.make(limit)
    if evaluate is not None:
        return verify_rewritten(original, start, rewriter.simplified, trace, sizes, seed, evaluate)
    with references(start, *limits) as there:
        return verify_rewritten(original, start, rewriter.simplified, trace, sizes, seed, there)


def taking_part(only: Sequence[str], skip: Sequence[str], own: Sequence[Rule]) -> list[Rule]:
    """Those that take part.

    Raises:
        UnknownFamily, BadOption: as `rewrite`.
    """
    rules = [*choose_rules(only, skip, generated=False), *own]
    names = [rule.name for rule in rules]
    for rule in own:
        if names.count(rule.name) > 1:
            raise BadOption(option="own", value=rule.name, advice="Another rule has that name")
    return rules


def at_opset(original: ir.Model, opset: int | None) -> ir.Model:
    """A copy of the model, raised to an opset if one is given.

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
    return raised


def verify_rewritten(
    original: ir.Model,
    start: Graph,
    simplified: ir.Model,
    made: RewriteTrace,
    sizes: Mapping[str, int],
    seed: int,
    evaluate: Evaluate,
) -> Rewritten:
    """A rewritten model with its evidence.

    Args:
        original: the model as it came.
        start: its graph at `sizes`.
        simplified: the original before any rule.
        made: the rewritten model.
        sizes: of all symbolic dimensions.
        seed: of the inputs.
        evaluate: computes the references of `start` and of rewritten graphs.

    Raises:
        WrongRewrite: it gives another answer than the original.
        NoReference, ReferenceLimit: `start` cannot be evaluated.
    """
    check = Check(start, sizes, seed, evaluate)
    deviation = check.deviation(made.model)
    if not deviation.excess <= BOUNDS["highest"]:
        raise _culprit(made, check, deviation.error)
    _check_edges(original, made, sizes, seed, evaluate)
    end = prepare(made.model, sizes)
    estimate = partial(price_operators, OperatorRoofline(), NOMINAL, sizes=sizes)
    return Rewritten(
        externalise_model(made.model, original),
        made.applications,
        before=Amount(_operators(original), *_work(start)),
        simplified=Amount(_operators(simplified), *_work(start)),
        after=Amount(_operators(made.model), *_work(end)),
        sizes=dict(sizes),
        error=deviation.error,
        bound=check.bound,
        predicted_ms=(estimate(start.operators), estimate(end.operators)),
        searched=made.searched,
    )


def explain_failures(source: Any, rule: str, *, example_inputs: Any = None) -> list[FailedMatch]:
    """For every operator of the model at which the rule could start and does not: what stands in the way.

    Raises:
        UnknownFamily: there is no such rule.
        UsageError: the model is not usable.
    """
    model = to_model(source, example_inputs=example_inputs)
    simplify(model)
    return apply.failed_matches(model, find_rule(rule))


@dataclass(frozen=True)
class RuleUse:
    """What a rule does to a model: where it applies, and where it finds its whole pattern in the result and is refused."""

    rule: str
    family: str
    applied: tuple[Application, ...]
    refused: tuple[FailedMatch, ...]


def list_rule_uses(source: Any, *, example_inputs: Any = None) -> list[RuleUse]:
    """The rules that apply to a model or nearly do, in the order in which they are tried; the model is not changed.

    Raises:
        UsageError: the model is not usable.
    """
    kept = [rule for rule in choose_rules() if not rule.cost_based]
    model = to_model(source, example_inputs=example_inputs)
    simplify(model)
    applications = apply.rewrite(model, kept)
    simplify(model)
    rule_uses = []
    for rule in kept:
        applied = tuple(a for a in applications if a.rule == rule.name)
        refused = tuple(refusal for refusal in apply.failed_matches(model, rule) if refusal.near)
        if applied or refused:
            rule_uses.append(RuleUse(rule.name, rule.family, applied, refused))
    return rule_uses


@dataclass(frozen=True)
class RewriteTrace:
    """A rewritten model, and how it came about (None where there is no order)."""

    model: ir.Model
    applications: tuple[Application, ...]
    searched: SearchResult | None
    retrace: Retrace | None


class _ModelRewriter:
    """The way from the original to a rewritten model."""

    def __init__(
        self,
        original: ir.Model,
        rules: Sequence[Rule],
        options: SearchOptions | None,
        costs: CostModel,
        sizes: Mapping[str, int],
    ) -> None:
        self._rules, self._options, self._costs, self._sizes = rules, options, costs, sizes
        self.simplified = original.clone()
        simplify(self.simplified)

    def make(self, limit: int | None) -> RewriteTrace:
        if self._options is None:
            return _trace_rewrite(Fixpoint(self.simplified, self._rules), limit, None)
        if limit is not None and self._options.method == "saturate":
            raise BadOption(
                option="--max-rewrites",
                value=limit,
                advice="Equality saturation applies rules in no order; search otherwise",
            )
        graphs = search_graphs(self.simplified, self._rules, self._costs, self._options, sizes=self._sizes)
        best = graphs.best
        if len(best.steps) < len(best.applications):
            return RewriteTrace(best.model, best.applications, graphs, None)
        return _trace_rewrite(Recorded(self.simplified, self._rules, best.steps), limit, graphs)


def _trace_rewrite(retrace: Retrace, limit: int | None, searched: SearchResult | None) -> RewriteTrace:
    rewritten = retrace.made(limit)
    return RewriteTrace(rewritten.model, rewritten.applications, searched, retrace)


def _sizes(model: ir.Model, given: Mapping[str, int]) -> dict[str, int]:
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


def _check_edges(
    original: ir.Model, made: RewriteTrace, sizes: Mapping[str, int], seed: int, evaluate: Evaluate
) -> None:
    """Compares with the original where symbolic dimensions are 1, and where one is 0, as far as the original takes that.

    Raises:
        WrongRewrite
    """
    zeros = [{**sizes, name: 0} for name in list(sizes)[:_MOST_ZEROS]]
    for edge in [dict.fromkeys(sizes, 1), *zeros] if sizes else []:
        try:
            check = Check(prepare(original, edge), edge, seed, evaluate)
        except BricolageError:
            continue  # the original does not run there either, or says nothing
        deviation = check.deviation(made.model)
        if not deviation.excess <= BOUNDS["highest"]:
            raise _culprit(made, check, deviation.error)


def _culprit(made: RewriteTrace, check: Check, error: float) -> WrongRewrite:
    """The application that makes the answer wrong; all of them where they have no order."""
    if made.retrace is None:
        names = ", ".join(dict.fromkeys(application.rule for application in made.applications))
        count = len(made.applications)
        return WrongRewrite(number=count, rule=names, error=error, bound=check.bound, removed="in no order")
    culprit = first_wrong(made.retrace, made.applications, check.deviation, BOUNDS["highest"])
    return WrongRewrite(
        number=culprit.number,
        rule=culprit.rule or "none (folding of constants, or the opset)",
        error=culprit.error,
        bound=check.bound,
        removed=", ".join(culprit.removed) or "nothing",
    )


def _operators(model: ir.Model) -> int:
    return sum(1 for node in model.graph if node.op_type != "Constant")


def _work(graph: Graph) -> tuple[int, int]:
    return sum(map(flops, graph.operators)), sum(map(bytes_moved, graph.operators))
