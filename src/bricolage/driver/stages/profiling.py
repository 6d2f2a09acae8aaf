"""Stages that measure: the reference, baselines, and the regions of promising variants."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import onnx_ir as ir

from bricolage.backends import quarantine
from bricolage.backends.claim_matching import objections
from bricolage.base.deadline import Deadline
from bricolage.base.options import FAR
from bricolage.device.device import Device
from bricolage.driver.byte_checks import check_products
from bricolage.driver.expected import expected_ms
from bricolage.driver.promising_variants import select_divided_variants
from bricolage.driver.region_costs import measure_regions
from bricolage.driver.session import Session
from bricolage.driver.stage import Stage
from bricolage.driver.state import DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.driver.whole_models import measure_baselines, measure_dropped, measure_teams
from bricolage.errors import AllWrong, NoBackend, NotAccurate, Unclaimed
from bricolage.graph.graph import Operator, TensorInfo, describe
from bricolage.measure.specs import Stop
from bricolage.plan.race_outcome import other_tool
from bricolage.verify.held_back import held_back
from bricolage.verify.oracle import Oracle
from bricolage.verify.quantised import is_quantised
from bricolage.work.implementation import Implementation


class Reference(Stage[DecisionState]):
    """The float64 reference of the original, and the candidates of every variant."""

    name: ClassVar[str] = "reference"
    essential: ClassVar[bool] = True
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "sample_s"})

    def __init__(self, *, first: Sequence[Implementation] = (), varied: bool = True) -> None:
        """`first`: as of `Baselines`: they are compiled ahead. Answers are judged on variations of the inputs too, unless they
        are not `varied`."""
        self._first, self._is_varied = tuple(first), varied

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Computes it, whatever the clock says."""
        session, first = state.session, state.variants[0]
        options = session.options
        oracle = Oracle(
            first.graph,
            state.inputs,
            session.store,
            options.bound,
            f"{state.digest} {quarantine.quarantine_digest()}",
            literal=options.tolerance is not None,
            evaluate=session.evaluate,
            known=session.findings.references,
        )
        original = state.timed_variants[first.name] = TimedVariant.of(first, oracle, session)
        self._compile_ahead(state)
        session.progress.start("float64 reference")
        oracle.compute(varied=self._is_varied)
        if not self._is_varied:
            oracle.without_variations()
        session.progress.finish()
        self._compile_for_the_next(state)
        if session.samples is not None:
            data = session.samples.held_back
            session.progress.start("float64 reference of held-back samples")
            began = deadline.clock()
            oracle.held_back = held_back(first.graph, data, oracle.bound, session.store, session.evaluate)
            state.sample_s = (deadline.clock() - began) / len(data.samples)
            session.progress.finish()
        state.timed_variants.update({variant.name: original.open_variant(variant) for variant in state.variants[1:]})

    def _measured_first(self, state: DecisionState) -> Sequence[Implementation]:
        return _select_given(self._first, state) or _few(state) or state.original.first_configurations

    def _compile_for_the_next(self, state: DecisionState) -> None:
        """Measuring and trying leave time and processors; what is measured first for the next devices is compiled meanwhile.
        Workers that compile stand still while something is timed."""
        session, variant = state.session, state.original
        specs = [variant.whole_spec(implementation) for implementation in self._measured_first(state)]
        for then in session.then:
            session.measurer.compile_ahead(
                [
                    replace(spec, threads=then.threads, device=then.device)
                    for spec in specs
                    if _runs_on(spec.steps[0].implementation, session, then.device)
                ]
            )

    def _compile_ahead(self, state: DecisionState) -> None:
        """The reference has one thread; what is measured next is compiled meanwhile."""
        variant, measurer = state.original, state.session.measurer
        data = state.oracle.data(variant.graph.everything)
        specs = [variant.whole_spec(implementation) for implementation in self._measured_first(state)]
        cached = measurer.cached([(spec, data) for spec in specs], state.oracle.accepted)
        measurer.compile_ahead([spec for spec, cost in zip(specs, cached, strict=True) if cost is None])


class Baselines(Stage[DecisionState]):
    """The whole original on the first configuration of every backend that compiles quickly, or on those few that are expected to be
    fastest, as the effort says; or on all implementations.

    Raises (when run):
        NoPlacement, NoBackend: nothing can run all of it.
        NotAccurate: nothing that can is accurate enough.
        KeyboardInterrupt: the user interrupted before anything was known.
    """

    name: ClassVar[str] = "baselines"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "whole_s"})

    def __init__(self, *, every: bool = False, first: Sequence[Implementation] = ()) -> None:
        """`every`: all configurations, and within the budget backends that compile slowly. `first`: these instead, where it is
        known which could win; those that this machine lacks are passed over."""
        self._every, self._first = every, tuple(first)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Measures them; for some seconds in any case. Whatever the clock says, one is measured, and in a budget that is not very
        short those that read most models."""
        began = deadline.clock()
        given = deadline.at_least(state.budget.shares.baselines_s)
        try:
            first = _select_given(self._first, state) or _few(state)
            measure_baselines(
                state.original,
                given,
                every=self._every,
                first=first if not self._every else (),
                always=_always(state),
            )
            state.whole_s = (deadline.clock() - began) / max(1, len(state.original.whole))
            if is_quantised(state.original.graph.model):
                _check_bytes(state.original, given)
            measure_teams(state.original, deadline)
            measure_dropped(state.original, deadline)
        except KeyboardInterrupt:
            if not state.original.times:
                deadline.interrupted = True  # there is nothing to finish with: this one ends the decision
            raise
        check_baselines(state.original)


def _select_given(first: Sequence[Implementation], state: DecisionState) -> Sequence[Implementation]:
    """Those of `first` that take the whole graph here, where there are several."""
    applicable = [implementation for implementation in first if implementation in state.original.candidates.whole]
    return applicable if len(applicable) > 1 else ()


def _always(state: DecisionState) -> frozenset[str]:
    """Backends that have their turn whatever the clock says; none in a shorter budget."""
    if not state.budget.gives_turns:
        return frozenset()
    return frozenset(backend.name for backend in state.session.backends if backend.always_measured)


def _runs_on(implementation: Implementation, session: Session, device: Device) -> bool:
    """Whether a backend has this configuration on another device, too."""
    there = session.backend(implementation.backend).configs(session.options.precision, device)
    return implementation.config in there


def _few(state: DecisionState) -> Sequence[Implementation]:
    """The implementations that are expected to be fastest, as many as the effort measures first, the best other tool and the best
    configuration of our own engine among them: what ships is compared with the one, and is mostly the other. Empty where the effort
    sets no number."""
    most = state.session.profile.baselines
    if most is None:
        return ()
    expected = expected_ms(state.original)
    ranked = sorted(expected, key=expected.__getitem__)
    both = [
        *[implementation for implementation in ranked if other_tool(implementation)][:1],
        *[implementation for implementation in ranked if not other_tool(implementation)][:1],
    ]
    return list(dict.fromkeys([*both, *ranked]))[:most]


def _check_bytes(variant: TimedVariant, given: Stop) -> None:
    """Refuses who multiplies bytes inexactly; where none is left, the other configurations have their turn."""
    check_products(variant, given)
    slow = {backend.name for backend in variant.session.backends if backend.compiles_slowly}
    rest = [
        implementation
        for implementation in variant.candidates.whole
        if implementation not in variant.whole and implementation.backend not in slow
    ]
    if not variant.times and rest:
        variant.measure_whole(rest, given)
        check_products(variant, given)


def check_baselines(variant: TimedVariant) -> None:
    """Whether something runs the whole graph and is right.

    Raises:
        NoPlacement, NoBackend: nothing can run all of it.
        NotAccurate: nothing that can is accurate enough; AllWrong: not for any precision.
    """
    if variant.times or any(cost.ms is not None for cost in variant.files.values()):
        return
    judged = [
        cost.deviation for cost in variant.whole.values() if cost.outcome == "wrong" and cost.deviation is not None
    ]
    wrong = [
        max(deviation.error, deviation.excess) for deviation in judged
    ]  # the second also on variations of the inputs
    if wrong:
        if not min(wrong) <= max(FAR, variant.oracle.bound):
            raise AllWrong(reasons=_refusals(variant))
        raise NotAccurate(error=min(wrong), bound=variant.oracle.bound)
    claimed = variant.candidates.claimed.values()
    unclaimed = [node for node in variant.graph.operators if not any(bits >> node.number & 1 for bits in claimed)]
    if unclaimed:
        operator = _find_named_operator([*unclaimed, *variant.graph.operators], variant) or unclaimed[0]
        raise Unclaimed(name=operator.name, op_type=_describe_operator(operator), reasons=_refusals(variant, operator))
    if not variant.candidates.whole and not variant.whole:
        raise NoBackend(why=" for the whole model")
    reasons = _refusals(variant)
    raise NoBackend(why=f" for this model ({reasons})" if reasons else " in the time given")


def _find_named_operator(operators: Sequence[Operator], variant: TimedVariant) -> Operator | None:
    """The first whose type a backend names that refuses the whole graph."""
    reasons = " ".join(cost.reason or "" for cost in variant.whole.values())
    return next((operator for operator in operators if re.search(rf"\b{re.escape(operator.op_type)}\b", reasons)), None)


def _describe_operator(operator: Operator) -> str:
    """Its type with the element types of what it reads, or makes where it reads nothing: "Conv of float16, float16"."""
    values = [value for value in operator.node.inputs if value is not None] or list(operator.outputs)
    kinds = [_kind(describe(value)) for value in values]
    return f"{operator.op_type} of {', '.join(kinds)}" if all(kinds) and kinds else operator.op_type


def _kind(info: TensorInfo) -> str:
    if info.dtype == ir.DataType.STRING:
        return "string"
    return str(info.numpy) if info.dtype is not None else ""


def _refusals(variant: TimedVariant, operator: Operator | None = None) -> str:
    """For each backend what came of the whole graph on it; where it was not tried, why it is not given an operator."""
    refusals: dict[str, str] = {}
    telling = {"wrong": 0, "refused": 2}
    for implementation, cost in sorted(variant.whole.items(), key=lambda pair: telling.get(pair[1].outcome, 1)):
        refusals.setdefault(implementation.backend, f"{implementation.backend}: {cost.reason or cost.outcome}")
    if operator is not None:
        for backend in variant.session.backends:
            if reasons := objections(backend, variant.graph, operator):
                refusals.setdefault(backend.name, f"{backend.name}: {', '.join(reasons)}")
    return "; ".join(refusals.values())


class Regions(Stage[DecisionState]):
    """Regions of the variants that could win, the most promising first."""

    name: ClassVar[str] = "regions"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants"})

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Measures as many as the time allows; what is known already costs nothing."""
        for variant in select_divided_variants(state):
            if variant.graph.static and len(variant.graph) > 1 and not deadline():
                measure_regions(variant, deadline)
