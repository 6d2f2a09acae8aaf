"""Targets whose device is not here: what a call takes there, and plans for instruction sets that this processor has not.

For such an instruction set the configurations that our own engine has there are ordered by the time that the roofline predicts.
Each is compiled for an emulator of the instructions and compared with float64 here; the first that is accurate ships. Nothing of it
is timed, so nothing of it is called measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.backends.native.chosen_isa import FORCED_ISA_VARIABLE
from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import decode, encode
from bricolage.base.options import Options
from bricolage.costs.models.described import Scaled
from bricolage.costs.models.roofline import least_config_ms
from bricolage.costs.models.speedup import MeasuredCurves, SpeedupCurve
from bricolage.device.arm_cores import core_named
from bricolage.device.description import ScaledTimes
from bricolage.device.device import DESCRIBED, Device, Peaks
from bricolage.device.host import select_device, unlimited
from bricolage.driver.bucket_decision import decision_key
from bricolage.driver.context import DecisionContext
from bricolage.driver.sources import PreparedBucket, Source, measuring_inputs
from bricolage.errors import TargetMissed
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.measure.artifact_check import run_artifact
from bricolage.measure.pool import Pool
from bricolage.native.cpu.isa import ARM_SETS, available_isas, described_instructions, find_emulator
from bricolage.plan import artifact
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.pack import PackTarget
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant, RaceOutcome
from bricolage.plan.shipped_program import ShippedProgram, whole_region
from bricolage.verify.bound import draws_for, error_limits, rounding_errors
from bricolage.verify.compare import deviation, too_far
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.implementation import OWN_ENGINE, Implementation, KernelConfig

_WHOLE = "plan"
_DRAFT = "emulated.bricolage"
_EMULATED_S = 300.0
"""For one run of an emulated program, which takes some hundred times as long as the real one."""


@dataclass(frozen=True)
class EmulatedPlan:
    """A plan for an instruction set that is not here."""

    plan: Plan
    estimate: Estimate
    """Of a call there, summed over the shape buckets."""
    resident_bytes: int
    """Of the process that ran it emulated."""


def is_elsewhere(target: PackTarget) -> bool:
    """Whether a target is for an instruction set that this processor has not, or cannot be kept to, or for cores that a file
    describes."""
    if target.core:
        return True
    if target.isa in ARM_SETS:
        return available_isas(unlimited())[0].name != target.isa
    if target.isa == "amx":
        return not described_instructions("amx") <= unlimited().instructions
    return bool(target.isa) and not unlimited().has(target.isa)


def set_there(target: PackTarget) -> str:
    """The instruction set of a target that is elsewhere: as it says, else the best that its cores have.

    Raises:
        TargetMissed: its cores have not the set that it names.
    """
    core = core_named(target.core)
    if core is None:
        return target.isa
    names = [name for name in ARM_SETS if described_instructions(name) <= core.instructions]
    if target.isa and target.isa not in names:
        raise TargetMissed(reason=f"a {core.name} has not '{target.isa}', only {', '.join(names)}")
    return target.isa or names[0]


def device_there(target: PackTarget, options: Options) -> Device:
    """The device of a target that is elsewhere, with peaks. Its threads are the target's, else those of this machine.

    Raises:
        TargetMissed: as `set_there`.
    """
    here, isa = select_device(options.isa, options.cores), set_there(target)
    assert target.peaks is not None, "its times are predicted"
    threads = target.threads or options.threads
    there = replace(
        here,
        name=target.name,
        model=DESCRIBED,
        cores=tuple(range(threads)),
        physical_cores=threads,
        memory_bytes=(target.memory_mb or 0) << 20,
        instructions=described_instructions(isa),
        peaks=target.peaks,
        isa="",
    )
    return replace(there, caches=target.caches, architecture="aarch64", system="Linux") if isa in ARM_SETS else there


def estimate_call(target: PackTarget, plan: Plan, graphs: Sequence[Graph]) -> Estimate | None:
    """What a call takes on the device of a target, summed over the buckets: as measured here, scaled or predicted as the target
    says. None where it was not timed."""
    if target.peaks is not None:
        return predict_described(target, plan, graphs)
    times = [bucket.race.winner.median_ms for bucket in plan.buckets]
    if None in times:
        return None
    measured = Estimate.of(sum(time or 0.0 for time in times), "measured")
    return measured if target.scale is None else measured.times(target.scale, "described")


def predict_described(target: PackTarget, plan: Plan, graphs: Sequence[Graph]) -> Estimate | None:
    """What a call takes on the device that a target describes, summed over the buckets: each operator's share of what was measured
    here, by the ratio of the rooflines. None where it describes none, or where the plan was not timed."""
    times = [bucket.race.winner.median_ms for bucket in plan.buckets]
    if target.peaks is None or None in times:
        return None
    options = plan.provenance.options
    return _add(
        _scale(graph, time or 0.0, target.peaks, options, target.name)
        for graph, time in zip(graphs, times, strict=True)
    )


def plan_elsewhere(context: DecisionContext, opened: Source, target: PackTarget, plan: Plan) -> EmulatedPlan:
    """The plan for a target's instruction set, which this processor has not.

    Args:
        context: of the decision for the same target with the instructions that are here.
        opened: the model.
        target: with peaks.
        plan: that decision's.

    Raises:
        TargetMissed: our engine was not timed here, no configuration is accurate, or the instructions cannot be emulated.
    """
    isa = set_there(target)
    emulator = find_emulator(isa)
    if not emulator:
        raise TargetMissed(reason=f"this processor has not '{isa}', nor what emulates it (avx2)")
    there = device_there(target, plan.provenance.options)
    graphs = [bucket.graph for bucket in opened.buckets]
    predictions = _predict_configs(target, plan, graphs, there, context.backends)
    candidates = sorted(predictions, key=lambda pair: _add(pair[1]).ms)
    if not candidates:
        reason = (
            f"our engine was not timed here, from which times with '{isa}' are predicted: give it more time (--budget)"
        )
        raise TargetMissed(reason=reason)
    limit = target.memory_mb << 20 if target.memory_mb is not None else None
    refused: dict[KernelConfig, str] = {}
    with closing(Pool(limit, variables={FORCED_ISA_VARIABLE: emulator})) as pool:
        for config, estimates in candidates:
            name = Implementation(OWN_ENGINE, config)
            buckets = [_whole_bucket(opened, bucket, name, context.options) for bucket in opened.buckets]
            tried = _recall_emulated(context, pool, opened, replace(plan, buckets=tuple(buckets)), emulator)
            if not tried.reason:
                completed = _complete(plan, buckets, tried, candidates, refused)
                return EmulatedPlan(_move(completed, target, there), _add(estimates), tried.resident_bytes)
            refused[config] = tried.reason
    reasons = "; ".join(f"{Implementation(OWN_ENGINE, config)}: {reason}" for config, reason in refused.items())
    raise TargetMissed(reason=f"nothing is right with '{isa}': {reasons}")


def _predict_configs(
    target: PackTarget, plan: Plan, graphs: Sequence[Graph], there: Device, backends: Sequence[Backend]
) -> Iterator[tuple[KernelConfig, list[Estimate]]]:
    """What our engine offers there, each with the time that is predicted of a call, for each bucket: of what was timed here with
    the same configuration, else of the fastest in float32, by the rooflines. It may gain nothing by other products, so the
    interval reaches to the time without them."""
    options = plan.provenance.options
    timed = [
        {
            contestant.implementation.config: contestant.median_ms
            for contestant in bucket.race.contestants
            if contestant.implementation is not None
            and contestant.implementation.backend == OWN_ENGINE
            and contestant.kind == "baseline"
            and contestant.median_ms is not None
        }
        for bucket in plan.buckets
    ]
    engines = (backend for backend in backends if backend.name == OWN_ENGINE)
    offered = [config for engine in engines for config in engine.configs(options.precision, there)]
    for config in offered:
        estimates = [_predict_config(config, *pair, target, options, there) for pair in zip(graphs, timed, strict=True)]
        predicted = [estimate for estimate in estimates if estimate is not None]
        if len(predicted) == len(estimates):
            yield config, predicted


def _predict_config(
    config: KernelConfig,
    graph: Graph,
    timed: dict[KernelConfig, float],
    target: PackTarget,
    options: Options,
    there: Device,
) -> Estimate | None:
    floats = {
        other: ms for other, ms in timed.items() if not (other.bfloat16 or other.in_bytes or other.slice_products)
    }
    if config not in timed and not floats:
        return None
    like = config if config in timed else min(floats, key=floats.__getitem__)
    assert target.peaks is not None
    base = _scale(graph, timed[like], target.peaks, options, target.name)
    setting, amount = Setting(there, there.threads), workload(graph.everything)
    ratio = least_config_ms(amount, setting, config) / least_config_ms(amount, setting, like)
    return Estimate(base.ms * ratio, base.low_ms * min(1.0, ratio), base.high_ms * max(1.0, ratio), "roofline")


def _scale(graph: Graph, ms: float, peaks: Peaks, options: Options, name: str) -> Estimate:
    """What a graph takes there that takes `ms` here."""
    here = select_device(options.isa, options.cores)
    there = replace(here, name=name, cores=here.cores[: options.threads], peaks=peaks)
    measured = MeasuredCurves({_WHOLE: SpeedupCurve(((options.threads, ms),))})
    scaled = Scaled(measured, {name: ScaledTimes()}, here, (options.threads,))
    (estimate,) = scaled.estimate([Work(workload(graph.everything), key=_WHOLE)], Setting(there, options.threads))
    assert estimate is not None, "it was measured with as many threads"
    return estimate


def _add(estimates: Sequence[Estimate] | Iterator[Estimate]) -> Estimate:
    given = list(estimates)
    ms, low, high = (math.fsum(column) for column in zip(*((e.ms, e.low_ms, e.high_ms) for e in given), strict=True))
    return Estimate(ms, low, high, "roofline")


@dataclass(frozen=True)
class _Emulated:
    """What came of an emulated program: the error of each bucket, or why it does not ship."""

    errors: tuple[float, ...] = ()
    resident_bytes: int = 0
    reason: str = ""
    lost: bool = False
    """Whether its process gave no answer, which the next one may."""


def _recall_emulated(context: DecisionContext, pool: Pool, opened: Source, plan: Plan, emulator: str) -> _Emulated:
    """What came of an emulated program, from the database where it ran before."""
    keys = [
        decision_key(opened, bucket, context.options, context.backends, context.device) for bucket in opened.buckets
    ]
    (region,) = plan.buckets[0].program.regions
    key = " ".join([*keys, emulator, region.implementation.config.text, str(pool.memory_limit if pool.limited else "")])
    stored = None if context.replan else context.database.get_race(key)
    if stored is not None:
        return decode(_Emulated, stored)
    tried = _try_emulated(context, pool, opened, plan, emulator)
    if not tried.lost:
        context.database.put_race(key, encode(tried))
    return tried


def _try_emulated(context: DecisionContext, pool: Pool, opened: Source, plan: Plan, emulator: str) -> _Emulated:
    """Runs a plan in a worker of a pool whose engine emulates the instructions, and compares its answers with float64."""
    versions = {**plan.provenance.versions, OWN_ENGINE: f"{registry.version(OWN_ENGINE)}+{emulator}"}
    plan = replace(plan, provenance=replace(plan.provenance, versions=versions))
    options, folder = context.options, opened.store.directory
    limit_s = DecisionBudget.of(options, len(opened.buckets[0].graph)).compile_limit_s + _EMULATED_S
    errors, held = list[float](), 0
    draft = folder / _DRAFT
    artifact.save(plan, folder, draft)
    try:
        for bucket in opened.buckets:
            evaluate = context.reference(opened, bucket.graph)
            inputs, _ = measuring_inputs(opened, bucket.graph, options, evaluate)
            (run,) = run_artifact(pool, plan, draft, [inputs], folder, context.device, limit_s)
            held = max(held, run.resident_bytes)
            if run.failure:
                return _Emulated(reason=run.failure, lost=True)
            if pool.limited and held > pool.memory_limit:
                return _Emulated(reason=f"it holds {held >> 20} MB; the limit is {pool.memory_limit >> 20} MB")
            model, names = bucket.graph.model, [info.name for info in bucket.graph.outputs]
            reference = evaluate(model, inputs)
            judge = partial(deviation, run.outputs, [reference[name] for name in names])
            judged = judge([0.0] * len(names))
            if judged.excess > options.bound and options.tolerance is None:
                rounding = rounding_errors(model, inputs, reference, draws_for(bucket.graph), evaluate)
                limits = error_limits(rounding, reference)
                judged = judge([limits[name] for name in names])
            if judged.excess > options.bound:
                return _Emulated(reason=too_far(judged, options.bound))
            errors.append(judged.error)
    finally:
        draft.unlink(missing_ok=True)
    return _Emulated(tuple(errors), held)


def _whole_bucket(opened: Source, prepared: PreparedBucket, chosen: Implementation, options: Options) -> Bucket:
    """The original graph on one implementation."""
    graph = prepared.graph
    region = whole_region(chosen, len(graph))
    program = ShippedProgram(
        dict(prepared.sizes),
        opened.store.graph(graph),
        len(graph),
        (region,),
        overridden=dict(prepared.overridden),
    )
    return Bucket.unraced(program, str(chosen), options.bound)


def _contestant(config: KernelConfig, estimate: Estimate, error: float | None, reason: str) -> Contestant:
    """Of which a time is predicted; one that was not compared with float64 was neither refused nor taken."""
    name, interval = Implementation(OWN_ENGINE, config), (estimate.low_ms, estimate.high_ms)
    contestant = Contestant(str(name), "baseline", None, None, error, not reason, reason, implementation=name)
    return replace(contestant, predicted_ms=estimate.ms, predicted_ci_ms=interval)


def _complete(
    plan: Plan,
    buckets: Sequence[Bucket],
    tried: _Emulated,
    candidates: Sequence[tuple[KernelConfig, Sequence[Estimate]]],
    refused: Mapping[KernelConfig, str],
) -> Plan:
    """The plan with these buckets, their errors, and all candidates: what was refused is said of each, and what is slower than the
    one that ships was not run."""
    completed = []
    for number, (bucket, error, before) in enumerate(zip(buckets, tried.errors, plan.buckets, strict=True)):
        (region,) = bucket.program.regions
        chosen = region.implementation.config
        entries = [
            _contestant(
                config, estimates[number], error if config == chosen else None, _why_not(config, chosen, refused)
            )
            for config, estimates in candidates
        ]
        outcome = RaceOutcome.unraced(str(region.implementation), tuple(entries))
        race = replace(outcome, decided_by="predicted costs")
        judged = before.verification
        verification = Verification(judged.original_error, bucket.verification.bound, judged.inputs_from)
        completed.append(replace(bucket, race=race, verification=verification))
    return replace(plan, buckets=tuple(completed))


def _why_not(config: KernelConfig, chosen: KernelConfig, refused: Mapping[KernelConfig, str]) -> str:
    if config == chosen:
        return ""
    return refused.get(config, "predicted to be no faster; its answers were not computed")


def _move(plan: Plan, target: PackTarget, there: Device) -> Plan:
    """The plan as one for the device there."""
    isa = "avx512" if target.isa == "avx512" else ""
    options = replace(plan.provenance.options, isa=isa, threads=there.threads, cores=None)
    cores = f"{target.core}, " if target.core else ""
    hardware = f"predicted for {target.name}: {cores}{there}"
    provenance = replace(plan.provenance, fingerprint=there.fingerprint(), hardware=hardware, options=options)
    return replace(plan, provenance=provenance)
