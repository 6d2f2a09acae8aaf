"""Stages that place regions: the op-level optimum, refined end to end, and placements in several precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.driver.describe import placement_name
from bricolage.driver.placement_problem import PlacementProblem, Timed
from bricolage.driver.precision_search import (
    AloneCost,
    LowPrecision,
    PrecisionSearchResult,
    search_precisions,
    worth_trying,
)
from bricolage.driver.promising_variants import select_divided_variants
from bricolage.driver.region_costs import measure_segments
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, DecisionState, PlacementSearch
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.graph.work import operator_work
from bricolage.measure.specs import Stop
from bricolage.work.implementation import Implementation

_CHALLENGERS = 2


_LEAST_GAIN = 0.1
"""Of a segment's time: what a low precision is expected to gain at least: alone it may gain less than with others."""


class Placing(Stage[DecisionState]):
    """Placements of the variants that could win."""

    name: ClassVar[str] = "placement"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"challengers", "searches", "mixtures"})

    def __init__(self, variants: Sequence[TimedVariant] | None = None) -> None:
        """`variants`: of the variants; by default of all that could win."""
        self._variants = variants

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches one variant after the other."""
        if not state.mixing:
            return
        for variant in select_divided_variants(state) if self._variants is None else self._variants:
            if not variant.graph.static or len(variant.graph) < 2:
                continue
            self._search(state, variant, deadline)

    @staticmethod
    def _search(state: DecisionState, timed_variant: TimedVariant, deadline: Deadline) -> None:
        """The exact op-level optimum, refined end to end."""
        problem, variant = PlacementProblem(timed_variant, deadline), timed_variant.name
        optimum = problem.solve()
        placement_search = PlacementSearch(problem.predictor, problem.transfer_table, problem.proof(optimum))
        state.searches[variant] = placement_search  # before refining, which may be interrupted
        refined = problem.refine(optimum, deadline) if len(optimum.choices) > 1 else []
        state.mixtures |= {placement_name(mixture, variant): ms for mixture, ms in refined}
        state.searches[variant] = replace(placement_search, measured_ms=tuple(ms for _, ms in refined))
        for placement, _ in _best(refined):
            predicted = problem.predictor.placement(placement)
            predicted_ms = (
                predicted if math.isfinite(predicted) else None
            )  # of what was timed end to end it need not be
            state.challenge(Challenger(placement_name(placement, variant), placement, predicted_ms, variant))


def full_precisions(
    times: Mapping[Implementation, float], lows: Sequence[Implementation]
) -> dict[Implementation, float]:
    """Who may run what stays in full precision, with its time: the fastest, and the fastest of the first one's backend."""
    backend = lows[0].backend if lows else ""
    same_backend = {implementation: ms for implementation, ms in times.items() if implementation.backend == backend}
    return {
        implementation: times[implementation]
        for implementation in (
            min(group_times, key=group_times.__getitem__) for group_times in (times, same_backend) if group_times
        )
    }


def place_precisions(
    state: DecisionState, variant: TimedVariant, lows: Sequence[Implementation], deadline: Deadline
) -> PrecisionSearchResult:
    """Looks for parts of the graph that bear lower precisions, which are too inaccurate for the whole (`lows`, timed), end to end;
    the fastest mixtures race."""
    low_precisions = [
        LowPrecision(low, ms, variant.whole[low].error) for low in lows if (ms := variant.dropped[low].ms) is not None
    ]
    tried = worth_trying(low_precisions)
    full = full_precisions(variant.times, [precision.implementation for precision in tried])
    alone = _alone(variant, tried[0].implementation, next(iter(full)), deadline.at_most(deadline.left / 2))
    variant.session.progress.start("lower precisions in parts", None)
    outcome = search_precisions(
        variant.candidates.segments,
        {operator.number: operator_work(operator).operators[0].flops for operator in variant.graph.operators},
        full,
        tried,
        variant.oracle.bound,
        lambda placements: variant.placement_costs(placements, deadline),
        lambda left: deadline.at_most(deadline.left / min(left, 2)),
        alone=alone,
    )
    variant.session.progress.finish()
    _enter(state, variant, outcome.passed)
    return outcome


def _alone(variant: TimedVariant, low: Implementation, full: Implementation, stop: Stop) -> dict[int, AloneCost]:
    """What the low precision gains on segments and how far off it is, each alone; those that were measured."""
    measure_segments(variant, [low, full], stop)
    alone_costs: dict[int, AloneCost] = {}
    for segment in variant.candidates.segments:
        costs = variant.regions.of(variant.region_key(Region(variant.graph, segment)))
        fast, safe = costs.get(low), costs.get(full)
        if fast is not None and safe is not None and fast.error is not None and safe.ms is not None:
            gain = 0.0 if fast.ms is None else safe.ms - fast.ms
            alone_costs[segment] = AloneCost(max(gain, _LEAST_GAIN * safe.ms), fast.error)
    return alone_costs


def _enter(state: DecisionState, timed_variant: TimedVariant, timed: Sequence[Timed]) -> None:
    """What was measured end to end counts, and the fastest mixtures race."""
    variant = timed_variant.name
    state.mixtures |= {placement_name(placement, variant): ms for placement, ms in timed}
    state.challenge(*(Challenger(placement_name(p, variant), p, None, variant) for p, _ in _best(timed)))


def _best(timed: Sequence[Timed]) -> list[Timed]:
    """The fastest placements that are mixtures."""
    return sorted((entry for entry in timed if len(entry[0]) > 1), key=lambda entry: entry[1])[:_CHALLENGERS]
