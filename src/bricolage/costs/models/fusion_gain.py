"""Fixed and marginal costs of engines, from which the gain of merging regions is predicted.

An engine takes a fixed time to enter and a marginal time for the work. The cost of a region is a + b with a the cost of
the smallest region there is. When regions with marginal costs b_1 ... b_n are merged, the engine is entered once and
fuses across what were boundaries: the prediction is a + g · (b_1 + ... + b_n), with a merge gain g fitted to merged
regions that were measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.work.implementation import Implementation

_PRIOR = 1.0
"""Weight of the assumption that merging gains nothing but the entries: that of one measured region."""
_GAIN_RANGE = (0.05, 1.5)


@dataclass(frozen=True)
class Merged:
    """A merged region that was measured, and what its parts cost alone; milliseconds."""

    implementation: Implementation
    parts: tuple[float, ...]
    measured: float


@dataclass(frozen=True)
class FusionGain:
    """Predicts merged regions. Engines that were never measured are taken to have no fixed cost and no merge gain."""

    fixed: Mapping[Implementation, float] = field(default_factory=dict)
    """Cost of the minimal region, ms."""
    gain: Mapping[Implementation, float] = field(default_factory=dict)
    """g: factor on the sum of marginal costs; below 1 where merging lets the engine fuse."""

    def entry(self, implementation: Implementation) -> float:
        """The fixed cost a. A configuration that was not measured has its backend's lowest on that device."""
        exact = self.fixed.get(implementation)
        if exact is not None:
            return exact
        endpoint = implementation.endpoint
        return min((ms for other, ms in self.fixed.items() if other.endpoint == endpoint), default=0.0)

    def predict(self, implementation: Implementation, costs: Sequence[float]) -> float:
        """Cost in ms of regions merged into one, from what each costs alone. A single region costs what it costs.

        Raises:
            ValueError: there are no regions.
        """
        if not costs:
            raise ValueError("a merged region has at least one part")
        if len(costs) == 1:
            return costs[0]
        entry = min(self.entry(implementation), min(costs))
        total = sum(max(0.0, cost - entry) for cost in costs)
        return entry + self.gain.get(implementation, 1.0) * total


def fit_fusion_gain(fixed: Mapping[Implementation, float], merged: Iterable[Merged]) -> FusionGain:
    """The model from fixed costs and measured merged regions.

    For each engine g minimises the squared relative errors of the predictions, Σ ((a + g·s - m) / m)² + (g - 1)², where
    s is the sum of marginal costs of a merged region and m its measured cost (ridge regression towards no gain).
    """
    bare = FusionGain(dict(fixed))
    numerators: dict[Implementation, float] = {}
    denominators: dict[Implementation, float] = {}
    for sample in merged:
        if len(sample.parts) < 2 or sample.measured <= 0:
            continue
        engine = sample.implementation
        entry = min(bare.entry(engine), min(sample.parts))
        weight = sum(max(0.0, part - entry) for part in sample.parts) / sample.measured
        numerators[engine] = numerators.get(engine, _PRIOR) + weight * (sample.measured - entry) / sample.measured
        denominators[engine] = denominators.get(engine, _PRIOR) + weight * weight
    low, high = _GAIN_RANGE
    gain = {engine: min(max(numerators[engine] / denominators[engine], low), high) for engine in numerators}
    return FusionGain(bare.fixed, gain)
