"""The stage that tunes kernels: of the best baselines, and of the plans that will race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.driver.describe import placement_name
from bricolage.driver.joint_tuning import arms, search_arms
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.plan.program_step import Step
from bricolage.tune.kernel_tuner import KernelTuner
from bricolage.work.implementation import Implementation, Placement

Tune = Callable[[Step, str, str, Deadline], Implementation]
"""The implementation of a step with better kernels, given its region's key, its backend's version and a deadline."""


class KernelTuning(Stage[DecisionState]):
    """Searches for better kernels where backends can, and keeps what is faster end to end. What an earlier search found for
    the whole graph, or for the same work in another one, takes part at every effort."""

    name: ClassVar[str] = "kernel tuning"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "tuned", "challengers", "mixtures"})

    def __init__(self, *, searching: bool = True) -> None:
        """`searching`: for what is not known; else what is known takes part."""
        self._searching = searching

    @staticmethod
    def known(state: DecisionState) -> bool:
        """Whether anything was tuned on this machine for a backend that does well."""
        session = state.session
        near = {implementation.backend for implementation in _near(state)}
        return any(
            session.measurer.database.has_trials(
                backend.name, registry.version(backend.name), session.device.fingerprint(), session.options.threads
            )
            for backend in session.backends
            if backend.tunable and backend.name in near
        )

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Tunes baselines first: most plans that win are one implementation of the whole graph."""
        if not any(backend.tunable for backend in state.session.backends):
            return
        session = state.session
        tuner = KernelTuner(session.measurer, session.device, session.options.threads)
        tune = _searching(tuner, state) if self._searching else _knowing(tuner, state)
        original = state.original
        session.progress.start("tuned kernels")
        if self._searching:
            tuned = self._search(state, tuner, deadline)
        else:
            tuned = [
                self._apply_known_tuning(tune, original, implementation, deadline) for implementation in _near(state)
            ]
        better = [implementation for implementation in dict.fromkeys(tuned) if implementation not in original.whole]
        if better and not deadline():
            original.measure_whole(better, deadline)
        for challenger in list(state.challengers):
            variant = state.timed_variants[challenger.variant]
            placement = _tune_placement(tune, variant, challenger.placement, deadline.at_most(deadline.left / 2))
            session.progress.advance()
            if placement == challenger.placement or deadline():
                continue
            before, after = variant.measure_placements([challenger.placement, placement], deadline)
            if before is not None and after is not None and after < before:
                name = placement_name(placement, challenger.variant)
                state.mixtures[name] = after
                state.challenge(Challenger(name, placement, None, challenger.variant))
        session.progress.finish()

    @staticmethod
    def _search(state: DecisionState, tuner: KernelTuner, deadline: Deadline) -> list[Implementation]:
        """Baselines as a search of most of the time makes them, the best expected first."""
        if deadline():
            return []
        shares = state.budget.shares.tuning
        part = deadline.at_most(deadline.left * (shares.baselines if state.challengers else 1.0))
        near = arms([state.original], tuner, part)
        turned = search_arms(near, tuner, part, "joint", lambda *_: state.session.progress.advance()) if near else []
        for arm in turned:
            state.tuned[arm.tuned.implementation] = arm.tuned
        return [arm.tuned.implementation for arm in turned if arm.result is not None and not arm.result.reason]

    @staticmethod
    def _apply_known_tuning(
        tune: Tune, variant: TimedVariant, one: Implementation, deadline: Deadline
    ) -> Implementation:
        (placed,) = _tune_placement(tune, variant, variant.placement_of(one), deadline)
        return placed.implementation


def _near(state: DecisionState) -> list[Implementation]:
    """Baselines that could become the fastest."""
    times = state.original.times
    least = min(times.values(), default=0.0)
    reach = {backend.name: backend.gains_by_tuning * least for backend in state.session.backends if backend.tunable}
    return [
        implementation
        for ms, implementation in sorted((ms, implementation) for implementation, ms in times.items())
        if ms <= reach.get(implementation.backend, 0.0)
    ]


def _searching(tuner: KernelTuner, state: DecisionState) -> Tune:
    """By search, where nothing is known."""

    def tune(step: Step, key: str, version: str, deadline: Deadline) -> Implementation:
        tuned = tuner.tune(step, key, version, deadline)
        state.tuned[tuned.implementation] = tuned
        return tuned.implementation

    return tune


def _knowing(tuner: KernelTuner, state: DecisionState) -> Tune:
    """By what is known."""

    def tune(step: Step, key: str, version: str, deadline: Deadline) -> Implementation:
        tuned = tuner.known(step, key, version)
        if tuned is None:
            return tuner.transferred(step, key, version, deadline)
        state.tuned[tuned.implementation] = tuned
        return tuned.implementation

    return tune


def _tune_placement(tune: Tune, variant: TimedVariant, placement: Placement, deadline: Deadline) -> Placement:
    """The placement with tuned configurations, where its backends can be tuned and the time reaches."""
    assignments = []
    for assignment in placement:
        implementation = assignment.implementation
        if variant.session.backend(implementation.backend).tunable and not implementation.config.parameters:
            region = Region(variant.graph, assignment.region)
            key = variant.region_key(region)
            step = Step(implementation, variant.session.store.region(region, key))
            version = registry.version(implementation.backend)
            assignment = replace(assignment, implementation=tune(step, key, version, deadline))
        assignments.append(assignment)
    return tuple(assignments)
