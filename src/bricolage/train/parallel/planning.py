"""Makes a plan of a training step: traces and times it, measures what links are here, and searches (`train/plan/pipelines.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from bricolage._version import __version__
from bricolage.device.collective import Ring
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Device, Link
from bricolage.device.host import host
from bricolage.errors import BadDevices, BadPlan, BadTrainingSpec, NoPipelinePlan
from bricolage.frontends.torch_training import Lasting, trace_step
from bricolage.frontends.traced_step import TracedStep
from bricolage.options import available_cores
from bricolage.perf.described import Scaled
from bricolage.progress import Progress, Silent
from bricolage.train.parallel.division import divide_module
from bricolage.train.plan.document import FORMAT, PlanChange, PlanDevices, PlanOrigin, TrainingPlan, Way
from bricolage.train.plan.layers import joined, planned_layers
from bricolage.train.plan.pipelines import PLANNED, best_plans
from bricolage.train.plan.problem import PipelinePlan, PipelineProblem, PlannedLayer, divisors
from bricolage.train.predict.cost_model import StepCost, StepCostModel
from bricolage.train.predict.exchange import buckets, overlapped
from bricolage.train.predict.operators import OperatorTimings, profile
from bricolage.train.predict.pipeline import StepRow
from bricolage.train.predict.running import Running, blocks, prepared
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.workers import measure_ring
from bricolage.train.spec import StepSpec
from bricolage.work.cost import CostModel, Setting

_BUCKET_MB = 25.0
"""DistributedDataParallel's own default."""
_SIZES = 2
"""Sizes of a micro-batch that are timed."""


@dataclass(frozen=True)
class _Timed:
    """A step as one process runs it: milliseconds of each operator."""

    graph: TracedStep
    ms: tuple[float, ...]


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
        raise BadTrainingSpec(
            path=spec.folder, reason="it names no devices: `[devices]` with `here = 4`, or tables of them"
        )
    shown = progress if progress is not None else Silent()
    described = spec.devices.described() if spec.devices.here is None else None
    number = spec.devices.here or len(described.machine.devices if described else ())
    link = None if described is None else slowest_link(described, spec)
    work = _Planner(spec, number, described, seconds)
    shown.start("timing the step", 3 + len(work.sizes))
    threads = torch.get_num_threads()
    try:
        single, alone = work.alone()
        shown.advance(1)
        layers, notes = work.layers(shown)
        if described is None:
            ring, crowding = measure_ring(spec, number, work.threads, seconds) if number > 1 else (None, 1.0)
            crowding = max(1.0, crowding * min(1.0, work.cores / number))
            layers = tuple(_slower(one, crowding) for one in layers)
            if ring is not None and spec.devices.gbytes is not None:
                ring = _held(ring, spec.devices.gbytes)
            link = ring.link if ring is not None else Link(("0", "1"), 1e3)
        else:
            ring, crowding = None, 1.0
        shown.advance(1)
        assert link is not None
        problem = PipelineProblem(
            layers,
            number,
            spec.batch_size,
            link,
            work.memory or math.inf,
            cores=work.cores if described is None else math.inf,
            beside=True,
            ring=ring,
        )
        parallel = work.data_parallel_ms(problem, crowding)
        shown.finish()
    finally:
        torch.set_num_threads(threads)
    found = best_plans(problem, schedules, count=count)
    return _document(spec, work, problem, found, (single, alone), parallel, notes)


def _document(
    spec: StepSpec,
    work: _Planner,
    problem: PipelineProblem,
    found: Sequence[PipelinePlan],
    alone: tuple[float, int],
    parallel: float | None,
    notes: tuple[str, ...],
) -> TrainingPlan:
    devices = PlanDevices(
        problem.devices,
        work.described is None,
        "cpu" if work.described is None else work.described.machine.devices[0].kind,
        tuple(f"rank {one}" for one in range(problem.devices))
        if work.described is None
        else tuple(one.name for one in work.described.machine.devices),
        problem.link,
        int(problem.memory_bytes) if math.isfinite(problem.memory_bytes) else 0,
        0 if math.isinf(problem.cores) else int(problem.cores),
    )
    here = host()
    single, single_threads = alone
    # What one process and DistributedDataParallel take was found from steps of their own; that of the planner is rougher.
    priced = [_priced(one, problem, single, parallel) for one in found]
    priced.sort(key=lambda one: (one.step_ms, one.peak_bytes))
    best = priced[0]
    way: Way = "pipeline" if best.devices > 1 else "data parallel" if best.replicas > 1 else "single process"
    return TrainingPlan(
        FORMAT,
        PlanOrigin(__version__, str(torch.__version__), str(here), here.fingerprint(), work.threads),
        spec,
        devices,
        problem.layers,
        problem.ring,
        problem.beside,
        best,
        way,
        tuple(priced[1:]),
        single,
        single_threads,
        parallel,
        _changes(problem),
        notes,
    )


def _priced(one: PipelinePlan, problem: PipelineProblem, single: float, parallel: float | None) -> PipelinePlan:
    if one.devices > 1:
        return one
    if one.replicas == 1:
        return replace(one, step_ms=single, micro_batches=1, recompute=False, exchange_ms=0.0)
    whole = one.replicas == problem.devices and parallel is not None and not one.recompute
    return replace(one, step_ms=parallel, micro_batches=1) if whole and parallel is not None else one


def _changes(problem: PipelineProblem) -> tuple[PlanChange, ...]:
    """The best plans with other links and devices."""
    asked = [
        (
            "links of ten times the bandwidth",
            replace(problem, link=_faster(problem.link, 10.0), ring=_ring(problem, 10.0)),
        )
    ]
    asked.append(
        (
            "links of a tenth of the bandwidth",
            replace(problem, link=_faster(problem.link, 0.1), ring=_ring(problem, 0.1)),
        )
    )
    asked.append(("twice the devices", replace(problem, devices=2 * problem.devices)))
    if math.isfinite(problem.cores):
        asked.append(("a core for each process", replace(problem, cores=math.inf)))
    if problem.devices > 1:
        asked.append(("half the devices", replace(problem, devices=problem.devices // 2)))
    if math.isfinite(problem.memory_bytes):
        asked.append(("twice the memory", replace(problem, memory_bytes=2 * problem.memory_bytes)))
    found = []
    for name, one in asked:
        try:
            best = best_plans(one, count=1)[0]
        except NoPipelinePlan:
            continue
        found.append(PlanChange(name, best.step_ms, best))
    return tuple(found)


def _faster(link: Link, times: float) -> Link:
    return replace(link, gbytes=link.gbytes * times)


def _held(ring: Ring, gbytes: float) -> Ring:
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
    joined_ = {frozenset(one.between) for one in links}
    if len(joined_) < len(devices) * (len(devices) - 1) // 2:
        names = [one.name for one in devices]
        missing = next((a, b) for a in names for b in names if a < b and frozenset((a, b)) not in joined_)
        raise BadTrainingSpec(
            path=spec.folder,
            reason=f"devices '{missing[0]}' and '{missing[1]}' have no link, and gradients go everywhere",
        )
    return Link(("0", "1"), min(one.gbytes for one in links), max(one.latency_us for one in links))


class _Planner:
    """Steps of one spec, traced and timed."""

    def __init__(self, spec: StepSpec, devices: int, described: DescribedDevices | None, seconds: float) -> None:
        self.spec, self.devices, self.described, self.seconds = spec, devices, described, seconds
        self.cores = available_cores()
        self.threads = max(1, self.cores // devices) if described is None else self._described_threads()
        most = max(1, spec.batch_size // 2)
        chosen = {one for one in divisors(spec.batch_size) if one <= most} or {1}
        self.sizes = sorted({max(chosen), min(chosen, key=lambda one: abs(one - spec.batch_size / 8))})[-_SIZES:]
        """Samples of the micro-batches that are timed."""

    @property
    def memory(self) -> int:
        """Bytes of each device; 0 where that is not known."""
        if self.described is None:
            return host().memory_bytes // self.devices
        return min(one.memory_bytes for one in self.described.machine.devices)

    def _described_threads(self) -> int:
        assert self.described is not None
        counts = [one.threads for one in self.described.machine.devices if one.kind == "cpu"]
        return min([*counts, self.cores])

    def timed(self, variant: Variant, threads: int) -> _Timed:
        """A step that is run here, on threads; on a described device its times there."""
        step = prepared(self.spec, variant)

        def start(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Running, Lasting]:
            running = Running(module, tensors, step, variant)
            return running, running.lasting

        tensors = [*step.inputs, *step.targets]
        graph = trace_step(step.module, tensors, start)
        seen = profile(Running(step.module, tensors, step, variant), graph, threads, self.seconds)
        # All operators were seen in their places: none has to be timed alone.
        model: CostModel = StepCostModel(graph, seen, OperatorTimings(threads, dict.fromkeys(graph.signatures)))
        if self.described is None:
            return _Timed(graph, StepCost.of(graph, model, Setting(host(), threads)).operators)
        scaled = Scaled(model, self.described.times, host(), (threads,))
        try:
            costs = [
                StepCost.of(graph, scaled, Setting(one, min(threads, one.threads))).operators
                for one in _unlike(self.described)
            ]
        except ValueError as error:
            raise BadDevices(path=self.spec.folder, reason=error) from error
        return _Timed(graph, max(costs, key=sum))

    def alone(self) -> tuple[float, int]:
        """Milliseconds of the step in one process, and at how many threads: all, unless fewer are faster."""
        if self.described is not None:
            return sum(self.timed(Variant(), self.threads).ms), self.threads
        counts = sorted({self.cores, self.threads})
        return min((sum(self.timed(Variant(), one).ms), one) for one in counts)

    def layers(self, shown: Progress) -> tuple[tuple[PlannedLayer, ...], tuple[str, ...]]:
        """The parts of the module, with what could not be divided."""
        rows: dict[int, StepRow] = {}
        names = blocks(prepared(self.spec, Variant()).module)
        for size in self.sizes:
            variant = Variant(batch_size=2 * size, micro_batches=2)
            one = self.timed(variant, self.threads)
            rows[size] = StepRow(one.graph, one.ms, names, 2)
            shown.advance(1)
        row = rows[self.sizes[-1]]
        layers = planned_layers(rows)
        try:
            handed, merged = self._divisible(row.names[1:])
        except BadPlan as error:
            return joined(layers, 0, len(layers)), (f"no pipelines: {error.facts['reason']}",)
        layers = planned_layers(rows, handed)
        notes = []
        if merged is not None:
            name, begin, end = merged
            layers = joined(layers, begin, end + 1)
            notes.append(f"no stage begins between two uses of the weights '{name}'")
        return layers, tuple(notes)

    def _divisible(self, begins: Sequence[str]) -> tuple[list[float], tuple[str, int, int] | None]:
        """Bytes that parts hand on for a sample; and weights that two parts share, with these."""
        step = prepared(self.spec, Variant())
        size = self.sizes[0]
        found = divide_module(step, begins, tuple(one[:size] for one in step.inputs), sharing=True)
        return [sum(one.bytes for one in some) / size for some in found.handed], found.shared

    def data_parallel_ms(self, problem: PipelineProblem, crowding: float) -> float | None:
        """By DistributedDataParallel on all devices: buckets are exchanged while gradients are computed."""
        workers = self.devices
        if workers < 2 or self.spec.batch_size % workers:
            return None
        one = self.timed(Variant(batch_size=self.spec.batch_size // workers), self.threads)
        shared = crowding * max(1.0, workers / problem.cores)
        ms = [shared * some for some in one.ms]
        ring = problem.ring if problem.ring is not None else _ring_of(problem)
        sending = buckets(one.graph.gradients, _BUCKET_MB)
        first = next((number for number, phase in enumerate(one.graph.phases) if phase == "update"), len(ms))
        # Where processes share cores, exchanging has none of its own: the factors were measured together.
        ends, sent = overlapped(ms[:first], sending, ring.among(workers, None))
        arrived = max([ends[-1] if ends else 0.0, *(some.end_ms for some in sent)])
        arrived += 2 * ring.copy_ms_per_byte * sum(some.bytes for some in sending)
        return arrived + sum(ms[first:])


def _ring_of(problem: PipelineProblem) -> Ring:
    """A ring of the described links."""
    workers, link = problem.devices, problem.link
    each = problem.all_reduce_ms(1e6, workers) - problem.all_reduce_ms(0.0, workers)
    return Ring(workers, link, problem.all_reduce_ms(0.0, workers), each / 1e6)


def _unlike(described: DescribedDevices) -> Sequence[Device]:
    """One of each kind of device."""
    kinds = {str((replace(one, name=""), described.times[one.name])): one for one in described.machine.devices}
    return list(kinds.values())
