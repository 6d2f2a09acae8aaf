"""Quantised graphs in a decision: made once the baselines are known, judged twice, and raced on every backend that runs them.

What such a graph computes with exact integers is compared with the float model in float64 on samples that calibration has not seen,
by the accuracy asked for. What a backend computes of it is compared with exact integers (`bricolage.verify.quantised`), and on
these samples once more with the float model.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from bricolage.base.deadline import Deadline
from bricolage.costs.models.roofline import floor_ms
from bricolage.driver.agenda import Item, Promise
from bricolage.driver.byte_checks import check_products
from bricolage.driver.promising_variants import whole_challengers, write_variant_files
from bricolage.driver.quantised_variants import (
    CALIBRATED,
    MadeQuantised,
    compute_accepted_error,
    float_results,
    quantised_variant,
)
from bricolage.driver.state import DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import BricolageError, MetricFails
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.plan.accuracy_record import FloatOperator, QuantisedGraph
from bricolage.verify.compare import relative_error
from bricolage.verify.held_back import HeldBack
from bricolage.work.implementation import KernelConfig

_LOG = logging.getLogger(__name__)

_EVALUATIONS = 3.0
"""Evaluations of one sample for each product with constant weights: what it costs in accuracy is measured on some, where the
whole is too inaccurate."""


class QuantisedGraphItem(Item):
    """A graph that calibration, or storing weights in fewer bits, makes of the original."""

    asked = True

    def __init__(self, variant: str) -> None:
        """Which one."""
        self._variant = variant
        self.name = "quantised graph" if variant == CALIBRATED else f"weights in {variant.removeprefix('weights-')}"

    def promise(self, state: DecisionState) -> Promise | None:
        """At most what bytes are faster than float32 by here; for weights alone, what is moved less."""
        if state.incumbent_ms is None:
            return None
        seconds, incumbent = self._seconds(state), state.incumbent_ms
        least = floor_ms(workload(state.oracle.graph.everything), state.session.attainable, KernelConfig("int8"))
        because = (
            "by the roofline of products of bytes" if self._variant == CALIBRATED else "by the bytes that are moved"
        )
        bound = 1.0 - least / incumbent
        return Promise(bound, seconds, because, bound=bound)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Makes it, judges it in float64, times it on every backend that takes it, and enters the fastest for the race."""
        session = state.session
        session.progress.start(self.name)
        try:
            floats = float_results(backend.name for backend in session.backends)
            quantised = quantised_variant(state.oracle.graph, self._variant, session.options, session.samples, floats)
        except MetricFails:
            raise
        except BricolageError as error:
            session.progress.finish()
            _LOG.warning("no quantised graph: %s", error.sentence)
            self._note(state, None, "not made", error.sentence)
            return
        held = state.oracle.held_back
        held = None if held is None else held.at(compute_accepted_error(session.options))
        write_variant_files(quantised.variant, session.store)
        refusal, error_found = _judge_graph(state, quantised.variant.graph, held)
        session.progress.finish()
        if refusal:
            self._note(state, quantised, "too inaccurate", refusal, error_found)
            return
        variant = self._enter_variant(state, quantised, held)
        self._measure(variant, deadline)
        check_products(variant, deadline)
        challengers = whole_challengers([variant])
        state.challenge(*challengers)
        times = sorted(variant.times.items(), key=lambda pair: pair[1])
        timings = ", ".join(f"{implementation} {ms:.3g} ms" for implementation, ms in times)
        failed = [
            f"{implementation} {cost.outcome}: {cost.reason}" if cost.reason else f"{implementation} {cost.outcome}"
            for implementation, cost in variant.whole.items()
            if cost.ms is None
        ]
        outcome = "raced" if challengers else "not run by any"
        self._note(
            state,
            quantised,
            outcome,
            "; ".join([timings] * bool(timings) + failed) or "no backend takes it",
            error_found,
        )

    def _seconds(self, state: DecisionState) -> float:
        samples = state.session.samples
        measured = state.whole_s * len(state.original.first_configurations)
        if samples is None:
            return measured
        products = sum(operator.op_type in ("Conv", "MatMul", "Gemm") for operator in state.oracle.graph.operators)
        evaluations = len(samples.calibration) + _EVALUATIONS * products + 2 * len(samples.held_back.samples)
        return measured + evaluations * state.sample_s

    def _enter_variant(self, state: DecisionState, made: MadeQuantised, held: HeldBack | None) -> TimedVariant:
        samples = state.session.samples
        rests_on = f"{made.variant.name} {samples.digest if samples is not None else ''}"
        oracle = state.oracle.quantised(made.variant.name, made.variant.graph, rests_on)
        oracle.held_back = held
        variant = TimedVariant.of(made.variant, oracle, state.original.open_variant(made.variant).session)
        state.variants.append(made.variant)
        state.timed_variants[made.variant.name] = variant
        return variant

    @staticmethod
    def _measure(variant: TimedVariant, deadline: Deadline) -> None:
        slow = {backend.name for backend in variant.session.backends if backend.compiles_slowly}
        offered = [*variant.candidates.whole, *variant.candidates.unclaimed]
        quick = [implementation for implementation in offered if implementation.backend not in slow]
        variant.session.progress.start(f"{variant.name} model on each backend", len(quick))
        if quick and not deadline():
            variant.measure_whole(quick, deadline)
        variant.session.progress.finish()

    def _note(
        self,
        state: DecisionState,
        made: MadeQuantised | None,
        outcome: str,
        verdict: str,
        error: float | None = None,
    ) -> None:
        report = made.report if made is not None else None
        floats = (
            tuple(FloatOperator(operator.name, operator.op_type, operator.reason) for operator in report.kept_float)
            if report
            else ()
        )
        state.quantised.append(
            QuantisedGraph(
                self._variant,
                len(report.quantised) if report else 0,
                floats=floats,
                calibrated_on=report.calibrated_on if report else 0,
                bytes=report.bytes if report else (0, 0),
                verdict=verdict,
                outcome=outcome,  # type: ignore[arg-type]
                error=error,
            )
        )


def _judge_graph(state: DecisionState, graph: Graph, held: HeldBack | None) -> tuple[str, float | None]:
    """Why a quantised graph is not accurate enough with exact integers, empty where it is; and its largest relative error."""
    evaluate, names = state.session.evaluate, [info.name for info in graph.outputs]
    if held is None:
        input_names = {info.name for info in graph.inputs}
        inputs = {name: array for name, array in state.inputs.items() if name in input_names}
        answer = evaluate(graph.model, inputs, dtype=np.float64)
        right = [state.oracle.outputs[info.name] for info in state.oracle.graph.outputs]
        error, bound = (
            relative_error([answer[name] for name in names], right),
            compute_accepted_error(state.session.options),
        )
        return (f"its error is {error:.2e}, the bound {bound:.2e}" if error > bound else ""), error
    inputs_of = {info.name for info in graph.inputs}
    answers: list[Mapping[str, np.ndarray]] = []
    for sample in held.data.samples:
        outputs = evaluate(graph.model, {name: sample[name] for name in sample if name in inputs_of}, dtype=np.float64)
        answers.append(
            {held_name: np.asarray(outputs[name]) for held_name, name in zip(held.names, names, strict=True)}
        )
    reached = held.judged(answers)
    return ("" if reached.met else f"{reached.told} ({held.data.origin})"), reached.error
