"""A target as it was decided: its plan, and what the index of the pack says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bricolage.costs.models.described import Scaled
from bricolage.costs.models.speedup import MeasuredCurves, SpeedupCurve
from bricolage.device.description import ScaledTimes
from bricolage.device.host import select_device
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.plan.pack import PackEntry, PackTarget
from bricolage.plan.plan import Plan
from bricolage.work.cost import Estimate, Setting, Work

_WHOLE = "plan"


@dataclass(frozen=True)
class DecidedTarget:
    """The plan of a target, with its files in the folder of the pack that is made, and its entry."""

    plan: Plan
    entry: PackEntry


def make_entry(
    target: PackTarget, parent: str, plan: Plan, held: int, seconds: float, graphs: Sequence[Graph]
) -> PackEntry:
    """The entry of a target. Its file is that of the first one.

    Args:
        target: that was decided.
        parent: name of the one that it started from; empty of a root.
        plan: of the target.
        held: bytes, by a fresh process that ran it.
        seconds: that the decision took.
        graphs: of the model, by shape bucket.
    """
    device = select_device(plan.provenance.options.isa, plan.provenance.options.cores)
    times = [bucket.winner.median_ms for bucket in plan.buckets]
    median = sum(time for time in times if time is not None) if None not in times else None
    predicted = None if median is None else predict_described(target, plan, graphs)
    if predicted is not None:
        median = predicted.ms
    return PackEntry(
        target=target,
        plan="plan.json",
        parent=parent,
        seconds=round(seconds, 3),
        median_ms=median if median is None else median * (target.scale or 1.0),
        threads=plan.provenance.options.threads,
        instructions=tuple(sorted(device.instructions)),
        system=device.system,
        architecture=device.architecture,
        resident_bytes=held,
        measured_on=device.model,
        predicted_ms=None if predicted is None else (predicted.low_ms, predicted.high_ms),
    )


def predict_described(target: PackTarget, plan: Plan, graphs: Sequence[Graph]) -> Estimate | None:
    """What a run takes on the device that a target describes, summed over the buckets: each operator's share of what was measured
    here, by the ratio of the rooflines. None where it describes none."""
    if target.peaks is None:
        return None
    options, estimates = plan.provenance.options, list[Estimate]()
    here = select_device(options.isa, options.cores)
    there = replace(here, name=target.name, cores=here.cores[: options.threads], peaks=target.peaks)
    for bucket, graph in zip(plan.buckets, graphs, strict=True):
        work = Work(workload(graph.everything), key=_WHOLE)
        measured = MeasuredCurves({_WHOLE: SpeedupCurve(((options.threads, bucket.winner.median_ms or 0.0),))})
        scaled = Scaled(measured, {target.name: ScaledTimes()}, here, (options.threads,))
        estimates += [
            estimate for estimate in scaled.estimate([work], Setting(there, options.threads)) if estimate is not None
        ]
    return Estimate(
        sum(estimate.ms for estimate in estimates),
        sum(estimate.low_ms for estimate in estimates),
        sum(estimate.high_ms for estimate in estimates),
        "roofline",
    )
