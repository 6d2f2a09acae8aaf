"""`rewrite`: a model in, an equal model with less to do out, checked against float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bricolage.base.options import Options
from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.driver.constants import fold_inputs
from bricolage.driver.rewrites.model_rewriting import RewriteChecks, RewriteRequest, combine_rules, rewrite_model
from bricolage.driver.rewrites.verified_rewrite import Rewritten
from bricolage.frontends import to_model
from bricolage.graph.prepare import simplify
from bricolage.rewrite.catalogue import choose_rules, find_rule
from bricolage.rewrite.engine.apply import FailedMatch, RuleUse, failed_matches, find_rule_uses
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.verify.reference import Evaluate
from bricolage.work.cost import CostModel


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
    rules = combine_rules(only, skip, own)
    checks = RewriteChecks(seed, budget_s, memory_limit_mb, evaluate)
    request = RewriteRequest(rules, cost or OperatorRoofline(), shapes or {}, checks, search, limit, opset)
    model = to_model(source, example_inputs=example_inputs)
    sizes = {name: (size,) for name, size in request.shapes.items()}
    fold_inputs(model, Options(constants=constants or {}, shapes=sizes))
    return rewrite_model(model, request)


def explain_failures(source: Any, rule: str, *, example_inputs: Any = None) -> list[FailedMatch]:
    """For every operator of the model at which the rule could start and does not: what stands in the way.

    Raises:
        UnknownFamily: there is no such rule.
        UsageError: the model is not usable.
    """
    model = to_model(source, example_inputs=example_inputs)
    simplify(model)
    return failed_matches(model, find_rule(rule))


def list_rule_uses(source: Any, *, example_inputs: Any = None) -> list[RuleUse]:
    """The rules that apply to a model or nearly do, in the order in which they are tried; the model is not changed.

    Raises:
        UsageError: the model is not usable.
    """
    rules = [rule for rule in choose_rules() if not rule.cost_based]
    return find_rule_uses(to_model(source, example_inputs=example_inputs), rules)
