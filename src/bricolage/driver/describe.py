"""Names of plans, and the regions of a decision with their evidence: what else was measured, what was predicted, who came
second."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.graph.operator_kinds import VIEWS
from bricolage.graph.work import workload
from bricolage.plan.agenda_record import WHOLE
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.shipped_program import ORIGINAL, Alternative, PlannedRegion
from bricolage.work.cost import Work
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement_prediction import Predictor, operator_endpoints


def planned_regions(
    variant: TimedVariant, placement: Placement, predictor: Predictor | None, starts_ms: Sequence[float] = ()
) -> tuple[PlannedRegion, ...]:
    """The regions of a placement for the plan, in executable order; `starts_ms` where they have a schedule."""
    graph, owner = variant.graph, operator_endpoints(placement)
    timeline = predictor.timeline(placement) if predictor is not None else None
    planned: list[PlannedRegion] = []
    for index, assignment in enumerate(placement):
        region = Region(graph, assignment.region)
        key = variant.region_key(region)
        alternatives = _alternatives(variant, region, key, predictor)
        chosen = next((a for a in alternatives if a.implementation == assignment.implementation), None)
        amount = workload(region)
        planned.append(
            PlannedRegion(
                implementation=assignment.implementation,
                operators=format_numbers(region.numbers),
                count=len(region),
                title=title(region),
                key=key,
                flops=amount.flops,
                bytes=amount.bytes,
                cost_ms=chosen.median_ms if chosen is not None else None,
                measured=chosen is not None and chosen.outcome == "ok",
                start_ms=starts_ms[index] if starts_ms else timeline.slots[index].start_ms if timeline else None,
                transfer_ms=(
                    predictor.transfer(assignment.region, assignment.implementation.endpoint, owner)
                    if predictor and len(placement) > 1
                    else 0.0
                ),
                alternatives=alternatives,
            )
        )
    return tuple(planned)


def title(region: Region) -> str:
    """The operator types, the most frequent first: "3 Conv, 3 Relu, Add"."""
    kinds = Counter(o.op_type for o in region.operators if o.op_type not in VIEWS or len(region) == 1)
    parts = [f"{count} {kind}" if count > 1 else kind for kind, count in kinds.most_common(4)]
    return ", ".join(parts) + (f", +{len(kinds) - 4} kinds" if len(kinds) > 4 else "")


def _alternatives(
    variant: TimedVariant, region: Region, key: str, predictor: Predictor | None
) -> tuple[Alternative, ...]:
    alternatives: list[Alternative] = []
    whole = region.bits == variant.graph.everything.bits
    costs = variant.alone if whole else variant.regions.of(key)
    for implementation, cost in costs.items():
        latency = cost.latency
        alternatives.append(
            Alternative(
                implementation,
                cost.outcome,
                latency.median_ms if latency else None,
                (latency.low_ms, latency.high_ms) if latency else None,
                cost.error,
                cost.reason,
            )
        )
    if not alternatives and predictor is not None:
        claimed = variant.candidates.claimed
        offered = [implementation for group in variant.candidates.groups for implementation in group.implementations]
        able = [
            implementation
            for implementation in dict.fromkeys([*variant.whole, *offered])
            if claimed.get(implementation.backend, 0) & region.bits == region.bits
        ]
        works = [Work(implementation=implementation, region=region.bits) for implementation in able]
        for one, estimate in zip(able, predictor.costs.estimate(works, predictor.on), strict=True):
            if estimate is not None:
                alternatives.append(Alternative(one, "predicted", estimate.ms))
    return tuple(sorted(alternatives, key=lambda a: (a.median_ms is None, a.median_ms or 0.0)))


def whole_model(one: Implementation) -> str:
    """What the agenda calls the whole model on an implementation."""
    return f"{WHOLE}{one}"


def placement_name(placement: Placement, variant: str = ORIGINAL) -> str:
    """A short name that says what is mixed, "openvino+onnxruntime plan 3f2a", or that one implementation runs a
    rewritten graph, "openvino f32 rewritten"."""
    rewritten = "" if variant == ORIGINAL else f" {variant}"
    if len(placement) == 1:
        return f"{placement[0].implementation}{rewritten}"
    backends = "+".join(dict.fromkeys(assignment.implementation.backend for assignment in placement))
    text = ";".join(
        f"{assignment.region:x} {assignment.implementation.backend} {assignment.implementation.config.text}"
        for assignment in placement
    )
    return f"{backends} plan {hashlib.sha256((text + rewritten).encode()).hexdigest()[:4]}{rewritten}"
