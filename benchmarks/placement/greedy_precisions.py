"""A baseline for the search for precisions: segments measured alone, and those with the most gain for their error chosen.

Each segment of the graph is timed and checked by itself in both precisions. Errors of segments are taken to be independent, so
their squares add up; a network that amplifies them shows that on the whole model, where the low precision's error is known. The
most promising choices are timed end to end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from bricolage.base.deadline import Deadline
from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurements
from bricolage.driver.placement_problem import Timed
from bricolage.driver.region_costs import measure_segments
from bricolage.driver.stages.placing import full_precisions
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.work.implementation import Assignment, Implementation, Placement

_MARGINS = (0.9, 0.6, 0.4)
"""Parts of the bound that a proposal may use up by prediction, from bold to cautious."""
_AT_A_TIME = 2
"""Placements that are compiled before they are timed."""


def greedy_precisions(variant: TimedVariant, lows: Sequence[Implementation], deadline: Deadline) -> list[Timed]:
    """Placements in `full` and one of `lows` each, with their times end to end in ms."""
    found: list[Timed] = []
    for low in lows:
        measure_segments(variant, [low, *full_precisions(variant.times, [low])], deadline)
        segments = variant.candidates.segments
        keys = [variant.region_key(Region(variant.graph, bits)) for bits in segments]
        whole = {one: cost for one, cost in variant.whole.items() if one == low or cost.outcome != "wrong"}
        waiting = proposals(segments, keys, whole, variant.regions, variant.oracle.bound)
        while waiting and not deadline():  # few at a time: compiling all of them could take all the time there is
            placements = [proposal.placement for proposal in waiting[:_AT_A_TIME]]
            times = variant.measure_placements(placements, deadline)
            found += [(one, ms) for one, ms in zip(placements, times, strict=True) if ms is not None]
            best = min((ms for _, ms in found), default=math.inf)
            waiting = [proposal for proposal in waiting[_AT_A_TIME:] if proposal.predicted_ms < best]
    return found


@dataclass(frozen=True)
class Segment:
    """A stretch of operators, its gain in milliseconds from low precision, and the relative error that this costs."""

    region: int
    gain_ms: float
    error: float


@dataclass(frozen=True)
class PrecisionProposal:
    """A placement in two precisions, and the time end to end that its segments' gains promise, in milliseconds."""

    placement: Placement
    predicted_ms: float


def proposals(
    segments: Sequence[int],
    keys: Sequence[str],
    baselines: Mapping[Implementation, Cost],
    costs: Measurements,
    bound: float,
) -> list[PrecisionProposal]:
    """Placements to try, the most promising first. `segments` cover the graph in executable order and `keys`
    are their identities; `baselines` and `costs` are the variant's."""
    found: dict[Placement, float] = {}
    best = min((cost.ms for cost in baselines.values() if cost.ms is not None), default=None)
    for low, whole in baselines.items():
        if whole.outcome != "wrong" or whole.error is None:
            continue
        for full, alone in baselines.items():
            if alone.ms is None or (full.backend != low.backend and alone.ms != best):
                continue
            useful = _useful(segments, keys, low, full, costs)
            total = sum(segment.error**2 for segment in useful) ** 0.5
            covered = sum(segment.region for segment in useful) == sum(segments)
            amplification = max(1.0, whole.error / total) if covered and total > 0 else 1.0
            for margin in _MARGINS:
                chosen = _choose(useful, margin * bound / amplification)
                if chosen:
                    gain = sum(segment.gain_ms for segment in useful if segment.region in chosen)
                    found.setdefault(_divide(segments, chosen, low, full), alone.ms - gain)
    return sorted((PrecisionProposal(placement, ms) for placement, ms in found.items()), key=lambda p: p.predicted_ms)


def _useful(
    segments: Sequence[int],
    keys: Sequence[str],
    low: Implementation,
    full: Implementation,
    costs: Measurements,
) -> list[Segment]:
    """Segments that low precision makes faster and that are accurate enough by themselves."""
    useful: list[Segment] = []
    for region, key in zip(segments, keys, strict=True):
        fast, safe = costs.of(key).get(low), costs.of(key).get(full)
        if fast is None or safe is None or safe.ms is None or fast.ms is None or fast.error is None:
            continue
        if safe.ms > fast.ms:
            useful.append(Segment(region, safe.ms - fast.ms, fast.error))
    return useful


def _choose(segments: Sequence[Segment], allowance: float) -> frozenset[int]:
    """Regions whose errors together (root of the sum of squares) stay within `allowance`: greedily those with the largest
    gain for their squared error, which is the best there is up to one segment (fractional knapsack)."""
    chosen: list[int] = []
    squares = 0.0
    for segment in sorted(segments, key=lambda s: (-s.gain_ms / max(s.error**2, 1e-30), s.region)):
        if squares + segment.error**2 <= allowance**2:
            squares += segment.error**2
            chosen.append(segment.region)
    return frozenset(chosen)


def _divide(segments: Sequence[int], chosen: frozenset[int], low: Implementation, full: Implementation) -> Placement:
    """Neighbours of equal precision become one region."""
    return tuple(
        Assignment(sum(regions), low if fast else full)
        for fast, regions in groupby(segments, key=lambda region: region in chosen)
    )
