"""Items of an agenda that divide the graph among several implementations: precisions, regions, placements."""

from __future__ import annotations

from dataclasses import replace

from bricolage.base.deadline import Deadline
from bricolage.costs.models.roofline import floor_ms
from bricolage.driver.agenda import Item, Promise
from bricolage.driver.expected import PlacementLook, look_at_placements
from bricolage.driver.pricing import price_candidates, wholes
from bricolage.driver.promising_variants import select_divided_variants
from bricolage.driver.region_costs import is_measured, measure_regions
from bricolage.driver.stages.placing import Placing, place_precisions
from bricolage.driver.state import DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.driver.tries import UNKNOWN_GAIN, by_tries, pool_chances
from bricolage.driver.whole_models import looser_precisions, measure_dropped
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.search.placement.exact import solve
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import Implementation
from bricolage.work.transfer import NoTransferCosts

_TRIALS, _TRIALS_FULL = 8, 20
"""As many times as long as a whole graph takes it to look for parts that bear lower precisions, and at full effort."""


def _mixable(state: DecisionState) -> list[TimedVariant]:
    """Variants that can be divided among several implementations."""
    if not state.mixing:
        return []
    return [variant for variant in select_divided_variants(state) if variant.graph.static and len(variant.graph) > 1]


class LookAtPlacements(Item):
    """What a mixture could save by known and predicted costs of regions. It measures nothing, and says whether to measure
    regions."""

    name = "look at placements"
    informs = True
    again = True  # variants may be found later

    def promise(self, state: DecisionState) -> Promise | None:
        """Nothing is known before; it is over soon."""
        waiting = self._waiting(state)
        if not waiting or state.incumbent_ms is None or state.session.costs is None:
            return None
        seconds = state.budget.shares.bound_s * len(waiting)
        return Promise(UNKNOWN_GAIN, seconds, "it says whether costs of regions are worth measuring")

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Looks at one variant after the other."""
        for variant in self._waiting(state):
            state.looks[variant.name] = None if deadline() else look_at_placements(variant, deadline)

    @staticmethod
    def _waiting(state: DecisionState) -> list[TimedVariant]:
        return [variant for variant in _mixable(state) if variant.name not in {*state.looks, *state.divided}]


class RegionsItem(Item):
    """Costs of regions, the most promising first: what placements and searches rest on."""

    name = "regions"
    again = True  # variants may be found later

    def promise(self, state: DecisionState) -> Promise | None:
        """The most promising of what is known without regions: how often mixtures gained together with what a look at placements
        says, and what a lower precision takes for the whole."""
        waiting = [variant for variant in _mixable(state) if variant.name not in state.divided]
        incumbent = state.incumbent_ms
        if not waiting or incumbent is None:
            return None
        seconds = state.budget.part_s("regions")
        looks = [state.looks.get(variant.name) for variant in waiting]
        promises = [_by_look(look, state, seconds) for look in looks]
        lower = [cost.ms for cost in state.original.dropped.values() if cost.ms is not None]
        if lower and min(lower) < incumbent:
            because = "in a lower precision, which is too inaccurate for the whole, all of it takes that much less"
            promises.append(Promise(1.0 - min(lower) / incumbent, seconds, because))
        risk = state.budget.accepted_risk(seconds)
        best = max(promises, key=lambda promise: (promise.reason_to_leave_out(risk) is None, promise.expected_gain))
        return replace(best, because="; ".join(dict.fromkeys(promise.because for promise in promises)))

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Measures as many as its share of the time allows; what is known already costs nothing."""
        part = deadline.at_most(state.budget.part_s("regions"))
        for variant in _mixable(state):
            if variant.name not in state.divided and not part():
                state.divided.add(variant.name)
                measure_regions(variant, part)


class PrecisionsItem(Item):
    """Lower precisions, several at once, in the parts of the graph that bear them, which are found by trials end to end."""

    name = "lower precisions in parts"
    again = True  # others may be found to be too inaccurate

    def __init__(self) -> None:
        """Nothing is tried."""
        self._tried: set[Implementation] = set()

    def promise(self, state: DecisionState) -> Promise | None:
        """By the time that the fastest lower precision takes for all of it."""
        incumbent, seconds = state.incumbent_ms, self._seconds(state)
        if incumbent is None or not state.original.times or not state.mixing or not state.original.graph.static:
            return None
        if untried := self._list_untried(state):
            work, setting = workload(state.original.graph.everything), state.session.attainable
            ms = min(floor_ms(work, setting, implementation.config) for implementation in untried)
            because = f"by the roofline, since {untried[0]} is not offered for the whole"
            bound = 1.0 - ms / incumbent
            return Promise(min(bound, UNKNOWN_GAIN), seconds, because, bound=bound)
        waiting = [
            (ms, implementation)
            for implementation, ms in self._lows(state).items()
            if implementation not in self._tried
        ]
        if not waiting:
            return None
        ms, low = min(waiting, key=lambda pair: pair[0])
        because = f"all of it takes that much less on {low}, which is too inaccurate for the whole"
        return Promise(1.0 - ms / incumbent, seconds, because, bound=1.0 - ms / incumbent)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches, as long as it was expected to take at most."""
        part = deadline.at_most(self._seconds(state))
        if untried := self._list_untried(state):
            state.original.measure_whole(untried, part)
            measure_dropped(state.original, part)
        if lows := self._lows(state):
            self._tried |= lows.keys()
            place_precisions(state, state.original, list(lows), part)

    @staticmethod
    def _seconds(state: DecisionState) -> float:
        return (_TRIALS_FULL if state.session.options.effort == "full" else _TRIALS) * state.whole_s

    @staticmethod
    def _list_untried(state: DecisionState) -> list[Implementation]:
        """Precisions for lower accuracy words, which no decision takes for the whole: at full effort."""
        if state.session.options.effort != "full":
            return []
        return [low for low in looser_precisions(state.original) if low not in state.original.whole]

    @staticmethod
    def _lows(state: DecisionState) -> dict[Implementation, float]:
        """Those that are too inaccurate for the whole and faster than the incumbent, with their times in ms, the fastest first."""
        incumbent = state.incumbent_ms or 0.0
        dropped = {
            implementation: cost.ms for implementation, cost in state.original.dropped.items() if cost.ms is not None
        }
        return {
            implementation: dropped[implementation]
            for implementation in sorted(dropped, key=dropped.__getitem__)
            if dropped[implementation] < incumbent
        }


class Placements(Item):
    """Mixtures of implementations: the exact optimum of what was measured of regions, refined end to end."""

    name = "placements"
    way = "mixtures"
    again = True  # variants may be found later

    def __init__(self) -> None:
        """No variant is placed yet."""
        self._placed: set[str] = set()
        self._cheapest: dict[tuple[str, int], float | None] = {}
        self._looks: dict[tuple[str, int], PlacementLook | None] = {}

    def promise(self, state: DecisionState) -> Promise | None:
        """By costs of regions, transfers being free: they bound it where all of them were measured."""
        incumbent, promises = state.incumbent_ms, list[Promise]()
        for variant in self._waiting(state):
            key = variant.name, len(variant.regions)
            if key not in self._cheapest:
                self._cheapest[key] = _cheapest_ms(variant)
            cheapest = self._cheapest[key]
            if cheapest is not None and incumbent is not None:
                promises.append(self._promise(state, variant, 1.0 - cheapest / incumbent))
        return max(promises, key=lambda promise: promise.expected_gain, default=None)

    def _promise(self, state: DecisionState, variant: TimedVariant, saved: float) -> Promise:
        """Of one variant, of which regions save a share where each was fastest."""
        seconds = state.budget.part_s("placement")
        because = f"regions where each was fastest, handed over for nothing, save {max(saved, 0.0):.1%}"
        if is_measured(variant):
            return Promise(saved, seconds, because, bound=saved)
        if saved > LEAST_GAIN:
            return Promise(saved, seconds, because)
        # Predicted costs bound nothing: another look, with what was measured since, says what may be missing.
        key = variant.name, len(variant.regions)
        if key not in self._looks:
            self._looks[key] = look_at_placements(variant, Deadline(state.budget.shares.bound_s))
        look_promise = _by_look(self._looks[key], state, seconds)
        return replace(look_promise, because=f"{because}, as far as they were measured; {look_promise.because}")

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches one variant after the other."""
        waiting = self._waiting(state)
        self._placed |= {variant.name for variant in waiting}
        Placing(waiting).run(state, deadline)

    def _waiting(self, state: DecisionState) -> list[TimedVariant]:
        divided = state.divided - self._placed
        return [variant for variant in _mixable(state) if variant.regions and variant.name in divided]


def _by_look(look: PlacementLook | None, state: DecisionState, seconds: float) -> Promise:
    """What a mixture promises by how often mixtures gained elsewhere, together with what a look at this network says, if any."""
    track_record = by_tries(Placements.way, state, seconds)
    if look is None:
        return track_record
    chance = pool_chances(track_record.chance, look.chance)
    return Promise(max(look.saving, LEAST_GAIN), seconds, f"{track_record.because}; {look}", chance)


def _cheapest_ms(variant: TimedVariant) -> float | None:
    """What no placement of measured costs is faster than, in ms; None where they do not cover the graph. Operators of which nothing
    was measured cost what they are predicted to."""
    try:
        budget = variant.session.budget
        solution = solve(
            to_work(variant.graph),
            [*price_candidates(variant), *wholes(variant)],
            NoTransferCosts(),
            budget.shares.bound_s,
        )
    except (NoCover, NoPlacement):
        return None
    return solution.lower_bound_ms
