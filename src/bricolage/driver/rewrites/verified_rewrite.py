"""A rewritten model with its evidence: it is compared with the original in float64, in a worker with limits, and what made it wrong
is found."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bricolage.base import scratch
from bricolage.base.options import BOUNDS
from bricolage.costs.models.roofline import NOMINAL, OperatorRoofline
from bricolage.device.host import host
from bricolage.driver.sources import working_folder
from bricolage.errors import BricolageError, InvalidGraph, NoReference, WrongRewrite
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import externalise_model
from bricolage.graph.prepare import prepare
from bricolage.graph.store import Store
from bricolage.graph.work import bytes_moved, flops
from bricolage.measure.pool import Pool
from bricolage.measure.reference_worker import WorkerReference, reference_limit
from bricolage.rewrite.engine import apply
from bricolage.rewrite.engine.apply import Application
from bricolage.rewrite.engine.retrace import Retrace
from bricolage.rewrite.engine.rewrite_bisection import first_wrong
from bricolage.rewrite.search.graph_search import SearchResult
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.verify.bound import draws_for, error_limits, rounding_errors
from bricolage.verify.compare import Deviation, deviation
from bricolage.verify.inputs import InputSample, choose_sample
from bricolage.verify.reference import Evaluate, Values

if TYPE_CHECKING:
    from bricolage.tune.rewrites import RewriteTuningResult

_MOST_ZEROS = 3


@contextmanager
def references(graph: Graph, budget_s: float, memory_limit_mb: int | None) -> Iterator[Evaluate]:
    """What evaluates a graph, and models made of it, in a worker with limits of time and memory.

    Raises:
        CacheNotWritable, UnsafeCache
    """
    with (
        scratch.using(working_folder()) as directory,
        Pool(memory_limit_mb << 20 if memory_limit_mb else None) as pool,
    ):
        worker = WorkerReference(pool, host(), directory, reference_limit(graph, budget_s))
        yield file_constants(worker, Store(directory))


def file_constants(evaluate: Evaluate, store: Store) -> Evaluate:
    """Evaluates as `evaluate` does, which reads constants from the folder of `store`. Those of a model that it is given lie
    there from then on."""
    numbers = itertools.count()

    def evaluate_filed(
        model: ir.Model,
        inputs: Mapping[str, Any],
        *,
        dtype: type[np.floating[Any]] = np.float64,
        keep: Collection[str] = (),
    ) -> Values:
        store.share([model], f"checked-{next(numbers)}.data")
        return evaluate(model, inputs, dtype=dtype, keep=keep)

    return evaluate_filed


class Check:
    """Compares rewritten models with the original in float64, on the same inputs."""

    def __init__(self, original: Graph, sizes: Mapping[str, int], seed: int, evaluate: Evaluate) -> None:
        self._sizes = sizes
        self._evaluate = evaluate
        self._sample: InputSample = choose_sample(original.model, seed, evaluator=partial(evaluate, original.model))
        self._original = original
        self._limits = dict.fromkeys(self._sample.reference, 0.0)
        self.bound = BOUNDS["highest"]

    def deviation(self, model: ir.Model) -> Deviation:
        """How far a rewritten model is off; infinitely where it cannot be evaluated. What rounding does to the original
        is measured when it is first needed."""
        reference = self._sample.reference
        try:
            outputs = self._evaluate(prepare(model, self._sizes).model, self._sample.inputs)
        except (NoReference, InvalidGraph):
            return Deviation(np.inf, np.inf)
        given, wanted = [outputs.get(name) for name in reference], list(reference.values())
        judged = deviation(given, wanted, list(self._limits.values()))
        if judged.excess <= BOUNDS["highest"] or any(self._limits.values()):
            return judged
        draws = draws_for(self._original)
        rounding = rounding_errors(self._original.model, self._sample.inputs, reference, draws, self._evaluate)
        borrowed = bool(reference.borrowed)
        self._limits = error_limits(rounding, reference, borrowed=borrowed)
        self.bound = max(self.bound, *self._limits.values())
        return deviation(given, wanted, list(self._limits.values()))


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
