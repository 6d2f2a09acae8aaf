"""Predicting placements that were never measured, from the costs of their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bricolage.perf.merge_gain import EngineModel, Merged
from bricolage.work import bits as bitset
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.graph import WorkGraph
from bricolage.work.implementation import Endpoint, Implementation, Placement
from bricolage.work.placement import Candidate
from bricolage.work.timeline import Timeline, timeline
from bricolage.work.transfer import TransferCosts


class Predictor:
    """Additive costs, engines' fixed costs and merge gains, and transfers, put together."""

    def __init__(
        self, graph: WorkGraph, candidates: Sequence[Candidate], model: EngineModel, transfers: TransferCosts
    ) -> None:
        self._graph = graph
        self._model = model
        self._transfers = transfers
        self._exact: dict[tuple[int, Implementation], Estimate] = {}
        self._singles: dict[Implementation, dict[int, float]] = defaultdict(dict)
        for candidate in candidates:
            key = (candidate.region, candidate.implementation)
            if key not in self._exact or candidate.cost_ms < self._exact[key].ms:
                self._exact[key] = Estimate.of(candidate.cost_ms, "measured" if candidate.key else "composed")
            if candidate.region.bit_count() == 1:
                known = self._singles[candidate.implementation]
                number = bitset.lowest(candidate.region)
                known[number] = min(candidate.cost_ms, known.get(number, candidate.cost_ms))
        self._parts: dict[Implementation, list[tuple[int, float]]] = defaultdict(list)
        for (region, implementation), found in self._exact.items():
            if region.bit_count() > 1:
                self._parts[implementation].append((region, found.ms))
        for parts in self._parts.values():
            parts.sort(key=lambda part: (-part[0].bit_count(), part[0]))

    @property
    def implementations(self) -> tuple[Implementation, ...]:
        """Those of which costs are known."""
        return tuple(dict.fromkeys(implementation for _, implementation in self._exact))

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of regions of the graph on implementations, where the candidates were measured: as measured, or from the largest measured
        parts that tile it greedily, merged. None when a part is unknown."""
        del on
        return [None if (one := work.implementation) is None else self._region(work.region, one) for work in works]

    def _region(self, region: int, implementation: Implementation) -> Estimate | None:
        known = self._exact.get((region, implementation))
        if known is not None:
            return known
        left, costs = region, []
        for part, ms in self._parts[implementation]:
            if part & left == part:
                left &= ~part
                costs.append(ms)
        singles = self._singles[implementation]
        for number in bitset.members(left):
            if number not in singles:
                return None
            costs.append(singles[number])
        return Estimate.of(self._model.predict(implementation, costs), "composed") if costs else None

    def transfer(self, region: int, consumer: Endpoint, owner: dict[int, Endpoint]) -> float:
        """Predicted time in ms to take over what other regions computed; `owner` maps operators to endpoints."""
        total = 0.0
        for index in self._graph.inputs_of(region):
            tensor = self._graph.tensors[index]
            if tensor.producer >= 0:
                total += self._transfers(owner[tensor.producer], consumer, tensor.bytes).ms
        return total

    def placement(self, placement: Placement) -> float:
        """Predicted time in ms of a whole placement, from start to end; infinite when a part is unknown."""
        timeline = self.timeline(placement)
        return float("inf") if timeline is None else timeline.makespan_ms

    def timeline(self, placement: Placement) -> Timeline | None:
        """When each region of a placement is predicted to run; None when a part is unknown."""
        costs = {one: self._region(one.region, one.implementation) for one in placement}
        known = {one: found.ms for one, found in costs.items() if found is not None}
        if len(known) < len(costs):
            return None
        return timeline(self._graph, placement, known.__getitem__, self._transfers)


def owners(placement: Placement) -> dict[int, Endpoint]:
    """The endpoint that runs each operator, by its number."""
    return {number: one.implementation.endpoint for one in placement for number in bitset.members(one.region)}


def merged_samples(candidates: Iterable[Candidate]) -> list[Merged]:
    """Measured regions of several operators with the measured costs of each operator alone: what the engine model
    learns its merge gain from."""
    singles: dict[Implementation, dict[int, float]] = defaultdict(dict)
    larger: list[Candidate] = []
    for candidate in candidates:
        if not candidate.key:
            continue  # predicted, not measured
        if candidate.region.bit_count() == 1:
            singles[candidate.implementation][bitset.lowest(candidate.region)] = candidate.cost_ms
        else:
            larger.append(candidate)
    samples: list[Merged] = []
    for candidate in larger:
        known = singles[candidate.implementation]
        numbers = list(bitset.members(candidate.region))
        if all(number in known for number in numbers):
            parts = tuple(known[number] for number in numbers)
            samples.append(Merged(candidate.implementation, parts, candidate.cost_ms))
    return samples
