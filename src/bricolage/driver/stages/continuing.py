"""The stage that takes over what a provisional decision has found."""

from __future__ import annotations

from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.driver.provisional import Continuation
from bricolage.driver.quantised_variants import QUANTISED_VARIANTS
from bricolage.driver.stage import Stage
from bricolage.driver.stages.graph_variants import write_variant
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.whole_models import measure_near
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.runtime.programs import placement_of
from bricolage.work.implementation import Implementation


class EarlierDecision(Stage[DecisionState]):
    """Whole models that were measured for the decision before and are known, and the plan that it ships: it races again. A
    quantised graph is made again by its own item, which the user asked for."""

    name: ClassVar[str] = "earlier decision"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"challengers", "mixtures", "timed_variants", "tuned"})

    def __init__(self, earlier: Continuation) -> None:
        """`earlier`: what is gone on with."""
        self._before, self._variant = earlier.before, earlier.variant

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Takes over what is known, which takes no time, and measures the plan where that is not known."""
        implementations = self._known(state)
        if implementations:
            state.original.measure_whole(implementations, deadline)
        state.tuned.update({kernels.implementation: kernels for kernels in self._before.program.tuned})
        self._enter_plan(state, deadline)

    def _known(self, state: DecisionState) -> list[Implementation]:
        """Implementations of the whole original that need no measuring."""
        variant = state.original
        asked = [contestant.implementation for contestant in self._before.race.contestants]
        wholes = [whole for whole in dict.fromkeys(asked) if whole is not None and whole not in variant.whole]
        data = variant.oracle.data(variant.graph.everything)
        specs = [(variant.whole_spec(whole), data) for whole in wholes]
        costs = state.session.measurer.cached(specs, variant.oracle.accepted)
        return [whole for whole, cost in zip(wholes, costs, strict=True) if cost is not None]

    def _enter_plan(self, state: DecisionState, deadline: Deadline) -> None:
        before, variant, chosen = self._before, self._variant, self._before.race.chosen
        shipped = next((contestant for contestant in before.race.contestants if contestant.name == chosen), None)
        if variant.name in QUANTISED_VARIANTS or shipped is None or shipped.implementation is not None:
            return  # its item makes it again, or it is an implementation of the original
        timed_variant = state.original
        if variant.name != ORIGINAL:
            timed_variant = write_variant(state, variant)
            measure_near(timed_variant, state.original.times, deadline)
        placement, starts = placement_of(before), [region.start_ms for region in before.program.regions]
        schedule, predicted_ms = before.program.schedule, before.record.predicted_ms
        if len(placement) > 1 and schedule is None:
            (ms,) = timed_variant.measure_placements([placement], deadline)
            state.mixtures |= {chosen: ms} if ms is not None else {}
        known_starts = tuple(start for start in starts if start is not None)
        known_starts = known_starts if schedule is not None and len(known_starts) == len(starts) else ()
        state.challenge(Challenger(chosen, placement, predicted_ms, variant.name, schedule, known_starts))
