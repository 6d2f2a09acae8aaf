"""The placement problem of one variant: priced candidates, measured transfers, and what solves it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bricolage.base.deadline import Deadline
from bricolage.costs.models.composed import region_costs
from bricolage.costs.models.measured_transfer import Pair
from bricolage.driver.pricing import price_candidates, wholes
from bricolage.driver.timed_variant import NEAR, TimedVariant
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.to_work import to_work
from bricolage.measure.dispatch_overhead import dispatch_overheads
from bricolage.measure.transfers import TransferMeasurer, adjacent_pairs
from bricolage.plan.decision_record import Proof, Transfer
from bricolage.search.placement.evolve import EvolutionOptions, evolve
from bricolage.search.placement.exact import solve
from bricolage.work.cost import CostModel
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement import Candidate, PlacementResult
from bricolage.work.placement_prediction import Predictor
from bricolage.work.transfer import NoTransferCosts, TransferCosts

_CONTENDERS = 4
_NOTICEABLE = 0.05
"""Share of the work that a backend must do best to take part in mixing, if it is slow on the whole model."""

Timed = tuple[Placement, float]
"""A placement and its time end to end in ms."""


class PlacementProblem:
    """The work graph of one variant, its priced candidates, and transfers between contenders."""

    def __init__(self, variant: TimedVariant, deadline: Deadline, backends: Collection[str] | None = None) -> None:
        """`backends`: who takes part; by default the most promising."""
        self._variant, self._session = variant, variant.session
        self._shares = self._session.budget.shares
        self.graph = to_work(variant.graph)
        names = self._contenders(price_candidates(variant)) if backends is None else backends
        self.candidates = [*price_candidates(variant, names), *wholes(variant, names)]
        self.transfer_table: tuple[Transfer, ...] = ()
        """What was measured of transfers, for the plan."""
        self.transfers = self._measured_transfers(deadline)
        self.predictor = Predictor(self.graph, self._costs(deadline), self._session.setting, self.transfers)

    def _contenders(self, candidates: list[Candidate]) -> list[str]:
        """Backends that could be part of a winning mix, the most promising `_CONTENDERS`: near the best as a whole, or best
        on a noticeable share of the work. Transfers are measured for every pair of them, so they are few."""
        times: dict[str, float] = {}
        for implementation, ms in self._variant.times.items():
            times[implementation.backend] = min(ms, times.get(implementation.backend, ms))
        fastest = min(times.values(), default=0.0)
        best: dict[int, Candidate] = {}
        for candidate in candidates:
            incumbent = best.get(candidate.region)
            if incumbent is None or candidate.cost_ms < incumbent.cost_ms:
                best[candidate.region] = candidate
        total = sum(candidate.cost_ms for candidate in best.values()) or 1.0
        merit: dict[str, float] = {}
        for name in (backend.name for backend in self._session.backends):
            share = sum(c.cost_ms for c in best.values() if c.implementation.backend == name) / total
            near = fastest / times[name] if name in times and times[name] <= NEAR * fastest else 0.0
            if near or share > _NOTICEABLE:
                merit[name] = near + share
        names = sorted(merit, key=lambda name: -merit[name])[:_CONTENDERS]
        return names if self._session.options.effort == "full" else self._useful(names, candidates)

    def _useful(self, names: Sequence[str], candidates: Sequence[Candidate]) -> list[str]:
        """Of some backends those that have a part in the optimum where handing over is free, and the one that is fastest alone: the
        fewer pairs of them there are, the less is measured."""
        fastest = self._variant.fastest
        offered = [candidate for candidate in candidates if candidate.implementation.backend in names]
        try:
            free = solve(self.graph, offered, NoTransferCosts(), self._shares.bound_s)
        except (NoCover, NoPlacement):
            return list(names)
        used = {choice.implementation.backend for choice in free.choices}
        used |= {fastest[0].backend} if fastest is not None else set()
        return [name for name in names if name in used]

    def _measured_transfers(self, deadline: Deadline) -> TransferCosts:
        pairs = _pairs(self._variant, self.candidates)
        self._session.progress.start("transfer costs", len(pairs))
        measurer = TransferMeasurer(self._session.measurer, self._session.options.threads, self._session.device)
        costs = measurer.costs(pairs, deadline)
        self._session.progress.finish()
        self.transfer_table = tuple(
            Transfer(producer, consumer, size, ms)
            for (producer, consumer), points in costs.table.items()
            for size, ms in points
        )
        return costs

    def _costs(self, deadline: Deadline) -> CostModel:
        """Of regions of the graph."""
        engines = sorted({candidate.implementation for candidate in self.candidates})
        threads, device = self._session.options.threads, self._session.device
        fixed = dispatch_overheads(self._session.measurer, engines, threads, device, should_stop=deadline)
        return region_costs(self.candidates, fixed)

    def solve(self, seconds: float | None = None) -> PlacementResult:
        """The exact op-level optimum, or after `seconds`, by default those of the effort, the best that was found.

        Raises:
            NoPlacement: nothing runs an operator.
            NoCover: no choice of candidates fits together.
        """
        limit = self._shares.placement_s if seconds is None else seconds
        return solve(self.graph, self.candidates, self.transfers, limit)

    def proof(self, found: PlacementResult) -> Proof:
        """What is known of an optimum, for the plan."""
        measured = sum(1 for candidate in self.candidates if candidate.key)
        total = sum(candidate.cost_ms for candidate in self.candidates)
        measured_ms = sum(candidate.cost_ms for candidate in self.candidates if candidate.key)
        return Proof(
            method=found.statistics.method,
            optimal=found.proven_optimal,
            total_ms=found.total_ms,
            lower_bound_ms=found.lower_bound_ms,
            measured=measured,
            predicted=len(self.candidates) - measured,
            measured_share=measured_ms / total if total > 0 else 1.0,
            seconds=found.statistics.seconds,
        )

    def refine(self, optimum: PlacementResult, deadline: Deadline) -> list[Timed]:
        """Placements around an optimum, measured end to end."""
        effort, options = self._session.profile, self._session.options
        self._session.progress.start("plans end to end", None)
        result = evolve(
            self.graph,
            optimum.choices,
            allowed=self.allowed,
            measure=lambda placements: self._variant.measure_placements(placements, deadline),
            predict=self.predictor.placement,
            options=EvolutionOptions(
                population=effort.population,
                offspring=effort.population,
                generations=effort.generations,
                seed=options.seed,
            ),
            should_stop=deadline,
        )
        self._session.progress.finish()
        return [(trial.placement, trial.measured_ms) for trial in result.measured if trial.measured_ms is not None]

    def allowed(self, region: int) -> list[Implementation]:
        """Engines that may run a region of the graph."""
        claimed = self._variant.candidates.claimed
        engines = dict.fromkeys(c.implementation for c in self.candidates if c.merges)
        return [engine for engine in engines if claimed.get(engine.backend, 0) & region == region]


def look_up_transfers(variant: TimedVariant, candidates: Sequence[Candidate]) -> TransferCosts:
    """Transfers between those who run candidates, as far as they are known; nothing is measured."""
    session = variant.session
    measurer = TransferMeasurer(session.measurer, session.options.threads, session.device)
    return measurer.costs(_pairs(variant, candidates), lambda: True)


def _pairs(variant: TimedVariant, candidates: Sequence[Candidate]) -> list[Pair]:
    """Of endpoints that run candidates."""
    order = [backend.name for backend in variant.session.backends]
    endpoints = {candidate.implementation.endpoint for candidate in candidates}
    return list(adjacent_pairs(sorted(endpoints, key=lambda end: (order.index(end.backend), end.device))))
