"""Deciding on the targets of a pack that are this machine, from loose to tight.

A tighter one starts from its parent's decision: what was measured for that one and gained nothing is not measured again, nor are
baselines that were far slower, if the parent's winner is accurate enough for it. The final race is its own.
Costs that two targets share are measured once: the database's keys hold all that they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace

from bricolage.backends import registry
from bricolage.base.options import Options
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import Start, decide_bucket, decision_key, make_plan
from bricolage.driver.context import DecisionContext, open_context, open_pool
from bricolage.driver.packs.described_target import device_there, estimate_call, is_elsewhere, plan_elsewhere
from bricolage.driver.packs.latency_limit import check_latency, shipped_error, tighter_words
from bricolage.driver.packs.pack_request import PackRequest
from bricolage.driver.session import ModelFindings
from bricolage.driver.shipping import TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import Source
from bricolage.errors import ArtifactFails, NoBackend, NoPlacement, NotAccurate, TargetMissed, UnservedTargets
from bricolage.measure.pool import Pool
from bricolage.plan.pack import PackEntry, PackTarget, tree
from bricolage.plan.plan import Bucket, Plan
from bricolage.work.cost import Estimate, Setting

_AHEAD = 2
"""Targets that are compiled for while another one is decided."""


@dataclass(frozen=True)
class TriedPlan:
    """A plan that a fresh process ran, the bytes that it held, and what a call takes on the target's device."""

    plan: Plan
    held: int
    estimate: Estimate | None


@dataclass(frozen=True)
class DecidedTarget:
    """The plan of a target, with its files in the folder of the pack that is made, and its entry."""

    plan: Plan
    entry: PackEntry
    loosest: TriedPlan | None = None
    """What was decided here at the loosest precision that the target accepts: its children start from that. None of a node's."""


@dataclass(frozen=True)
class SharedByTargets:
    """What the decisions for all targets have in common."""

    request: PackRequest
    opened: Source
    pool: Pool
    findings: ModelFindings = field(default_factory=ModelFindings)


@dataclass(frozen=True)
class _Start:
    """What a target starts from."""

    options: Options
    parent: PackTarget | None = None
    above: DecidedTarget | None = None
    """The parent's decision."""
    then: tuple[Setting, ...] = ()
    """Who is decided on next."""


def decide_targets(shared: SharedByTargets, options: Mapping[str, Options]) -> dict[str, DecidedTarget]:
    """The targets that are this machine, by name; `options` of each.

    Raises:
        UnservedTargets: some have no plan that keeps their limits. All others are decided by then, and on record.
        As `optimize`.
    """
    decisions: dict[str, DecidedTarget] = {}
    refusals: dict[str, str] = {}
    order = tree(shared.request.here)
    for at, (target, parent) in enumerate(order):
        coming = order[at + _AHEAD if at else 1 : at + _AHEAD + 1]  # those before are being compiled
        then = tuple(_setting(options[follower.name]) for follower, _ in coming if follower.memory_mb is None)
        above = None if parent is None else decisions.get(parent.name)
        start = _Start(options[target.name], parent, above, then)
        try:
            decisions[target.name] = _decide_target(shared, target, start)
        except (NotAccurate, ArtifactFails, NoPlacement, TargetMissed) as error:
            refusals[target.name] = error.sentence
        except NoBackend as error:
            if target.memory_mb is None:
                raise
            refusals[target.name] = f"nothing runs within {target.memory_mb} MB: {error.sentence}"
    if refusals:
        reasons = "; ".join(f"target '{name}': {reason}" for name, reason in refusals.items())
        raise UnservedTargets(count=len(refusals), total=len(order), reasons=reasons)
    return decisions


def _setting(options: Options) -> Setting:
    return Setting(select_device(options.isa, options.cores), options.threads)


def _decide_target(shared: SharedByTargets, target: PackTarget, start: _Start) -> DecidedTarget:
    """The plan that keeps the limits of a target.

    Raises:
        TargetMissed: none does.
        As `optimize`.
    """
    began, parent = time.monotonic(), start.parent
    graphs = [bucket.graph for bucket in shared.opened.buckets]
    above = None if start.above is None else start.above.loosest
    if above is not None and _decided_alike(shared.request, start):
        plan, held = above.plan, above.held
    else:
        plan, held = _measure_plan(shared, target, start.options, None if above is None else above.plan, start.then)
    loosest = TriedPlan(plan, held, estimate_call(target, plan, graphs))
    tried = loosest
    if is_elsewhere(target):
        with _context(shared, target, start.options, ()) as context:
            emulated = plan_elsewhere(context, shared.opened, target, plan)
        tried = TriedPlan(emulated.plan, emulated.resident_bytes, emulated.estimate)
    check_latency(tried.plan, target, tried.estimate)
    if target.latency_ms is not None and not is_elsewhere(target):
        tried = _tighten(shared, target, start.options, tried)
    entry = _make_entry(target, parent.name if parent is not None else "", tried, time.monotonic() - began)
    return DecidedTarget(tried.plan, entry, loosest)


def _decided_alike(request: PackRequest, start: _Start) -> bool:
    """Whether a target is decided like its parent: its device is described, or its limit is one of latency, which no decision
    knows."""
    return start.parent is not None and start.options == request.options_of(start.parent)


def _tighten(shared: SharedByTargets, target: PackTarget, options: Options, loosest: TriedPlan) -> TriedPlan:
    """The most accurate plan that keeps the limit of latency, which the one at the loosest precision does."""
    graphs = [bucket.graph for bucket in shared.opened.buckets]
    here = sum(bucket.race.winner.median_ms or 0.0 for bucket in loosest.plan.buckets)
    assert target.latency_ms is not None and loosest.estimate is not None
    for word in tighter_words(loosest.plan, target, loosest.estimate.ms / here if here else 1.0):
        try:
            plan, held = _measure_plan(shared, target, replace(options, precision=word, weights=None), loosest.plan, ())
        except (NotAccurate, ArtifactFails, NoPlacement):
            continue
        estimate = estimate_call(target, plan, graphs)
        if estimate is not None and estimate.ms <= target.latency_ms:
            return TriedPlan(plan, held, estimate)
    return loosest


@contextmanager
def _context(
    shared: SharedByTargets, target: PackTarget, options: Options, then: tuple[Setting, ...]
) -> Iterator[DecisionContext]:
    """What a target is decided with. One with a limit of memory has workers of its own, which are held to it; `then`: who is
    decided on next by the workers of all."""
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    request, limited = shared.request, target.memory_mb is not None
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
        yield context


def _measure_plan(
    shared: SharedByTargets, target: PackTarget, options: Options, parent: Plan | None, then: tuple[Setting, ...]
) -> tuple[Plan, int]:
    """The plan that wins with these options, tried in a fresh process, and the bytes that this one held."""
    opened = replace(shared.opened, data=shared.request.data_of(shared.opened.data, options))
    with _context(shared, target, options, then) as context:
        decided, trials, keys = list[Bucket](), [], []
        for index, bucket in enumerate(opened.buckets):
            start = _start(target, options, parent, index)
            decided.append(decide_bucket(context, opened, bucket, start=start))
            context.progress.decided(decided[-1])
            trials.append(planned_trial(opened, index))
            keys.append(start.key(decision_key(opened, bucket, options, context.backends, context.device)))
        plan = make_plan(opened, decided, options, context.backends, context.device)
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


def _make_entry(target: PackTarget, parent: str, tried: TriedPlan, seconds: float) -> PackEntry:
    """What the index says of a target; its file is that of the first one. `parent`: by name, empty of a root."""
    plan, estimate = tried.plan, tried.estimate
    options, elsewhere = plan.provenance.options, is_elsewhere(target)
    device = device_there(target, options) if elsewhere else select_device(options.isa, options.cores)
    errors = [shipped_error(bucket) for bucket in plan.buckets]
    predicted = estimate if estimate is not None and target.peaks is not None else None
    return PackEntry(
        target=target,
        plan="plan.json",
        parent=parent,
        seconds=round(seconds, 3),
        median_ms=None if estimate is None else estimate.ms,
        threads=options.threads,
        instructions=tuple(sorted(device.instructions)),
        system=device.system,
        architecture=device.architecture,
        resident_bytes=tried.held,
        measured_on="" if elsewhere else device.model,
        predicted_ms=None if predicted is None else (predicted.low_ms, predicted.high_ms),
        ships=", ".join(dict.fromkeys(bucket.race.chosen for bucket in plan.buckets)),
        error=None if None in errors else max(error for error in errors if error is not None),
        precision=options.precision if options.precision != target.precision else None,
    )
