"""Stages that place regions: the op-level optimum, refined end to end, and placements in two precisions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from bricolage.deadline import Deadline
from bricolage.driver.mixed_precision import PrecisionProposal, proposals
from bricolage.driver.precision_search import PrecisionSearchResult, breadth_first
from bricolage.driver.problem import PlacementProblem, Timed
from bricolage.driver.profile import Profile
from bricolage.driver.regions import measure_segments
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, DecisionState, PlacementSearch
from bricolage.driver.variants import placed, placement_name
from bricolage.graph.graph import Region
from bricolage.graph.work import operator_work
from bricolage.work.implementation import Implementation

_CHALLENGERS = 2
_AT_A_TIME = 2
"""Placements in two precisions that are compiled before they are timed."""


class Placing(Stage[DecisionState]):
    """Placements of the variants that could win."""

    name: ClassVar[str] = "placement"
    reads: ClassVar[frozenset[str]] = frozenset({"profiles"})
    adds: ClassVar[frozenset[str]] = frozenset({"challengers", "searches", "mixtures_ms"})

    def __init__(self, profiles: Sequence[Profile] | None = None) -> None:
        """`profiles`: of the variants; by default of all that could win."""
        self._profiles = profiles

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches one variant after the other; of each, mixed precisions first, since they are few and promising."""
        if not state.mixing:
            return
        for profile in placed(state) if self._profiles is None else self._profiles:
            if not profile.graph.static or len(profile.graph) < 2:
                continue
            two = mixed_precisions(profile, deadline)
            _enter(state, profile, two)
            if not deadline():
                self._search(state, profile, two, deadline)

    @staticmethod
    def _search(state: DecisionState, profile: Profile, timed: list[Timed], deadline: Deadline) -> None:
        """The exact op-level optimum, refined end to end, together with what is `timed` already."""
        problem, variant = PlacementProblem(profile, deadline), profile.variant.name
        optimum = problem.solve()
        found = PlacementSearch(
            problem.predictor, problem.transfer_table, problem.proof(optimum), tuple(ms for _, ms in timed)
        )
        state.searches[variant] = found  # before refining, which may be interrupted
        refined = problem.refine(optimum, deadline) if len(optimum.choices) > 1 else []
        state.mixtures_ms += [ms for _, ms in refined]
        timed = [*timed, *refined]
        state.searches[variant] = replace(found, measured_ms=tuple(ms for _, ms in timed))
        for placement, _ in _best(timed):
            predicted = problem.predictor.placement(placement)
            known = predicted if math.isfinite(predicted) else None  # of what was timed end to end it need not be
            state.challenge(Challenger(placement_name(placement, variant), placement, known, variant))


def measure_precisions(profile: Profile, low: Implementation, deadline: Deadline) -> None:
    """Times what placements consist of that run some segments of the graph in a lower precision, which is too inaccurate for the
    whole, and the others in full: the segments in both, and nothing else."""
    measure_segments(profile, [low, *full_precisions(profile.times, low)], deadline)


def place_precisions(state: DecisionState, profile: Profile, low: Implementation, deadline: Deadline) -> None:
    """Times these placements end to end, the most promising first, and enters the fastest for the race."""
    _enter(state, profile, mixed_precisions(profile, deadline, low))


def full_precisions(times: Mapping[Implementation, float], low: Implementation) -> list[Implementation]:
    """Who runs what stays in full precision: the fastest, and the fastest of the backend that runs the rest."""
    own = {one: ms for one, ms in times.items() if one.backend == low.backend}
    return list(dict.fromkeys(min(some, key=some.__getitem__) for some in (times, own) if some))


def place_by_structure(
    state: DecisionState, profile: Profile, lows: Sequence[Implementation], deadline: Deadline
) -> PrecisionSearchResult:
    """Looks breadth-first over the graph's parts for those that may run in lower precisions, end to end; the fastest race."""
    assert profile.fastest is not None
    full, _ = profile.fastest
    profile.session.progress.start("precisions by structure", None)
    part = deadline

    def turn(left: int) -> Deadline:
        nonlocal part
        part = deadline.at_most(deadline.left / left)
        return part

    errors = {one: cost.error if cost.error is not None else math.inf for one, cost in profile.whole.items()}
    found = breadth_first(
        profile.candidates.segments,
        {one.number: operator_work(one).operators[0].flops for one in profile.graph.operators},
        full,
        sorted(lows, key=lambda one: errors.get(one, math.inf)),
        lambda placements: profile.measure_placements(placements, part),
        turn,
        wrong=[profile.placement_of(low) for low in lows if low in profile.dropped],
    )
    profile.session.progress.finish()
    _enter(state, profile, found.passed)
    return found


def _enter(state: DecisionState, profile: Profile, timed: Sequence[Timed]) -> None:
    """What was measured end to end counts, and the fastest mixtures race."""
    variant = profile.variant.name
    state.mixtures_ms += [ms for _, ms in timed]
    state.challenge(*(Challenger(placement_name(p, variant), p, None, variant) for p, _ in _best(timed)))


def _best(timed: Sequence[Timed]) -> list[Timed]:
    """The fastest placements that are mixtures."""
    return sorted((one for one in timed if len(one[0]) > 1), key=lambda one: one[1])[:_CHALLENGERS]


def precision_proposals(profile: Profile, low: Implementation | None = None) -> list[PrecisionProposal]:
    """Placements in two precisions by what is known of the segments; with `low`, those alone whose lower one that is."""
    segments = profile.candidates.segments
    keys = [profile.region_key(Region(profile.graph, bits)) for bits in segments]
    whole = {one: cost for one, cost in profile.whole.items() if low in (None, one) or cost.outcome != "wrong"}
    return proposals(segments, keys, whole, profile.regions, profile.oracle.bound)


def mixed_precisions(profile: Profile, deadline: Deadline, low: Implementation | None = None) -> list[Timed]:
    """These placements with their times end to end."""
    waiting = precision_proposals(profile, low)
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
