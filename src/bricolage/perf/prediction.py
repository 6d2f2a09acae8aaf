"""Predicting placements that were never measured, from the costs of their parts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bricolage.perf.merge_gain import EngineModel, Merged
from bricolage.search.evolve import MergedPlacement
from bricolage.work import bits as bitset
from bricolage.work.graph import Candidate, WorkGraph
from bricolage.work.transfer import BoundaryCosts


class Predictor:
    """Additive costs, engines' fixed costs and merge gains, and boundaries, put together."""

    def __init__(
        self, graph: WorkGraph, candidates: Sequence[Candidate], model: EngineModel, boundary: BoundaryCosts
    ) -> None:
        self._graph = graph
        self._model = model
        self._boundary = boundary
        self._exact: dict[tuple[int, str, str], float] = {}
        self._singles: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        for candidate in candidates:
            key = (candidate.region, candidate.backend, candidate.variant)
            self._exact[key] = min(candidate.cost_ms, self._exact.get(key, candidate.cost_ms))
            if candidate.region.bit_count() == 1:
                number = bitset.lowest(candidate.region)
                engine = (candidate.backend, candidate.variant)
                self._singles[engine][number] = min(
                    candidate.cost_ms, self._singles[engine].get(number, candidate.cost_ms)
                )
        self._parts: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for (region, backend, variant), ms in self._exact.items():
            if region.bit_count() > 1:
                self._parts[backend, variant].append((region, ms))
        for parts in self._parts.values():
            parts.sort(key=lambda part: (-part[0].bit_count(), part[0]))

    @property
    def engines(self) -> tuple[tuple[str, str], ...]:
        """Backends and variants of which costs are known."""
        return tuple(dict.fromkeys((backend, variant) for _, backend, variant in self._exact))

    def region(self, region: int, backend: str, variant: str) -> float | None:
        """Predicted time in ms of one region: as measured, or from the largest measured parts that tile it greedily, merged.
        None when a part is unknown."""
        known = self._exact.get((region, backend, variant))
        if known is not None:
            return known
        left, costs = region, []
        for part, ms in self._parts[backend, variant]:
            if part & left == part:
                left &= ~part
                costs.append(ms)
        singles = self._singles[backend, variant]
        for number in bitset.members(left):
            if number not in singles:
                return None
            costs.append(singles[number])
        return self._model.predict(backend, variant, costs) if costs else None

    def handover(self, region: int, backend: str, owner: dict[int, str]) -> float:
        """Predicted time in ms to take over what other regions computed; `owner` maps operators to backends."""
        total = 0.0
        for index in self._graph.inputs_of(region):
            tensor = self._graph.tensors[index]
            if tensor.producer >= 0:
                total += self._boundary(owner[tensor.producer], backend, tensor.bytes)
        return total

    def merged(self, placement: MergedPlacement) -> float:
        """Predicted time in ms of a whole placement; infinite when a part is unknown."""
        owner = {number: backend for region, backend, _ in placement for number in bitset.members(region)}
        total = 0.0
        for region, backend, variant in placement:
            ms = self.region(region, backend, variant)
            if ms is None:
                return float("inf")
            total += ms + self.handover(region, backend, owner)
        return total

    @staticmethod
    def merged_samples(candidates: Iterable[Candidate]) -> list[Merged]:
        """Measured regions of several operators with the measured costs of each operator alone: what the engine model
        learns its merge gain from."""
        singles: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
        larger: list[Candidate] = []
        for candidate in candidates:
            if not candidate.key:
                continue  # predicted, not measured
            if candidate.region.bit_count() == 1:
                singles[candidate.backend, candidate.variant][bitset.lowest(candidate.region)] = candidate.cost_ms
            else:
                larger.append(candidate)
        samples: list[Merged] = []
        for candidate in larger:
            known = singles[candidate.backend, candidate.variant]
            numbers = list(bitset.members(candidate.region))
            if all(number in known for number in numbers):
                parts = tuple(known[number] for number in numbers)
                samples.append(Merged(candidate.backend, candidate.variant, parts, candidate.cost_ms))
        return samples
