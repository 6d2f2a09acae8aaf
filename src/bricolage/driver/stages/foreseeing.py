"""Stages that decide what races by predicted costs, where the effort measures nothing before the race."""

from __future__ import annotations

import logging
import math
from typing import ClassVar

from bricolage.deadline import Deadline
from bricolage.driver.problem import PlacementProblem
from bricolage.driver.profile import Profile
from bricolage.driver.stage import Stage
from bricolage.driver.stages.profiling import check_baselines
from bricolage.driver.state import Challenger, PlacementSearch, State
from bricolage.driver.variants import placement_name
from bricolage.errors import NoCover, NoPlacement
from bricolage.plan.plan import ORIGINAL, other_tool
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)
_RACING = 3
"""Implementations of the whole original that race."""
_SEARCH_SECONDS = 1.0
_GAIN = 0.95
"""A predicted placement races where its parts come to less than this share of the best whole: predictions of parts are off,
and the search picks those that are off to its liking."""


class Shortlist(Stage[State]):
    """The implementations of the whole original that are predicted to be fastest, the best other tool among them, and the fastest
    on each rewritten variant. Those that compile slowly take no part unless there are no others.

    Where only one implementation is left, it is measured: nothing else would compare it with float64.

    Raises (when run):
        NoPlacement, NoBackend: nothing can run all of it.
        NotAccurate: nothing that can is accurate enough.
    """

    name: ClassVar[str] = "predictions"
    essential: ClassVar[bool] = True

    def run(self, state: State, deadline: Deadline) -> None:
        """Predicts and chooses."""
        original = state.original
        expected = expected_ms(original)
        ranked = sorted(expected, key=expected.__getitem__)
        unknown = [one for one in ranked if one in original.forecast.unknown]
        if unknown:
            _LOG.warning(
                "%s: no model of costs knows %s here; the roofline stands for it",
                original.variant.name,
                ", ".join(map(str, unknown)),
            )
        if len(ranked) < 2:
            original.measure_whole(ranked, lambda: False)
            if not original.times:
                original.measure_baselines(deadline)
            check_baselines(original)
            return
        others = [one for one in ranked if other_tool(one)][:1]
        ours = not any(other_tool(one) for one in ranked[:_RACING])
        state.shortlist = tuple([*ranked[: _RACING - 1], *others] if others and ours else ranked[:_RACING])
        for profile in state.profiles.values():
            variant = profile.variant.name
            best, ms = min(expected_ms(profile).items(), key=lambda one: one[1], default=(ranked[0], math.inf))
            if variant != ORIGINAL and ms < expected[ranked[0]]:
                placement = profile.placement_of(best)
                state.challenge(Challenger(placement_name(placement, variant), placement, ms, variant))


def expected_ms(profile: Profile) -> dict[Implementation, float]:
    """What implementations of the whole graph are expected to take, in ms: as measured where that is on record, as predicted
    elsewhere. Those that compile slowly or are known to fail are absent; those that the model has not seen come after all others,
    the first configuration of every backend before second ones."""
    session = profile.session
    slow = {backend.name for backend in session.backends if backend.compiles_slowly}
    data, offered = profile.oracle.data(profile.graph.everything), list[str]()
    known: dict[Implementation, float] = {}
    unknown: dict[Implementation, float] = {}
    for one in profile.candidates.whole:
        if one.backend in slow:
            continue
        cost = session.measurer.known(profile.whole_spec(one), session.options.bound, data)
        if cost is not None and cost.ms is not None:
            known[one] = cost.ms
        elif cost is None and one in profile.forecast.unknown:
            offered.append(one.backend)
            unknown[one] = offered.count(one.backend) * profile.forecast.whole[one].ms
        elif cost is None:
            known[one] = profile.forecast.whole[one].ms
    last = max(known.values(), default=0.0)
    return known | {one: last + ms for one, ms in unknown.items()}


def foreseen(profile: Profile) -> float | None:
    """The share of time that the exact placement by predicted costs saves beside everything that runs the whole graph, where it is
    worth trying; None where it is not, or nothing is predicted."""
    if profile.session.costs is None or not profile.graph.static or len(profile.graph) < 2:
        return None
    kept = set(profile.left_out)
    profile.leave_out_regions()
    try:
        problem = PlacementProblem(profile, Deadline(0.0))
        optimum = problem.solve(_SEARCH_SECONDS)
    except (NoCover, NoPlacement):
        return None
    finally:
        profile.left_out = kept
    best_ms = min(expected_ms(profile).values(), default=math.inf)
    mixed = len(optimum.choices) > 1 and optimum.total_ms < _GAIN * best_ms < math.inf
    return 1.0 - optimum.total_ms / best_ms if mixed else None


class ForeseenPlacing(Stage[State]):
    """The exact placement by predicted costs of regions, and transfers as far as they are on record, where it promises
    to be faster than every implementation alone."""

    name: ClassVar[str] = "placement"

    def run(self, state: State, deadline: Deadline) -> None:
        """Searches the original."""
        profile, known = state.original, state.session.costs is not None
        if deadline() or not known or not state.mixing or not profile.graph.static or len(profile.graph) < 2:
            return
        profile.leave_out_regions()
        problem = PlacementProblem(profile, Deadline(0.0))  # with what is on record: nothing is measured
        try:
            optimum = problem.solve(_SEARCH_SECONDS)
        except (NoCover, NoPlacement) as error:
            _LOG.info("no placement is predicted: %s", error)
            return
        state.searches[ORIGINAL] = PlacementSearch(problem.predictor, problem.transfer_table(), problem.proof(optimum))
        placement = tuple(choice.assignment for choice in optimum.choices)
        best_ms = min(expected_ms(profile).values(), default=math.inf)
        if len(placement) > 1 and optimum.total_ms < _GAIN * best_ms:
            state.challenge(Challenger(placement_name(placement), placement, optimum.total_ms))
