"""A rewritten model with its evidence: it is compared with the original in float64, and what made it wrong is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import onnx_ir as ir

from bricolage.base.options import BOUNDS
from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.driver.checking import Check
from bricolage.errors import BricolageError, WrongRewrite
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import externalise_model
from bricolage.graph.prepare import prepare
from bricolage.graph.work import bytes_moved, flops
from bricolage.rewrite.engine import apply
from bricolage.rewrite.engine.apply import Application
from bricolage.rewrite.engine.retrace import Retrace
from bricolage.rewrite.engine.rewrite_bisection import first_wrong
from bricolage.rewrite.search.graph_search import SearchResult
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.verify.compare import Deviation
from bricolage.verify.reference import Evaluate

if TYPE_CHECKING:
    from bricolage.tune.rewrites import RewriteTuningResult

_MOST_ZEROS = 3


@dataclass(frozen=True)
class RewriteTrace:
    """A rewritten model, and how it came about."""

    model: ir.Model
    applications: tuple[Application, ...]
    searched: SearchResult | None = None
    retrace: Retrace | None = None
    """None where the applications have no order."""


@dataclass(frozen=True)
class Amount:
    """What a model asks for in one run: operators (constants and what sub-graphs hold aside), floating-point operations,
    and the bytes that its operators read and write."""

    operators: int
    flops: int
    bytes: int

    @staticmethod
    def of(model: ir.Model, graph: Graph) -> Amount:
        """Operators of a model, and the work of its graph at some sizes."""
        count = sum(1 for node in model.graph if node.op_type != "Constant")
        return Amount(count, sum(map(flops, graph.operators)), sum(map(bytes_moved, graph.operators)))


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


@dataclass(frozen=True)
class RewriteSubject:
    """A model that is rewritten, and what the result is compared with."""

    original: ir.Model
    """As it came."""
    graph: Graph
    """Of it, at the sizes."""
    simplified: ir.Model
    """The original before any rule."""
    sizes: Mapping[str, int]
    """Of all symbolic dimensions."""
    seed: int
    """Of the inputs."""


def verify_rewritten(subject: RewriteSubject, trace: RewriteTrace, evaluate: Evaluate) -> Rewritten:
    """A rewritten model with its evidence. `evaluate` computes the references of the subject and of what was made of it.

    Raises:
        WrongRewrite: it gives another answer than the original.
        NoReference, ReferenceLimit: the subject cannot be evaluated.
    """
    sizes, start = subject.sizes, subject.graph
    check = Check(start, sizes, subject.seed, evaluate)
    deviation = _require_equal(trace, check)
    _check_edges(subject, trace, evaluate)
    end = prepare(trace.model, sizes)
    estimate = partial(price_operators, OperatorRoofline(), NOMINAL, sizes=sizes)
    return Rewritten(
        externalise_model(trace.model, subject.original),
        trace.applications,
        before=Amount.of(subject.original, start),
        simplified=Amount.of(subject.simplified, start),
        after=Amount.of(trace.model, end),
        sizes=dict(sizes),
        error=deviation.error,
        bound=check.bound,
        predicted_ms=(estimate(start.operators), estimate(end.operators)),
        searched=trace.searched,
    )


def _check_edges(subject: RewriteSubject, trace: RewriteTrace, evaluate: Evaluate) -> None:
    """Compares with the original where symbolic dimensions are 1, and where one is 0, as far as the original takes that.

    Raises:
        WrongRewrite
    """
    sizes = subject.sizes
    zeros = [{**sizes, name: 0} for name in list(sizes)[:_MOST_ZEROS]]
    for edge in [dict.fromkeys(sizes, 1), *zeros] if sizes else []:
        try:
            check = Check(prepare(subject.original, edge), edge, subject.seed, evaluate)
        except BricolageError:
            continue  # the original does not run there either, or says nothing
        _require_equal(trace, check)


def _require_equal(trace: RewriteTrace, check: Check) -> Deviation:
    """How far the rewritten model is off.

    Raises:
        WrongRewrite: by more than the bound. It names the application that makes the answer wrong; all of them where they have no
            order.
    """
    deviation = check.deviation(trace.model)
    if deviation.excess <= BOUNDS["highest"]:
        return deviation
    if trace.retrace is None:
        names = ", ".join(dict.fromkeys(application.rule for application in trace.applications))
        count = len(trace.applications)
        raise WrongRewrite(number=count, rule=names, error=deviation.error, bound=check.bound, removed="in no order")
    culprit = first_wrong(trace.retrace, trace.applications, check.deviation, BOUNDS["highest"])
    raise WrongRewrite(
        number=culprit.number,
        rule=culprit.rule or "none (folding of constants, or the opset)",
        error=culprit.error,
        bound=check.bound,
        removed=", ".join(culprit.removed) or "nothing",
    )
