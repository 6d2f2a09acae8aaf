"""Stages that place regions: the op-level optimum, refined end to end, and placements in two precisions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

from bricolage.deadline import Deadline
from bricolage.driver.mixed_precision import proposals
from bricolage.driver.profile import NEAR, Profile
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, PlacementSearch, State
from bricolage.driver.variants import placed, placement_name
from bricolage.graph.region import Region
from bricolage.graph.to_work import to_work
from bricolage.measure.entry_costs import fixed_costs
from bricolage.measure.transfers import TransferMeasurer, adjacent_pairs
from bricolage.perf.merge_gain import EngineModel, fit
from bricolage.perf.prediction import Predictor, merged_samples
from bricolage.perf.transfer import MeasuredTransferCosts
from bricolage.plan.plan import Proof, Transfer
from bricolage.search.evolve import EvolutionOptions, evolve
from bricolage.search.exact import solve
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement import Candidate, PlacementResult

_CHALLENGERS = 2
_CONTENDERS = 4
_NOTICEABLE = 0.05
"""Share of the work that a backend must do best to take part in mixing, if it is slow on the whole model."""
_SEARCH_SECONDS = 10.0
_AT_A_TIME = 2
"""Placements in two precisions that are compiled before they are timed."""

Timed = tuple[Placement, float]
"""A placement and its time end to end in ms."""


class Placing(Stage[State]):
    """Placements of the variants that could win."""

    name: ClassVar[str] = "placement"

    def share(self, state: State) -> float:
        """Its part of the budget where there is something to place."""
        return state.mixing * state.session.options.profile.shares.placement * state.budget_s

    def limit(self, state: State) -> float:
        """None but what is kept for others."""
        return float("inf") if state.mixing else 0.0

    def run(self, state: State, deadline: Deadline) -> None:
        """Searches one variant after the other; of each, mixed precisions first, since they are few and promising."""
        if not state.mixing:
            return
        for profile in placed(state):
            if not profile.graph.static or len(profile.graph) < 2:
                continue
            variant = profile.variant.name
            two = mixed_precisions(profile, deadline)
            state.challenge(*(Challenger(placement_name(p, variant), p, None, variant) for p, _ in _best(two)))
            if not deadline():
                self._search(state, profile, two, deadline)

    @staticmethod
    def _search(state: State, profile: Profile, timed: list[Timed], deadline: Deadline) -> None:
        """The exact op-level optimum, refined end to end; beside it, what is `timed` already."""
        problem, variant = _Problem(profile, deadline), profile.variant.name
        optimum = problem.solve()
        found = PlacementSearch(
            problem.predictor, problem.transfer_table(), problem.proof(optimum), tuple(ms for _, ms in timed)
        )
        state.searches[variant] = found  # before refining, which may be interrupted
        timed = [*timed, *problem.refine(optimum, deadline)]
        state.searches[variant] = replace(found, measured_ms=tuple(ms for _, ms in timed))
        for placement, _ in _best(timed):
            predicted = problem.predictor.placement(placement)
            known = predicted if math.isfinite(predicted) else None  # of what was timed end to end it need not be
            state.challenge(Challenger(placement_name(placement, variant), placement, known, variant))


class _Problem:
    """The placement problem of one variant: its work graph, priced candidates, and transfers between contenders."""

    def __init__(self, profile: Profile, deadline: Deadline) -> None:
        self._profile, self._session = profile, profile.session
        self._graph = to_work(profile.graph)
        candidates = profile.priced()
        names = self._contenders(candidates)
        self._candidates = [one for one in candidates if one.implementation.backend in names]
        self._transfers = self._measured_transfers(deadline)
        model = self._engine_model(deadline)
        self.predictor = Predictor(self._graph, self._candidates, model, self._transfers)

    def _contenders(self, candidates: list[Candidate]) -> list[str]:
        """Backends that could be part of a winning mix, the most promising `_CONTENDERS`: near the best as a whole, or best
        on a noticeable share of the work. Transfers are measured for every pair of them, so they are few."""
        times: dict[str, float] = {}
        for one, ms in self._profile.times.items():
            times[one.backend] = min(ms, times.get(one.backend, ms))
        fastest = min(times.values(), default=0.0)
        best: dict[int, Candidate] = {}
        for candidate in candidates:
            known = best.get(candidate.region)
            if known is None or candidate.cost_ms < known.cost_ms:
                best[candidate.region] = candidate
        total = sum(candidate.cost_ms for candidate in best.values()) or 1.0
        merit: dict[str, float] = {}
        for name in (backend.name for backend in self._session.backends):
            share = sum(c.cost_ms for c in best.values() if c.implementation.backend == name) / total
            near = fastest / times[name] if name in times and times[name] <= NEAR * fastest else 0.0
            if near or share > _NOTICEABLE:
                merit[name] = near + share
        return sorted(merit, key=lambda name: -merit[name])[:_CONTENDERS]

    def _measured_transfers(self, deadline: Deadline) -> MeasuredTransferCosts:
        order = [backend.name for backend in self._session.backends]
        endpoints = {candidate.implementation.endpoint for candidate in self._candidates}
        pairs = adjacent_pairs(sorted(endpoints, key=lambda end: (order.index(end.backend), end.device)))
        self._session.progress.start("transfer costs", len(pairs))
        measurer = TransferMeasurer(self._session.measurer, self._session.options.threads, self._session.device)
        costs = measurer.costs(pairs, deadline)
        self._session.progress.finish()
        return costs

    def _engine_model(self, deadline: Deadline) -> EngineModel:
        engines = sorted({candidate.implementation for candidate in self._candidates})
        threads, device = self._session.options.threads, self._session.device
        fixed = fixed_costs(self._session.measurer, engines, threads, device, should_stop=deadline)
        return fit(fixed, merged_samples(self._candidates))

    def transfer_table(self) -> tuple[Transfer, ...]:
        """What was measured of transfers, for the plan."""
        return tuple(
            Transfer(producer, consumer, size, ms)
            for (producer, consumer), points in self._transfers.table.items()
            for size, ms in points
        )

    def solve(self) -> PlacementResult:
        """The exact op-level optimum."""
        return solve(self._graph, self._candidates, self._transfers, _SEARCH_SECONDS)

    def proof(self, found: PlacementResult) -> Proof:
        """What is known of an optimum, for the plan."""
        measured = sum(1 for candidate in self._candidates if candidate.key)
        return Proof(
            method=found.statistics.method,
            optimal=found.proven_optimal,
            total_ms=found.total_ms,
            lower_bound_ms=found.lower_bound_ms,
            measured=measured,
            predicted=len(self._candidates) - measured,
            seconds=found.statistics.seconds,
        )

    def refine(self, optimum: PlacementResult, deadline: Deadline) -> list[Timed]:
        """Placements around an optimum, measured end to end."""
        profile, options = self._session.options.profile, self._session.options
        self._session.progress.start("plans end to end", None)
        result = evolve(
            self._graph,
            optimum.choices,
            allowed=self._allowed,
            measure=lambda placements: self._profile.measure_placements(placements, deadline),
            predict=self.predictor.placement,
            options=EvolutionOptions(
                population=profile.population,
                offspring=profile.population,
                generations=profile.generations,
                seed=options.seed,
            ),
            should_stop=deadline,
        )
        self._session.progress.finish()
        return [(one.placement, one.measured_ms) for one in result.measured if one.measured_ms is not None]

    def _allowed(self, region: int) -> list[Implementation]:
        claimed = self._profile.candidates.claimed
        engines = dict.fromkeys(c.implementation for c in self._candidates if c.merges)
        return [one for one in engines if claimed.get(one.backend, 0) & region == region]


def _best(timed: list[Timed]) -> list[Timed]:
    """The fastest placements that are mixtures."""
    return sorted((one for one in timed if len(one[0]) > 1), key=lambda one: one[1])[:_CHALLENGERS]


def mixed_precisions(profile: Profile, deadline: Deadline) -> list[Timed]:
    """Placements in two precisions, with their times end to end."""
    segments = profile.candidates.segments
    keys = [profile.region_key(Region(profile.graph, bits)) for bits in segments]
    waiting = proposals(segments, keys, profile.whole, profile.regions, profile.oracle.bound)
    if not waiting:
        return []
    profile.session.progress.start("two precisions end to end", len(waiting))
    timed: list[Timed] = []
    while waiting and not deadline():  # few at a time: compiling all of them could take all the time there is
        now, waiting = waiting[:_AT_A_TIME], waiting[_AT_A_TIME:]
        placements = [proposal.placement for proposal in now]
        times = profile.measure_placements(placements, deadline)
        timed += [(one, ms) for one, ms in zip(placements, times, strict=True) if ms is not None]
        best = min((ms for _, ms in timed), default=math.inf)
        waiting = [proposal for proposal in waiting if proposal.predicted_ms < best]
    profile.session.progress.finish()
    return timed
