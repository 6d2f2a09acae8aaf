"""What was measured of the regions of one graph in one setting, as a model of costs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bricolage.costs.entries import Cost
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.implementation import Implementation


@dataclass(frozen=True)
class Measurement:
    """A region, by its canonical identity, on an implementation: its latency, or why there is none."""

    region: str
    implementation: Implementation
    cost: Cost


class Measurements:
    """Of several regions; the last one of each region on each implementation."""

    def __init__(self, found: Iterable[Measurement] = ()) -> None:
        self._costs: dict[str, dict[Implementation, Cost]] = {}
        self.add(found)

    def add(self, found: Iterable[Measurement]) -> None:
        """More of them."""
        for measurement in found:
            self._costs.setdefault(measurement.region, {})[measurement.implementation] = measurement.cost

    def of(self, region: str) -> Mapping[Implementation, Cost]:
        """What is known of one region."""
        return self._costs.get(region, {})

    def fastest_ms(self, region: str, among: Collection[Implementation]) -> float | None:
        """The shortest time on some implementations; None where none of them has one."""
        times = (cost.ms for implementation, cost in self.of(region).items() if implementation in among)
        return min((ms for ms in times if ms is not None), default=None)

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """By the keys of the work; None for what failed, too."""
        del on
        costs = (
            None if (implementation := work.implementation) is None else self.of(work.key).get(implementation)
            for work in works
        )
        return [
            None
            if cost is None or (latency := cost.latency) is None
            else Estimate(latency.median_ms, latency.low_ms, latency.high_ms, "measured")
            for cost in costs
        ]

    def __iter__(self) -> Iterator[Measurement]:
        for region, costs in self._costs.items():
            for implementation, cost in costs.items():
                yield Measurement(region, implementation, cost)

    def __len__(self) -> int:
        return sum(map(len, self._costs.values()))
