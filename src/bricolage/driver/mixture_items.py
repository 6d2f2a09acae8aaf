"""Items of an agenda that divide the graph among several implementations: two precisions, regions, placements."""

from __future__ import annotations

from bricolage.deadline import Deadline
from bricolage.driver.agenda import Item, Promise
from bricolage.driver.expected import predicted_saving
from bricolage.driver.pricing import priced, wholes
from bricolage.driver.profile import Profile
from bricolage.driver.regions import measure_regions
from bricolage.driver.stages.placing import (
    Placing,
    measure_precisions,
    place_by_structure,
    place_precisions,
    precision_proposals,
)
from bricolage.driver.state import DecisionState
from bricolage.driver.tries import by_tries
from bricolage.driver.variants import placed
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.to_work import to_work
from bricolage.search.exact import solve
from bricolage.work.implementation import Implementation
from bricolage.work.transfer import NoTransferCosts

_TWO_PRECISIONS = 2
"""As many times as long as a whole graph takes it to measure the segments in two precisions, and then
the first mixtures of them."""

_BY_STRUCTURE = 20
"""As many times as long as a whole graph takes it to look for precisions by structure."""


def _mixable(state: DecisionState) -> list[Profile]:
    """Variants that can be divided among several implementations."""
    if not state.mixing:
        return []
    return [one for one in placed(state) if one.graph.static and len(one.graph) > 1]


class RegionsItem(Item):
    """Costs of regions, the most promising first: what placements and searches rest on."""

    name = "regions"
    again = True  # variants may be found later

    def __init__(self) -> None:
        """No placement is predicted."""
        self._predicted: dict[str, float | None] = {}

    def promise(self, state: DecisionState) -> Promise | None:
        """The most that a mixture could gain by what is known without regions."""
        waiting = [one for one in _mixable(state) if one.variant.name not in state.divided]
        incumbent = state.incumbent_ms
        if not waiting or incumbent is None:
            return None
        seconds = state.session.options.profile.shares.regions * state.budget_s
        tries = by_tries("mixtures", state, seconds)
        found = [tries]
        lower = [cost.ms for cost in state.original.dropped.values() if cost.ms is not None]
        if lower and min(lower) < incumbent:
            because = "in a lower precision, which is too inaccurate for the whole, all of it takes that long"
            found.append(Promise(1.0 - min(lower) / incumbent, seconds, because))
        for profile in waiting:
            if tries.gain <= 0.0:  # where predicted mixtures never gained, one more prediction says nothing
                break
            variant = profile.variant.name
            if variant not in self._predicted:  # it takes an exact search
                self._predicted[variant] = predicted_saving(profile)
            share = self._predicted[variant]
            if share is not None:
                because = "the model of costs predicts a mixture that is faster by that"
                found.append(Promise(share, seconds, because))
        return max(found, key=lambda one: one.gain)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Measures as many as its share of the time allows; what is known already costs nothing."""
        part = deadline.at_most(state.session.options.profile.shares.regions * state.budget_s)
        for profile in _mixable(state):
            if profile.variant.name not in state.divided and not part():
                state.divided.add(profile.variant.name)
                measure_regions(profile, part)


class TwoPrecisionsItem(Item):
    """A lower precision, which is too inaccurate for the whole, in as many segments of the graph as its error allows: first the
    segments in both precisions, then what they promise, end to end."""

    name = "two precisions"
    again = True  # its placements, and those of others that may be found to be too inaccurate

    def __init__(self) -> None:
        """Nothing is tried."""
        self._segments: set[Implementation] = set()
        """Lower precisions whose segments are measured, ..."""
        self._tried: set[Implementation] = set()
        """... and those whose placements are."""

    def promise(self, state: DecisionState) -> Promise | None:
        """By the time that the lower precision takes for all of it; then by the segments' times."""
        low, incumbent = self._next(state), state.incumbent_ms
        if low is None or incumbent is None:
            return None
        seconds, ms = _TWO_PRECISIONS * state.whole_s, state.original.dropped[low].ms or 0.0
        because = f"all of it takes that much less on {low}, which is too inaccurate for the whole"
        if low in self._segments:
            predicted = [one.predicted_ms for one in precision_proposals(state.original, low)]
            ms = min(predicted, default=incumbent)
            because = f"the segments whose errors allow {low} take that much less"
        return Promise(1.0 - ms / incumbent, seconds, because)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Goes on with the most promising."""
        low = self._next(state)
        assert low is not None
        if low in self._segments:
            self._tried.add(low)
            place_precisions(state, state.original, low, deadline)
        else:
            self._segments.add(low)
            measure_precisions(state.original, low, deadline)

    def _next(self, state: DecisionState) -> Implementation | None:
        """The one whose segments are measured, else the fastest that is too inaccurate for the original."""
        if not state.mixing or not state.original.graph.static:
            return None
        dropped = {one: cost.ms for one, cost in state.original.dropped.items() if cost.ms is not None}
        waiting = [one for one in dropped if one not in self._tried]
        return min(waiting, key=lambda one: (one not in self._segments, dropped[one]), default=None)


class PrecisionsByStructure(Item):
    """Lower precisions, several at once, in the parts of the graph that pass: breadth-first over the structure. It rests on no
    prediction of errors, and takes many trials end to end: at full effort only, after the segments' errors have had their turn."""

    name = "precisions by structure"

    def promise(self, state: DecisionState) -> Promise | None:
        """By the time that the fastest lower precision takes for all of it."""
        incumbent, lows = state.incumbent_ms, self._lows(state)
        if state.session.options.effort != "full" or incumbent is None or not lows or not state.original.times:
            return None
        ms = state.original.dropped[lows[0]].ms or incumbent
        because = f"all of it takes that much less on {lows[0]}, which is too inaccurate for the whole"
        return Promise(1.0 - ms / incumbent, _BY_STRUCTURE * state.whole_s, because)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches, as long as it was expected to take at most."""
        place_by_structure(state, state.original, self._lows(state), deadline.at_most(_BY_STRUCTURE * state.whole_s))

    @staticmethod
    def _lows(state: DecisionState) -> list[Implementation]:
        """Those that are too inaccurate for the whole and faster than the incumbent, the fastest first."""
        if not state.mixing or not state.original.graph.static:
            return []
        incumbent = state.incumbent_ms or 0.0
        dropped = {one: cost.ms for one, cost in state.original.dropped.items() if cost.ms is not None}
        return sorted((one for one, ms in dropped.items() if ms < incumbent), key=dropped.__getitem__)


class Placements(Item):
    """Mixtures of implementations, two precisions first: the exact optimum of what was measured of regions, refined end to end."""

    name = "placements"
    again = True  # variants may be found later

    def __init__(self) -> None:
        """No variant is placed yet."""
        self._placed: set[str] = set()
        self._bounds: dict[tuple[str, int], float | None] = {}

    def promise(self, state: DecisionState) -> Promise | None:
        """By measured costs, transfers being free."""
        incumbent, found = state.incumbent_ms, list[Promise]()
        seconds = state.session.options.profile.shares.placement * state.budget_s
        for profile in self._waiting(state):
            key = profile.variant.name, len(profile.regions)
            if key not in self._bounds:
                self._bounds[key] = _cheapest_ms(profile)
            bound = self._bounds[key]
            if bound is not None and incumbent is not None:
                because = "regions where each was fastest, handed over for nothing, take that much less"
                found.append(Promise(1.0 - bound / incumbent, seconds, because))
        return max(found, key=lambda one: one.gain, default=None)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches one variant after the other."""
        waiting = self._waiting(state)
        self._placed |= {profile.variant.name for profile in waiting}
        Placing(waiting).run(state, deadline)

    def _waiting(self, state: DecisionState) -> list[Profile]:
        divided = state.divided - self._placed
        return [one for one in _mixable(state) if one.regions and one.variant.name in divided]


def _cheapest_ms(profile: Profile) -> float | None:
    """What no placement of measured costs is faster than, in ms; None where they do not cover the graph. Operators of which nothing
    was measured cost what they are predicted to."""
    try:
        seconds = profile.session.options.profile.shares.bound_s
        found = solve(to_work(profile.graph), [*priced(profile), *wholes(profile)], NoTransferCosts(), seconds)
    except (NoCover, NoPlacement):
        return None
    return found.lower_bound_ms
