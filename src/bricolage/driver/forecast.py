"""Forecasts: what a learnt model of costs expects of the regions of one graph, so that those are measured first that may gain most
and those never that are surely slow; or, at the effort that measures no regions, so that there is something to decide by."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from bricolage.driver.candidates import CandidateGroup, Candidates
from bricolage.graph.graph import Graph, Region
from bricolage.graph.work import workload
from bricolage.perf.learned.features import Setting
from bricolage.perf.learned.model import LearnedCosts, LearnedPrediction, by_roofline
from bricolage.work.implementation import Implementation

_LEARNT = 0.5
"""Power of the factor by which whole graphs take longer than predicted that is taken to hold for their regions, too."""
_QUANTILE = NormalDist().inv_cdf(0.95)
"""Standard deviations from the middle to either end of an interval that holds nine in ten."""
Pair = tuple[str, Implementation]
"""A region, by its key, on an implementation."""


@dataclass(frozen=True)
class Forecast:
    """Expected costs of one graph's regions, and of the whole graph, on each implementation that offers to run them."""

    regions: Mapping[Pair, LearnedPrediction]
    whole: Mapping[Implementation, LearnedPrediction]
    unknown: frozenset[Implementation] = frozenset()
    """Implementations that the model has not seen: the roofline stands for them, and nothing is left out by it."""

    def corrected(self, measured: Mapping[Implementation, float]) -> Forecast:
        """With what is `measured` of the whole graph, in ms: a network that an implementation runs slower than it was expected
        to tends to have slower regions there. Intervals stay as wide."""
        factors = {
            one: (measured[one] / found.ms) ** _LEARNT
            for one, found in self.whole.items()
            if one in measured and one not in self.unknown and found.ms > 0
        }
        scaled = {pair: _times(found, factors.get(pair[1], 1.0)) for pair, found in self.regions.items()}
        return replace(self, regions=scaled)

    def worth_measuring(
        self,
        group: CandidateGroup,
        standing: Implementation,
        right: Collection[Implementation],
        measured: Mapping[Pair, float | None],
    ) -> tuple[Implementation, ...]:
        """Implementations of a group that may be its fastest, and `standing`, which runs the whole graph fastest: all but those
        whose interval begins above the end of another's. Only those that are `right` on the whole graph rule others out, since the
        fastest may prove too inaccurate. `measured`: what is known of regions already, in ms, None where they failed."""
        limits = [math.inf]
        for one in group.implementations:
            pair = group.key, one
            ms = measured.get(pair)
            if ms is not None:
                limits.append(ms)
            elif pair not in measured and one in right and one not in self.unknown and pair in self.regions:
                limits.append(self.regions[pair].high_ms)
        limit = min(limits)
        return tuple(
            one
            for one in group.implementations
            if one == standing
            or one in self.unknown
            or (group.key, one) in measured
            or (found := self.regions.get((group.key, one))) is None
            or found.low_ms <= limit
        )

    def gain_ms(self, group: CandidateGroup, standing: Implementation, right: Collection[Implementation]) -> float:
        """What measuring a group may gain over `standing`, which runs the whole graph fastest: the expected improvement (Jones et
        al., 1998) by whichever other implementation promises most, for as many regions as there are of it. All of a region's cost
        counts where `standing` does not run it. Only those that are `right` on the whole graph promise anything; where none is
        known to be, all do."""
        own = self.regions.get((group.key, standing))
        others = [
            found
            for one in group.implementations
            if one != standing
            and (not right or one in right)
            and (found := self.regions.get((group.key, one))) is not None
        ]
        if own is None:
            return len(group.regions) * min((found.ms for found in others), default=0.0)
        return len(group.regions) * max((_improvement(own, found) for found in others), default=0.0)


def forecast(graph: Graph, candidates: Candidates, costs: LearnedCosts | None, setting: Setting) -> Forecast:
    """What is expected of the candidates of a graph on a device; by the roofline alone where there is no model."""
    offered = dict.fromkeys([*candidates.whole, *(one for group in candidates.groups for one in group.implementations)])
    names = {one: _name(one) for one in offered}
    known = frozenset(costs.implementations) if costs is not None else frozenset[str]()
    unknown = frozenset(one for one, name in names.items() if name not in known)
    rows: list[tuple[str, Region, Sequence[Implementation]]] = [("", graph.everything, candidates.whole)]
    rows += [(group.key, Region(graph, group.regions[0]), group.implementations) for group in candidates.groups]
    works = [workload(region) for _, region, _ in rows]
    asked = [one for one in offered if one not in unknown]
    by_model = costs.predict(works, setting, [names[one] for one in asked]) if costs is not None else [[]] * len(rows)
    regions: dict[Pair, LearnedPrediction] = {}
    whole: dict[Implementation, LearnedPrediction] = {}
    for number, ((key, _, own), work, found) in enumerate(zip(rows, works, by_model, strict=True)):
        told = dict(zip(asked, found, strict=False))
        for one in own:
            prediction = told.get(one) or by_roofline(work, setting)
            if number:
                regions[key, one] = prediction
            else:
                whole[one] = prediction
    return Forecast(regions, whole, unknown)


def _name(one: Implementation) -> str:
    """As models know it: parameters are left out."""
    return f"{one.backend} {one.config.name}"


def _times(found: LearnedPrediction, factor: float) -> LearnedPrediction:
    return LearnedPrediction(found.ms * factor, found.low_ms * factor, found.high_ms * factor)


def _improvement(own: LearnedPrediction, other: LearnedPrediction) -> float:
    """Expected value of max(0, own - other) in ms, where own is as predicted and the logarithm of own / other is normal."""
    if not (own.ms > 0 and other.ms > 0):
        return 0.0
    spread = math.hypot(_deviation(own), _deviation(other))
    lead = math.log(own.ms / other.ms)
    if spread <= 0:
        return max(0.0, own.ms - other.ms)
    normal = NormalDist()
    kept = math.exp(spread**2 / 2 - lead) * normal.cdf((lead - spread**2) / spread)
    return own.ms * max(0.0, normal.cdf(lead / spread) - kept)


def _deviation(found: LearnedPrediction) -> float:
    """Standard deviation of the logarithm."""
    return math.log(found.high_ms / found.ms) / _QUANTILE
