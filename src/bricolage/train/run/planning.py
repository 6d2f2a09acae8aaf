"""Makes a plan of a training step: traces and times it, measures what links are here, and searches (`train/pipeline/search.py`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from bricolage._version import __version__
from bricolage.base.progress import Progress, Silent
from bricolage.device.collective import Ring
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Link
from bricolage.device.host import host
from bricolage.errors import BadTrainingSpec, NoPipelinePlan
from bricolage.train.pipeline.pass_starts import measure_start
from bricolage.train.pipeline.pipeline_problem import PipelinePlan, PipelineProblem, PlannedLayer, UnlikeDevices
from bricolage.train.pipeline.search import PLANNED, best_plans
from bricolage.train.pipeline.timings import StepTimings, kind_words, unlike_kinds
from bricolage.train.pipeline.unlike_groups import equal_shares
from bricolage.train.predict.workers import measure_ring
from bricolage.train.run.document import FORMAT, PlanChange, PlanDevices, PlanOrigin, TrainingPlan
from bricolage.train.sharded.sharded_plans import DividedPlans, divided_plans, fits_whole
from bricolage.train.step.spec import StepSpec

_ALIKE_ALONE = DividedPlans(notes=("operators and weights are divided between alike devices alone",))


def plan_step(
    spec: StepSpec,
    *,
    schedules: Sequence[str] = PLANNED,
    seconds: float = 2.0,
    count: int = 5,
    progress: Progress | None = None,
) -> TrainingPlan:
    """The best plan of a training step on the devices of its spec.

    The step runs in this process at a few sizes of a micro-batch, to time its operators; nothing is run on several devices but what
    measures the links between processes of this machine.

    Args:
        spec: the step, with its devices.
        schedules: that are tried.
        seconds: for each timing.
        count: plans that are kept.
        progress: told about timings.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable: as `predict_step` does.
        BadTrainingSpec: it names no devices, or a link between two of them is missing.
        BadDevices: a described device does not run an operator.
        NoPipelinePlan: it fits on no device, however it is divided.
        TrainingWorkerFailed: a process that takes part in a measurement ends.
    """
    if spec.devices is None:
        reason = "it names no devices: `[devices]` with `here = 4`, or tables of them"
        raise BadTrainingSpec(path=spec.folder, reason=reason)
    shown = progress if progress is not None else Silent()
    described = spec.devices.described() if spec.devices.here is None else None
    number = spec.devices.here or len(described.machine.devices if described else ())
    link = None if described is None else slowest_link(described, spec)
    work = StepTimings(spec, number, described, seconds)
    shown.start("timing the parts of the step", len(work.sizes))
    threads = torch.get_num_threads()
    try:
        layers, notes = work.layers(shown)
        shown.start("timing the step in one process")
        alone = work.alone()
        shown.start("measuring what joins the devices")
        problem = _problem_here(spec, work, layers) if link is None else _problem_there(spec, work, layers, link)
    finally:
        torch.set_num_threads(threads)
    shown.start("dividing the step into stages")
    try:
        pipeline_plans, refused = best_plans(problem, schedules, count=count), None
    except NoPipelinePlan as error:
        pipeline_plans, refused = [], error
    shown.start("dividing its operators")
    known_ms = min((pipeline_plan.step_ms for pipeline_plan in pipeline_plans), default=math.inf)
    divided = _ALIKE_ALONE if problem.unlike is not None else divided_plans(work, problem, known_ms)
    if refused is not None and not divided.any:
        raise refused
    shown.start("planning for other devices")
    training_plan = _document(spec, work, problem, pipeline_plans, alone, divided, notes)
    shown.finish()
    return training_plan


def _problem_here(spec: StepSpec, work: StepTimings, layers: tuple[PlannedLayer, ...]) -> PipelineProblem:
    """Processes of this machine: they slow each other, and their links are measured."""
    number = work.devices
    ring, together = measure_ring(spec, number, work.threads, work.seconds) if number > 1 else (None, 1.0)
    # What running at once costs beyond that processes share cores.
    work.crowding = max(1.0, together * min(1.0, work.cores / number))
    assert spec.devices is not None
    measured = ring.link if ring is not None and len(layers) > 1 else None
    if ring is not None and spec.devices.gbytes is not None:
        ring = _limit_bandwidth(ring, spec.devices.gbytes)
    # Where links are held to less than was measured, the pipeline that is measured is not.
    start = measure_start(number, work.threads, work.cores, measured, work.seconds) if measured is not None else 0.0
    return PipelineProblem(
        tuple(_slower(layer, work.crowding) for layer in layers),
        number,
        spec.batch_size,
        ring.link if ring is not None else Link(("0", "1"), 1e3),
        work.memory,
        start,
        cores=work.cores,
        prefetch=True,
        ring=ring,
    )


def _problem_there(spec: StepSpec, work: StepTimings, layers: tuple[PlannedLayer, ...], link: Link) -> PipelineProblem:
    """Described devices: each by itself."""
    problem = PipelineProblem(layers, work.devices, spec.batch_size, link, work.memory or math.inf, prefetch=True)
    described = work.described
    assert described is not None
    links = {(each.gbytes, each.latency_us) for each in described.machine.links}
    memories = {device.memory_bytes for device in described.machine.devices}
    if len(work.kind_layers) < 2 and len(links) < 2 and len(memories) < 2:
        return problem
    by_kind = dict(
        zip((kind_words(device, described) for device in unlike_kinds(described)), work.kind_layers, strict=True)
    )
    return replace(problem, unlike=_unlike_devices(described, by_kind))


def _unlike_devices(described: DescribedDevices, by_kind: Mapping[str, tuple[PlannedLayer, ...]]) -> UnlikeDevices:
    devices = described.machine.devices
    return UnlikeDevices(
        tuple(device.name for device in devices),
        tuple(by_kind[kind_words(device, described)] for device in devices),
        tuple(device.memory_bytes for device in devices),
        described.machine.links,
    )


def _document(
    spec: StepSpec,
    work: StepTimings,
    problem: PipelineProblem,
    found: Sequence[PipelinePlan],
    alone: tuple[float, int],
    divided: DividedPlans,
    notes: tuple[str, ...],
) -> TrainingPlan:
    here = host()
    single, single_threads = alone
    unlike = problem.unlike
    if unlike is not None:
        single *= _by_slowest(unlike, problem.batch)
    parallel = _data_parallel_ms(work, problem) if unlike is not None or fits_whole(work, problem) else None
    # What one process and DistributedDataParallel take was found from steps of their own; that of the planner is rougher.
    bound = min(problem.bound_ms, replace(problem, layers=work.whole).bound_ms, single)
    if divided.layouts is not None:
        bound = min(bound, divided.layouts.bound_ms)
    if divided.grouped is not None:  # its stages run without autograd, for which the bound counts
        bound = min(bound, divided.grouped.step_ms)
    priced = [
        replace(_reprice_plan(pipeline_plan, problem, single, parallel), bound_ms=bound) for pipeline_plan in found
    ]
    priced.sort(key=lambda pipeline_plan: (pipeline_plan.step_ms, pipeline_plan.peak_bytes))
    rough = TrainingPlan(
        FORMAT,
        PlanOrigin(__version__, str(torch.__version__), str(here), here.fingerprint(), work.threads),
        step=spec,
        devices=_plan_devices(work, problem),
        layers=problem.layers,
        ring=problem.ring,
        prefetch=problem.prefetch,
        chosen=priced[0] if priced else None,
        way="single process",
        runner_ups=tuple(priced[1:]),
        single_ms=single,
        single_threads=single_threads,
        data_parallel_ms=parallel,
        changes=_changes(problem, work, single),
        notes=(*notes, *divided.notes),
        layouts=divided.layouts,
        fully_sharded=divided.fully_sharded,
        grouped=divided.grouped,
        bound=bound,
        start_ms=problem.start_ms,
    )
    ways = rough.ways_ms
    fits = any(pipeline_plan.devices == pipeline_plan.replicas == 1 for pipeline_plan in priced)
    fits |= unlike is not None and unlike.alone(problem.batch) is not None
    if not fits and len(ways) > 1:
        del ways["single process"]  # it does not fit on one device
    return replace(rough, way=min(ways, key=lambda way: ways[way]))


def _plan_devices(work: StepTimings, problem: PipelineProblem) -> PlanDevices:
    described = None if work.described is None else work.described.machine.devices
    ranks = tuple(f"rank {rank}" for rank in range(problem.devices))
    return PlanDevices(
        problem.devices,
        here=described is None,
        kind="cpu" if described is None else described[0].kind,
        names=ranks if described is None else tuple(device.name for device in described),
        link=problem.link,
        memory_bytes=int(problem.memory_bytes) if math.isfinite(problem.memory_bytes) else 0,
        cores=0 if math.isinf(problem.cores) else int(problem.cores),
        unlike=problem.unlike,
    )


def _by_slowest(unlike: UnlikeDevices, batch: int) -> float:
    """What a step takes on the fastest device that holds it, or on the fastest, by what it takes on the slowest."""
    each = [unlike.step_ms(device, batch) for device in range(len(unlike.names))]
    holder = unlike.alone(batch)
    return (min(each) if holder is None else each[holder]) / (max(each) or 1.0)


def _reprice_plan(one: PipelinePlan, problem: PipelineProblem, single: float, parallel: float | None) -> PipelinePlan:
    if one.devices > 1:
        return one
    if one.replicas == 1:
        return replace(one, step_ms=single, micro_batches=1, recompute=False, exchange_ms=0.0)
    whole = one.replicas == problem.devices and parallel is not None and not one.recompute
    return replace(one, step_ms=parallel, micro_batches=1) if whole and parallel is not None else one


def _data_parallel_ms(work: StepTimings, problem: PipelineProblem) -> float | None:
    """Of all devices with equal parts of the batch."""
    if problem.unlike is None:
        return work.data_parallel_ms(problem)
    shares = equal_shares(problem)
    return None if shares is None else shares.step_ms


def _changes(problem: PipelineProblem, work: StepTimings, single: float) -> tuple[PlanChange, ...]:
    """The best plans with other links and devices."""
    asked = [
        (f"links of {words} the bandwidth", _with_links(problem, times))
        for words, times in (("ten times", 10.0), ("a tenth of", 0.1))
    ]
    if problem.unlike is None:
        asked.append(("twice the devices", replace(problem, devices=2 * problem.devices)))
    if math.isfinite(problem.cores):
        asked.append(("a core for each process", replace(problem, cores=math.inf)))
    if problem.devices > 1 and problem.unlike is None:
        asked.append(("half the devices", replace(problem, devices=problem.devices // 2)))
    if math.isfinite(problem.memory_bytes):
        more = None if problem.unlike is None else problem.unlike.with_memory(2)
        asked.append(("twice the memory", replace(problem, memory_bytes=2 * problem.memory_bytes, unlike=more)))
    changes = []
    for name, changed_problem in asked:
        try:
            plans = best_plans(changed_problem, count=1)
        except NoPipelinePlan:
            continue
        parallel = _data_parallel_ms(work, changed_problem)
        best = min(
            (_reprice_plan(plan, changed_problem, single, parallel) for plan in plans), key=lambda plan: plan.step_ms
        )
        changes.append(PlanChange(name, best.step_ms, best))
    return tuple(changes)


def _with_links(problem: PipelineProblem, times: float) -> PipelineProblem:
    """The problem with links of `times` the bandwidth."""
    link = replace(problem.link, gbytes=times * problem.link.gbytes)
    unlike = None if problem.unlike is None else problem.unlike.with_links(times)
    return replace(problem, link=link, ring=_ring(problem, times), unlike=unlike)


def _limit_bandwidth(ring: Ring, gbytes: float) -> Ring:
    """The ring where links have less bandwidth than was measured: what takes time then is the slower of both."""
    held = ring.among(ring.workers, gbytes)
    link = replace(ring.link, gbytes=min(ring.link.gbytes, gbytes))
    return replace(held, link=link, ms_per_byte=max(ring.ms_per_byte, held.ms_per_byte))


def _ring(problem: PipelineProblem, times: float) -> Ring | None:
    ring = problem.ring
    return None if ring is None else replace(ring, ms_per_byte=ring.ms_per_byte / times)


def _slower(layer: PlannedLayer, times: float) -> PlannedLayer:
    names = [name for name in vars(layer) if name.endswith("_ms")]
    return replace(layer, **{name: times * getattr(layer, name) for name in names})


def slowest_link(described: DescribedDevices, spec: StepSpec) -> Link:
    """The lowest bandwidth and highest latency between any two devices.

    Raises:
        BadTrainingSpec: two of them have no link.
    """
    devices, links = described.machine.devices, described.machine.links
    if len(devices) < 2:
        return Link(("0", "1"), 1e3)
    joined_ = {frozenset(link.between) for link in links}
    if len(joined_) < len(devices) * (len(devices) - 1) // 2:
        names = [device.name for device in devices]
        missing = next((a, b) for a in names for b in names if a < b and frozenset((a, b)) not in joined_)
        raise BadTrainingSpec(
            path=spec.folder,
            reason=f"devices '{missing[0]}' and '{missing[1]}' have no link, and gradients go everywhere",
        )
    return Link(("0", "1"), min(link.gbytes for link in links), max(link.latency_us for link in links))
