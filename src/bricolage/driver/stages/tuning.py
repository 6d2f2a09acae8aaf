"""The stage that tunes kernels: of the best baselines, and of the plans that will race."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from bricolage.backends import registry
from bricolage.deadline import Deadline
from bricolage.driver.profile import Profile
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, State
from bricolage.driver.variants import placement_name
from bricolage.graph.region import Region
from bricolage.plan.step import Step
from bricolage.tune.kernels import KernelTuner
from bricolage.work.implementation import Placement

_WORTH_TUNING = 1.1
"""Implementations within this factor of the best on the whole graph are worth a search for better kernels."""


class KernelTuning(Stage[State]):
    """Searches for better kernels where backends can, and keeps what is faster end to end."""

    name: ClassVar[str] = "kernel tuning"

    def share(self, state: State) -> float:
        """Its part of the budget, at efforts that tune."""
        profile = state.session.options.profile
        return profile.tunes * profile.shares.kernel_tuning * state.budget_s

    def limit(self, state: State) -> float:
        """None but what is kept for others, at efforts that tune."""
        return float("inf") if state.session.options.profile.tunes else 0.0

    def run(self, state: State, deadline: Deadline) -> None:
        """Tunes baselines first: most plans that win are one implementation of the whole graph."""
        if not state.session.options.profile.tunes or not any(one.tunable for one in state.session.backends):
            return
        session = state.session
        tuner = KernelTuner(session.measurer, session.device, session.options.threads)
        original = state.original
        limit = _WORTH_TUNING * min(original.times.values(), default=0.0)
        near = sorted((ms, one) for one, ms in original.times.items() if ms <= limit)
        session.progress.start("tuned kernels", len(near) + len(state.challengers))
        for _, one in near:
            placement = _tuned(tuner, original, original.placement_of(one), deadline)
            if placement[0].implementation != one and not deadline():
                original.measure_whole([placement[0].implementation], deadline)
        for challenger in list(state.challengers):
            profile = state.profiles[challenger.variant]
            placement = _tuned(tuner, profile, challenger.placement, deadline)
            if placement == challenger.placement or deadline():
                continue
            before, after = profile.measure_placements([challenger.placement, placement], deadline)
            if before is not None and after is not None and after < before:
                name = placement_name(placement, challenger.variant)
                state.challenge(Challenger(name, placement, None, challenger.variant))
        session.progress.finish()


def _tuned(tuner: KernelTuner, profile: Profile, placement: Placement, deadline: Deadline) -> Placement:
    """The placement with tuned configurations, where its backends can be tuned and the time reaches."""
    found = []
    for one in placement:
        implementation = one.implementation
        if profile.session.backend(implementation.backend).tunable and not implementation.config.parameters:
            region = Region(profile.graph, one.region)
            key = profile.region_key(region)
            step = Step(implementation, profile.session.store.region(region, key))
            version = registry.version(implementation.backend)
            one = replace(one, implementation=tuner.tune(step, key, version, deadline))
        found.append(one)
    return tuple(found)
