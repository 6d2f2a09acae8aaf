"""Deciding on the targets of a pack that are this machine, from loose to tight.

A tighter one starts from its parent's decision: what was measured for that one and gained nothing is not measured again, nor are
baselines that were far slower, if the parent's winner is accurate enough for it. The final race is its own.
Costs that two targets share are measured once: the database's keys hold all that they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.costs.models.described import Scaled
from bricolage.costs.models.speedup import MeasuredCurves, SpeedupCurve
from bricolage.device.description import ScaledTimes
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import Start, decide_bucket, decision_key, make_plan
from bricolage.driver.context import open_context, open_pool
from bricolage.driver.packs.pack_request import PackRequest
from bricolage.driver.session import ModelFindings
from bricolage.driver.shipping import TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import Source
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.measure.pool import Pool
from bricolage.plan.pack import PackEntry, PackTarget, tree
from bricolage.plan.plan import Bucket, Plan
from bricolage.work.cost import Estimate, Setting, Work

_WHOLE = "plan"
_AHEAD = 2
"""Targets that are compiled for while another one is decided."""


@dataclass(frozen=True)
class DecidedTarget:
    """The plan of a target, with its files in the folder of the pack that is made, and its entry."""

    plan: Plan
    entry: PackEntry


@dataclass(frozen=True)
class SharedByTargets:
    """What the decisions for all targets have in common."""

    request: PackRequest
    opened: Source
    pool: Pool
    findings: ModelFindings = field(default_factory=ModelFindings)


def decide_targets(shared: SharedByTargets, options: Mapping[str, Options]) -> dict[str, DecidedTarget]:
    """The targets that are this machine, by name; `options` of each.

    Raises:
        As `optimize`.
    """
    decisions: dict[str, DecidedTarget] = {}
    graphs = [bucket.graph for bucket in shared.opened.buckets]
    order = tree(shared.request.here)
    for at, (target, parent) in enumerate(order):
        started, target_options = time.monotonic(), options[target.name]
        above = None if parent is None else decisions[parent.name]
        coming = order[at + _AHEAD if at else 1 : at + _AHEAD + 1]  # those before are being compiled
        then = tuple(_setting(options[follower.name]) for follower, _ in coming if follower.memory_mb is None)
        if parent is not None and above is not None and target_options == options[parent.name]:
            plan, held = above.plan, above.entry.resident_bytes  # its device is described; here they are one
        else:
            plan, held = _decide_target(shared, target, target_options, None if above is None else above.plan, then)
        name = parent.name if parent is not None else ""
        entry = _make_entry(target, name, plan, held, time.monotonic() - started, graphs)
        decisions[target.name] = DecidedTarget(plan, entry)
    return decisions


def _setting(options: Options) -> Setting:
    return Setting(select_device(options.isa, options.cores), options.threads)


def _decide_target(
    shared: SharedByTargets, target: PackTarget, options: Options, parent: Plan | None, then: tuple[Setting, ...]
) -> tuple[Plan, int]:
    """The plan of a target, tried in a fresh process, and the bytes that this one held. A target with a limit of memory has workers
    of its own, which are held to it; `then`: who is decided on next by the workers of all."""
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    request, opened, limited = shared.request, shared.opened, target.memory_mb is not None
    with (
        open_pool(options) if limited else nullcontext(shared.pool) as pool,
        open_context(
            options,
            backends,
            device,
            request.progress,
            pool=pool,
            replan=request.replan,
            provisional=request.provisional,
            findings=shared.findings,
            then=() if limited else then,  # its own workers end with it
            reference_pool=shared.pool,
        ) as context,
    ):
        decided, trials, keys = list[Bucket](), [], []
        for index, bucket in enumerate(opened.buckets):
            start = _start(target, options, parent, index)
            decided.append(decide_bucket(context, opened, bucket, start=start))
            request.progress.decided(decided[-1])
            trials.append(planned_trial(opened, index))
            keys.append(start.key(decision_key(opened, bucket, options, backends, device)))
        plan = make_plan(opened, decided, options, backends, device)
        tried, path = TriedArtifacts(context.database, keys), opened.store.directory / f"{target.name}.bricolage"
        plan = ship_plan(context, opened, plan, path, trials, tried)
        path.unlink()
        return plan, max(tried.held, default=0)


def _start(target: PackTarget, options: Options, parent: Plan | None, index: int) -> Start:
    """What the decision for a bucket starts from."""
    if parent is None or not _teaches(parent.buckets[index], parent.provenance.options, options):
        return Start(memory_mb=target.memory_mb)
    before = parent.provenance.options
    same = (before.isa, before.threads) == (options.isa, options.threads)
    return Start.after(parent.buckets[index], target.memory_mb, same_device=same)


def _teaches(parent: Bucket, before: Options, options: Options) -> bool:
    """Whether what the parent's decision found holds for a target: what it ships is accurate enough, and no instructions make it
    fast that the target lacks (products of bfloat16)."""
    error = parent.race.winner.error
    if error is None or error > max(options.bound, parent.verification.original_error):
        return False
    return before.isa == options.isa or not any(
        region.implementation.config.bfloat16 for region in parent.program.regions
    )


def _make_entry(
    target: PackTarget, parent: str, plan: Plan, held: int, seconds: float, graphs: Sequence[Graph]
) -> PackEntry:
    """What the index says of a target, whose fresh process held `held` bytes; its file is that of the first one. `parent`: by
    name, empty of a root."""
    device = select_device(plan.provenance.options.isa, plan.provenance.options.cores)
    times = [bucket.race.winner.median_ms for bucket in plan.buckets]
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
        measured = MeasuredCurves({_WHOLE: SpeedupCurve(((options.threads, bucket.race.winner.median_ms or 0.0),))})
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
