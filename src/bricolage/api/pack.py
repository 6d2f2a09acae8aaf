"""`pack`: one model, several kinds of devices, one file (after Mistify: Guo, Hu, Hu, NSDI'21).

The model is opened, prepared and written once. Targets are decided from loose to tight: precision, threads, instructions, memory.
A tighter one starts from its parent's decision: what was measured for that one and gained nothing is not measured again, nor are
baselines that were far slower, if the parent's winner is accurate enough for it. The final race is its own.
Costs that two targets share are measured once: the database's keys hold all that they depend on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from bricolage.api.pack_nodes import PackNodes
from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.codec import DecodeError, Length, decode, read_file
from bricolage.base.options import Options, available_cores, default_isa
from bricolage.base.progress import Progress, Silent
from bricolage.cluster.step_costs import MeasuredSteps
from bricolage.costs.models.described import Scaled
from bricolage.device.description import ScaledTimes
from bricolage.device.host import select_device, unlimited
from bricolage.driver.bucket_decision import Start, decide_bucket, decision_key, make_plan
from bricolage.driver.context import check_again, open_context, open_pool
from bricolage.driver.session import ModelFindings
from bricolage.driver.shipping import TriedArtifacts, planned_trial, ship_plan
from bricolage.driver.sources import Source, open_source, working_folder
from bricolage.errors import BadOption, BadTargets, MissingFile
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.measure.pool import Pool
from bricolage.plan import artifact
from bricolage.plan.pack import MOST_TARGETS, Pack, PackEntry, PackTarget, tree
from bricolage.plan.plan import Bucket, Plan
from bricolage.work.cost import Estimate, Setting, Work

_WHOLE = "plan"
_AHEAD = 2
"""Targets that are compiled for while another one is decided."""


@dataclass(frozen=True)
class _File:
    target: Annotated[tuple[PackTarget, ...], Length(1, MOST_TARGETS)]

    def __post_init__(self) -> None:
        names = [target.name for target in self.target]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"there are several targets '{name}'")


def read_targets(path: Path) -> tuple[PackTarget, ...]:
    """The targets that a file lists.

    Raises:
        MissingFile: there is no such file.
        BadTargets: it cannot be read, or lists none.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        return decode(_File, read_file(path), "it").target
    except DecodeError as error:
        raise BadTargets(path=path, reason=str(error)) from error


@dataclass(frozen=True)
class Packed:
    """A pack that was written, with its plans in the order of its entries."""

    pack: Pack
    plans: tuple[Plan, ...]


def pack(
    source: object,
    targets: Sequence[PackTarget],
    output: str | Path,
    options: Options | None = None,
    *,
    inputs: Mapping[str, np.ndarray] | None = None,
    replan: bool = False,
    provisional: bool = False,
    progress: Progress | None = None,
    shown: str | Path = "targets",
    ray: str | None = None,
) -> Packed:
    """Decides for each target how it runs a model fastest, and writes all plans over one set of weights.

    Args:
        source: as for `optimize`.
        targets: kinds of devices, each this machine or a part of it.
        output: where the pack goes.
        options: what all targets share: effort, budget (of each), backends, shapes. Precision, threads, instruction set and limit
            of memory are the targets'.
        inputs, replan, provisional, progress: as for `optimize`.
        shown: where the targets come from, for errors.
        ray: address of the Ray cluster, as `ray.init` takes it, whose nodes decide on the targets with `ray`.

    Raises:
        BadTargets: one asks for what this machine has not, or for a node where no cluster is named.
        BadOption: a cluster is named, and no target is for a node; or `replan` and `provisional` are given together.
        MissingLibrary, UnreachableCluster: the cluster cannot be used.
        PackNodeFailed: a node that a target needs is not there, or its decision came to nothing.
        As `optimize`, of any target.
    """
    check_again(replan, provisional)
    options, progress = options or Options(), progress or Silent()
    local_targets, afar = (
        tuple(target for target in targets if not target.ray),
        tuple(target for target in targets if target.ray),
    )
    _check_cluster(afar, ray, shown)
    target_options = {target.name: _options(target, options, shown) for target in local_targets}
    began, directory = time.monotonic(), working_folder()
    try:
        with scratch.using(directory, keep=True), _nodes(ray, afar) as nodes, open_pool(options) as pool:
            opened = open_source(source, options, directory, example_inputs=None, dynamic=None, given=inputs)
            seconds = {"model": time.monotonic() - began}
            if nodes is not None:
                nodes.begin(opened, options, replan, provisional)
            shared = _Shared(opened, pool, ModelFindings(), replan, provisional, progress)
            decided = _decided_here(shared, local_targets, target_options)
            if nodes is not None:
                progress.start("targets on Ray nodes")
                decided |= {name: (decision.plan, decision.entry) for name, decision in nodes.take(opened).items()}
                progress.finish()
            plans = tuple(decided[target.name][0] for target in targets)
            files = ["plan.json", *(f"plan-{target.name}.json" for target in targets[1:])]
            entries = (replace(decided[target.name][1], plan=file) for target, file in zip(targets, files, strict=True))
            pack_index = Pack(tuple(entries), seconds)
            artifact.save(plans[0], directory, Path(output), pack_index, plans)
    finally:
        scratch.remove(directory)
    return Packed(pack_index, plans)


def _check_cluster(afar: Sequence[PackTarget], ray: str | None, shown: str | Path) -> None:
    """Whether a cluster is named where targets need one, and only there.

    Raises:
        BadTargets, BadOption: it is not so.
    """
    if afar and ray is None:
        reason = (
            f"target '{afar[0].name}' is for a node with '{afar[0].ray}', and no Ray cluster is named (--ray ADDRESS)"
        )
        raise BadTargets(path=shown, reason=reason)
    if ray is not None and not afar:
        raise BadOption(option="--ray", value=ray, advice="Give a target `ray = ...`, or leave the cluster out")


def _nodes(ray: str | None, afar: Sequence[PackTarget]) -> AbstractContextManager[PackNodes | None]:
    return nullcontext(None) if ray is None else closing(PackNodes(ray, afar, pack))


def _decided_here(
    shared: _Shared, targets: Sequence[PackTarget], made: Mapping[str, Options]
) -> dict[str, tuple[Plan, PackEntry]]:
    """The targets that are this machine, from loose to tight."""
    decisions: dict[str, tuple[Plan, PackEntry]] = {}
    graphs = [bucket.graph for bucket in shared.opened.buckets]
    order = tree(tuple(targets))
    for at, (target, parent) in enumerate(order):
        started, target_options = time.monotonic(), made[target.name]
        above = None if parent is None else decisions[parent.name]
        coming = order[at + _AHEAD if at else 1 : at + _AHEAD + 1]  # those before are being compiled
        then = tuple(_setting(made[follower.name]) for follower, _ in coming if follower.memory_mb is None)
        if parent is not None and above is not None and target_options == made[parent.name]:
            plan, held = above[0], above[1].resident_bytes  # its device is described; here they are one
        else:
            plan, held = _decide_target(shared, target, target_options, above and above[0], then)
        name = parent.name if parent is not None else ""
        entry = _entry(target, name, plan, held, time.monotonic() - started, graphs)
        decisions[target.name] = (plan, entry)
    return decisions


def _options(target: PackTarget, options: Options, shown: str | Path) -> Options:
    """Of a target's decision.

    Raises:
        BadTargets: this machine has fewer threads, or not these instructions.
    """
    threads = target.threads or min(options.threads, available_cores())
    if threads > available_cores():
        reason = f"target '{target.name}' has {threads} threads, and this process may use {available_cores()}"
        raise BadTargets(path=shown, reason=reason)
    if target.isa and not unlimited().has(target.isa):
        raise BadTargets(path=shown, reason=f"target '{target.name}' has {target.isa}, and this processor has not")
    try:
        target_options = replace(
            options,
            precision=target.precision,
            threads=threads,
            isa=target.isa or default_isa(),
            memory_limit_mb=target.memory_mb,
            objective="latency",
        )
        target_options.check_here()
    except BadOption as error:
        raise BadTargets(path=shown, reason=f"target '{target.name}': {error.sentence}") from error
    return target_options


@dataclass(frozen=True)
class _Shared:
    """What all targets have in common."""

    opened: Source
    pool: Pool
    findings: ModelFindings
    replan: bool
    provisional: bool
    progress: Progress


def _setting(options: Options) -> Setting:
    return Setting(select_device(options.isa, options.cores), options.threads)


def _decide_target(
    shared: _Shared, target: PackTarget, options: Options, parent: Plan | None, then: tuple[Setting, ...]
) -> tuple[Plan, int]:
    """The plan of a target, tried in a fresh process, and the bytes that this one held. A target with a limit of memory has workers
    of its own, which are held to it; `then`: who is decided on next by the workers of all."""
    backends, device = registry.available(options.backends), select_device(options.isa, options.cores)
    opened, findings = shared.opened, shared.findings
    measuring = partial(
        open_context,
        options,
        backends,
        device,
        shared.progress,
        replan=shared.replan,
        provisional=shared.provisional,
        findings=findings,
    )
    workers = nullcontext(shared.pool) if target.memory_mb is None else open_pool(options)
    if target.memory_mb is not None:
        then = ()  # its own workers end with it
    with workers as pool, measuring(pool=pool, reference_pool=shared.pool, then=then) as context:
        decided, trials, keys = list[Bucket](), [], []
        for index, bucket in enumerate(opened.buckets):
            start = Start(memory_mb=target.memory_mb)
            if parent is not None and _teaches(parent.buckets[index], parent.provenance.options, options):
                before = parent.provenance.options
                same = (before.isa, before.threads) == (options.isa, options.threads)
                start = Start.after(parent.buckets[index], target.memory_mb, same_device=same)
            decided.append(decide_bucket(context, opened, bucket, start=start))
            shared.progress.decided(decided[-1])
            trials.append(planned_trial(opened, index))
            keys.append(start.key(decision_key(opened, bucket, options, backends, device)))
        plan = make_plan(opened, decided, options, backends, device)
        tried, path = TriedArtifacts(context.database, keys), opened.store.directory / f"{target.name}.bricolage"
        plan = ship_plan(context, opened, plan, path, trials, tried)
        path.unlink()
        return plan, max(tried.held, default=0)


def _teaches(parent: Bucket, before: Options, options: Options) -> bool:
    """Whether what the parent's decision found holds for a target: what it ships is accurate enough, and no instructions make it
    fast that the target lacks (products of bfloat16)."""
    error = parent.race.winner.error
    if error is None or error > max(options.bound, parent.verification.original_error):
        return False
    return before.isa == options.isa or not any(
        region.implementation.config.bfloat16 for region in parent.program.regions
    )


def _entry(
    target: PackTarget, parent: str, plan: Plan, held: int, seconds: float, graphs: Sequence[Graph]
) -> PackEntry:
    device = select_device(plan.provenance.options.isa, plan.provenance.options.cores)
    times = [bucket.race.winner.median_ms for bucket in plan.buckets]
    median = sum(time for time in times if time is not None) if None not in times else None
    predicted = None if median is None else _elsewhere(target, plan, graphs)
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


def _elsewhere(target: PackTarget, plan: Plan, graphs: Sequence[Graph]) -> Estimate | None:
    """What a run takes on the device that a target describes, summed over the buckets: each operator's share of what was measured
    here, by the ratio of the rooflines. None where it describes none."""
    if target.peaks is None:
        return None
    options, estimates = plan.provenance.options, list[Estimate]()
    here = select_device(options.isa, options.cores)
    there = replace(here, name=target.name, cores=here.cores[: options.threads], peaks=target.peaks)
    for bucket, graph in zip(plan.buckets, graphs, strict=True):
        work = Work(workload(graph.everything), key=_WHOLE)
        measured = MeasuredSteps({_WHOLE: {here.name: bucket.race.winner.median_ms or 0.0}})
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
