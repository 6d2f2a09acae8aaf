"""The regions of a decision with their evidence: what else was measured, what was predicted, who came second."""

from __future__ import annotations

from collections import Counter

from bricolage.graph.region import Region
from bricolage.graph.work import VIEWS, work
from bricolage.optimize.candidates import Way
from bricolage.optimize.final_race import Division
from bricolage.optimize.profile import Survey
from bricolage.perf.prediction import Predictor
from bricolage.plan.plan import Alternative, PlannedRegion, ranges
from bricolage.work import bits as bitset


def planned_regions(survey: Survey, division: Division, predictor: Predictor | None) -> tuple[PlannedRegion, ...]:
    """The regions of `division` for the plan, in executable order."""
    graph = survey.oracle.graph
    owner = {number: way.backend for bits, way in division for number in bitset.members(bits)}
    planned: list[PlannedRegion] = []
    for bits, way in division:
        region = Region(graph, bits)
        key = survey.region_key(region)
        alternatives = _alternatives(survey, region, key, predictor)
        own = next((a for a in alternatives if (a.backend, a.variant) == (way.backend, way.variant)), None)
        amount = work(region)
        planned.append(
            PlannedRegion(
                backend=way.backend,
                variant=way.variant,
                operators=ranges(region.numbers),
                count=len(region),
                title=title(region),
                key=key,
                flops=amount.flops,
                bytes=amount.bytes,
                cost_ms=own.median_ms if own is not None else None,
                measured=own is not None and own.outcome == "ok",
                boundary_ms=predictor.handover(bits, way.backend, owner) if predictor and len(division) > 1 else 0.0,
                alternatives=alternatives,
            )
        )
    return tuple(planned)


def title(region: Region) -> str:
    """The operator types, the most frequent first: "3 Conv, 3 Relu, Add"."""
    kinds = Counter(o.op_type for o in region.operators if o.op_type not in VIEWS or len(region) == 1)
    parts = [f"{count} {kind}" if count > 1 else kind for kind, count in kinds.most_common(4)]
    return ", ".join(parts) + (f", +{len(kinds) - 4} kinds" if len(kinds) > 4 else "")


def _alternatives(survey: Survey, region: Region, key: str, predictor: Predictor | None) -> tuple[Alternative, ...]:
    found: list[Alternative] = []
    whole = region.bits == survey.oracle.graph.everything.bits
    costs = survey.singles if whole else {way: cost for (k, way), cost in survey.regions.items() if k == key}
    for way, cost in costs.items():
        latency = cost.latency
        found.append(
            Alternative(
                way.backend,
                way.variant,
                cost.outcome,
                latency.median_ms if latency else None,
                (latency.low_ms, latency.high_ms) if latency else None,
                cost.error,
                cost.reason,
            )
        )
    if not found and predictor is not None:
        for way in (Way(*engine) for engine in predictor.engines):
            if survey.candidates.claimed.get(way.backend, 0) & region.bits != region.bits:
                continue
            ms = predictor.region(region.bits, way.backend, way.variant)
            if ms is not None:
                found.append(Alternative(way.backend, way.variant, "predicted", ms))
    return tuple(sorted(found, key=lambda a: (a.median_ms is None, a.median_ms or 0.0)))
