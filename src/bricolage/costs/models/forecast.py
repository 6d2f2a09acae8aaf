"""Forecasts: what a learnt model of costs expects of the regions of one graph, so that those are measured first that may gain most
and those never that are surely slow; or, at the effort that measures no regions, so that there is something to decide by."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

from bricolage.costs.measurements import Measurements
from bricolage.costs.models.roofline import Roofline
from bricolage.work.cost import CostModel, Estimate, FirstKnown, Setting, Work
from bricolage.work.implementation import Implementation

_LEARNT = 0.5
"""Power of the factor by which whole graphs take longer than predicted that is taken to hold for their regions, too."""
Pair = tuple[str, Implementation]
"""A region, by its key, on an implementation."""


@dataclass(frozen=True)
class Forecast:
    """Expected costs of one graph's regions, and of the whole graph, on each implementation that offers to run them."""

    regions: Mapping[Pair, Estimate]
    whole: Mapping[Implementation, Estimate]

    @cached_property
    def unknown(self) -> frozenset[Implementation]:
        """Implementations that the model has not seen: they are priced by the roofline, and nothing is left out by it."""
        both = (
            *self.whole.items(),
            *((implementation, estimate) for (_, implementation), estimate in self.regions.items()),
        )
        return frozenset(implementation for implementation, estimate in both if estimate.source == "roofline")

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of the regions, where they were expected to run."""
        del on
        return [self.regions.get((work.key, work.implementation)) if work.implementation else None for work in works]

    def only(self, pairs: Collection[Pair]) -> Forecast:
        """Of some regions on some implementations."""
        return replace(self, regions={pair: self.regions[pair] for pair in pairs})

    def corrected(self, measured: Mapping[Implementation, float], power: float = _LEARNT) -> Forecast:
        """With what is `measured` of the whole graph, in ms: a network that an implementation runs slower than it was expected
        to tends to have slower regions there, by this `power` of the factor. Intervals stay as wide."""
        factors = {
            implementation: (measured[implementation] / estimate.ms) ** power
            for implementation, estimate in self.whole.items()
            if implementation in measured and implementation not in self.unknown and estimate.ms > 0
        }
        scaled = {pair: estimate.times(factors.get(pair[1], 1.0)) for pair, estimate in self.regions.items()}
        return replace(self, regions=scaled)

    def worth_measuring(
        self,
        region: str,
        implementations: Sequence[Implementation],
        standing: Implementation,
        right: Collection[Implementation],
        measured: Measurements,
    ) -> tuple[Implementation, ...]:
        """Implementations of a region that may be its fastest, and `standing`, which runs the whole graph fastest: all but those
        whose interval begins above the end of another's. Only those that are `right` on the whole graph rule others out, since the
        fastest may prove too inaccurate. `measured`: what is known of regions already."""
        limits, costs = [math.inf], measured.of(region)
        for implementation in implementations:
            ms = costs[implementation].ms if implementation in costs else None
            if ms is not None:
                limits.append(ms)
            elif (
                implementation not in costs
                and implementation in right
                and implementation not in self.unknown
                and (region, implementation) in self.regions
            ):
                limits.append(self.regions[region, implementation].high_ms)
        limit = min(limits)
        return tuple(
            implementation
            for implementation in implementations
            if implementation == standing
            or implementation in self.unknown
            or implementation in costs
            or (estimate := self.regions.get((region, implementation))) is None
            or estimate.low_ms <= limit
        )

    def gain_ms(
        self,
        region: str,
        implementations: Sequence[Implementation],
        standing: Implementation,
        right: Collection[Implementation],
    ) -> float:
        """What measuring a region may gain over `standing`, which runs the whole graph fastest: the expected improvement (Jones et
        al., 1998) by whichever other implementation promises most. All of the region's cost counts where
        `standing` does not run it. Only those that are `right` on the whole graph promise anything; where none is known to be, all
        do."""
        standing_estimate = self.regions.get((region, standing))
        others = [
            estimate
            for implementation in implementations
            if implementation != standing
            and (not right or implementation in right)
            and (estimate := self.regions.get((region, implementation))) is not None
        ]
        if standing_estimate is None:
            return min((other.ms for other in others), default=0.0)
        return max((_improvement(standing_estimate, other) for other in others), default=0.0)


def forecast(whole: Sequence[Work], regions: Sequence[Work], costs: CostModel | None, on: Setting) -> Forecast:
    """What is expected of a graph and its regions, each on an implementation; by the roofline where there is no model, or where it
    knows nothing. Regions have keys, and all say what they compute."""
    roofline = Roofline()
    model: CostModel = roofline if costs is None else FirstKnown((costs, roofline))
    works = (*whole, *regions)
    expected: dict[Pair, Estimate] = {}
    wholes: dict[Implementation, Estimate] = {}
    for number, (work, estimate) in enumerate(zip(works, model.estimate(works, on), strict=True)):
        assert estimate is not None and work.implementation is not None
        if number < len(whole):
            wholes[work.implementation] = estimate
        else:
            expected[work.key, work.implementation] = estimate
    return Forecast(expected, wholes)


def _improvement(own: Estimate, other: Estimate) -> float:
    """Expected value of max(0, own - other) in ms, where own is as predicted and the logarithm of own / other is normal."""
    if not (own.ms > 0 and other.ms > 0):
        return 0.0
    spread = math.hypot(own.deviation, other.deviation)
    lead = math.log(own.ms / other.ms)
    if spread <= 0:
        return max(0.0, own.ms - other.ms)
    normal = NormalDist()
    kept = math.exp(spread**2 / 2 - lead) * normal.cdf((lead - spread**2) / spread)
    return own.ms * max(0.0, normal.cdf(lead / spread) - kept)
