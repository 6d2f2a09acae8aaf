"""The stage that tunes kernels: of the best baselines, and of the plans that will race."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
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
from bricolage.work.implementation import Implementation, Placement


class KernelTuning(Stage[State]):
    """Searches for better kernels where backends can, and keeps what is faster end to end. What an earlier search found for
    the whole graph takes part at every effort."""

    name: ClassVar[str] = "kernel tuning"

    def share(self, state: State) -> float:
        """Its part of the budget, at efforts that tune."""
        profile = state.session.options.profile
        return profile.tunes * profile.shares.kernel_tuning * state.budget_s

    def run(self, state: State, deadline: Deadline) -> None:
        """Tunes baselines first: most plans that win are one implementation of the whole graph."""
        if not any(one.tunable for one in state.session.backends):
            return
        session = state.session
        tuner = KernelTuner(session.measurer, session.device, session.options.threads)
        original = state.original
        if not session.options.profile.tunes:
            found = [one for one in map(partial(_known, tuner, original), original.times) if one is not None]
            if found and not deadline():
                original.measure_whole(found, deadline)
            return
        least = min(original.times.values(), default=0.0)
        reach = {one.name: one.gains_by_tuning * least for one in session.backends if one.tunable}
        near = sorted((ms, one) for one, ms in original.times.items() if ms <= reach.get(one.backend, 0.0))
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


def _known(tuner: KernelTuner, profile: Profile, one: Implementation) -> Implementation | None:
    """An implementation of the whole graph as an earlier search has tuned it."""
    if not profile.session.backend(one.backend).tunable or one.config.parameters:
        return None
    region = profile.graph.everything
    key = profile.region_key(region)
    step = Step(one, profile.session.store.region(region, key))
    config = tuner.known(step, key, registry.version(one.backend))
    return None if config in (None, one.config) else replace(one, config=config)


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
