"""Costs of regions that were never measured, from the costs of their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bricolage.costs.models.fusion_gain import FusionGain, Merged, fit_fusion_gain
from bricolage.work import bits
from bricolage.work.cost import CostModel, Estimate, Setting, Work
from bricolage.work.implementation import Implementation
from bricolage.work.placement import Candidate


class RegionCosts:
    """Costs of a graph's candidates, and those of other regions by engines' fixed costs and merge gains."""

    def __init__(self, candidates: Sequence[Candidate], model: FusionGain) -> None:
        self._model = model
        self._exact: dict[tuple[int, Implementation], Estimate] = {}
        self._singles: dict[Implementation, dict[int, float]] = defaultdict(dict)
        for candidate in candidates:
            key = (candidate.region, candidate.implementation)
            if key not in self._exact or candidate.cost_ms < self._exact[key].ms:
                self._exact[key] = Estimate.of(candidate.cost_ms, "measured" if candidate.key else "composed")
            if candidate.region.bit_count() == 1:
                singles = self._singles[candidate.implementation]
                number = bits.lowest(candidate.region)
                singles[number] = min(candidate.cost_ms, singles.get(number, candidate.cost_ms))
        self._parts: dict[Implementation, list[tuple[int, float]]] = defaultdict(list)
        for (region, implementation), exact in self._exact.items():
            if region.bit_count() > 1:
                self._parts[implementation].append((region, exact.ms))
        for parts in self._parts.values():
            parts.sort(key=lambda part: (-part[0].bit_count(), part[0]))

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of regions of the graph on implementations, where the candidates were measured: as measured, or from the largest measured
        parts that tile it greedily, merged. None when a part is unknown."""
        del on
        return [
            None if (implementation := work.implementation) is None else self._region(work.region, implementation)
            for work in works
        ]

    def _region(self, region: int, implementation: Implementation) -> Estimate | None:
        exact = self._exact.get((region, implementation))
        if exact is not None:
            return exact
        left, costs = region, []
        for part, ms in self._parts[implementation]:
            if part & left == part:
                left &= ~part
                costs.append(ms)
        singles = self._singles[implementation]
        for number in bits.members(left):
            if number not in singles:
                return None
            costs.append(singles[number])
        return Estimate.of(self._model.predict(implementation, costs), "composed") if costs else None


def region_costs(candidates: Sequence[Candidate], fixed: Mapping[Implementation, float]) -> CostModel:
    """Costs of a graph's regions by those of its candidates. `fixed`: what implementations take to be entered, ms
    (`measure.dispatch_overhead`)."""
    return RegionCosts(candidates, fit_fusion_gain(fixed, merged_samples(candidates)))


def merged_samples(candidates: Iterable[Candidate]) -> list[Merged]:
    """Measured regions of several operators with the measured costs of each operator alone: what the engine model
    learns its merge gain from."""
    singles: dict[Implementation, dict[int, float]] = defaultdict(dict)
    larger: list[Candidate] = []
    for candidate in candidates:
        if not candidate.key:
            continue  # predicted, not measured
        if candidate.region.bit_count() == 1:
            singles[candidate.implementation][bits.lowest(candidate.region)] = candidate.cost_ms
        else:
            larger.append(candidate)
    samples: list[Merged] = []
    for candidate in larger:
        single_costs = singles[candidate.implementation]
        numbers = list(bits.members(candidate.region))
        if all(number in single_costs for number in numbers):
            parts = tuple(single_costs[number] for number in numbers)
            samples.append(Merged(candidate.implementation, parts, candidate.cost_ms))
    return samples
