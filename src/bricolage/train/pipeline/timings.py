"""What the parts of a training step take, timed here: operators in their places, and parts as stages run them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from bricolage.base.options import available_cores
from bricolage.base.progress import Progress
from bricolage.costs.models.described import Scaled
from bricolage.device.collective import Ring
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Device
from bricolage.device.host import host
from bricolage.errors import BadDevices, BadPlan
from bricolage.frontends.traced_step import TracedStep
from bricolage.train.pipeline.layers import PartTimes, join_layers, planned_layers
from bricolage.train.pipeline.module_stages import Division, batch_names, divide_module
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer, divisors
from bricolage.train.predict.exchange import gradient_buckets, simulate_overlap
from bricolage.train.predict.operator_costs import QUANTILE, goes_on
from bricolage.train.predict.predicted_pipeline import StepRow
from bricolage.train.predict.profiled_step import profile_step
from bricolage.train.predict.step_cost_model import StepCost
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import prepare_step, repeating_blocks
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import Tensors, TrainingStep, users_code
from bricolage.work.cost import CostModel, Setting

_BUCKET_MB = 25.0
"""DistributedDataParallel's own default."""
_FEW_DEVICES, _PARTS = 4, 8
"""On more devices than these the largest micro-batch that is timed is such a part of the batch."""
_ROUNDS = (3, 40)
"""Of a step, and of its stages, at least and at most."""


@dataclass(frozen=True)
class _Timed:
    """A step as one process runs it: milliseconds of each operator here, and on the devices that are planned for."""

    graph: TracedStep
    here: tuple[float, ...]
    ms: tuple[float, ...]
    kinds: tuple[tuple[float, ...], ...] = ()
    """The same on each kind of described device, in the order of `unlike_kinds`."""


class StepTimings:
    """Steps of one spec, traced and timed."""

    def __init__(self, spec: StepSpec, devices: int, described: DescribedDevices | None, seconds: float) -> None:
        self.spec, self.devices, self.described, self.seconds = spec, devices, described, seconds
        self.cores = available_cores()
        self.threads = max(1, self.cores // devices) if described is None else self._described_threads(described)
        """Of each process."""
        # Many devices run small parts of the batch: large ones need not be timed.
        most = max(1, spec.batch_size // (2 if devices <= _FEW_DEVICES else _PARTS))
        chosen = {divisor for divisor in divisors(spec.batch_size) if divisor <= most} or {1}
        self.sizes = sorted({max(chosen), min(chosen, key=lambda size: abs(size - most / 4))})
        """Samples of the micro-batches that are timed."""
        self.crowding = 1.0
        """A factor of all times where processes run at once, beyond that they share cores."""
        self.scale = 1.0
        """Of the planned devices' times by those here; after `layers`."""
        self._rows: dict[int, StepRow] = {}
        self._kinds = () if described is None else tuple(unlike_kinds(described))
        self.kind_layers: list[tuple[PlannedLayer, ...]] = []
        """By kind of described device its layers, in the order of `unlike_kinds`; after `layers`."""

    @property
    def memory(self) -> int:
        """Bytes of each device; 0 where that is not known."""
        if self.described is None:
            return host().memory_bytes // self.devices
        return min(device.memory_bytes for device in self.described.machine.devices)

    def _described_threads(self, described: DescribedDevices) -> int:
        counts = [device.threads for device in described.machine.devices if device.kind == "cpu"]
        return min([*counts, self.cores])

    def _time_step(self, variant: Variant, counts: Sequence[int]) -> list[_Timed]:
        """A step that is run here, on numbers of threads."""
        graph, models = profile_step(self.spec, variant, counts, self.seconds, _ROUNDS[0])
        timings = []
        for threads, model in models.items():
            here = StepCost.of(graph, model, Setting(host(), threads)).operators
            timings.append(_Timed(graph, here, here))
        return timings

    def _time_parts(self, size: int) -> _Timed:
        """A step of two micro-batches, and what it takes on the devices that are planned for."""
        variant = Variant(batch_size=2 * size, micro_batches=2)
        if self.described is None:
            return self._time_step(variant, [self.threads])[0]
        counts = sorted({self.threads, *(self._threads_of(device) for device in self._kinds)})
        graph, models = profile_step(self.spec, variant, counts, self.seconds, _ROUNDS[0])
        here = StepCost.of(graph, models[self.threads], Setting(host(), self.threads)).operators
        kinds = tuple(self._there(graph, models, device) for device in self._kinds)
        return _Timed(graph, here, max(kinds, key=sum), kinds)

    def _threads_of(self, device: Device) -> int:
        """Of this machine, with which a described device is compared."""
        return min(device.threads, self.cores) if device.kind == "cpu" else self.threads

    def _there(self, graph: TracedStep, models: Mapping[int, CostModel], device: Device) -> tuple[float, ...]:
        """On a described device."""
        assert self.described is not None
        threads = self._threads_of(device)
        scaled = Scaled(models[threads], self.described.times, host(), (threads,))
        try:
            return StepCost.of(graph, scaled, Setting(device, min(threads, device.threads))).operators
        except ValueError as error:
            raise BadDevices(path=self.spec.folder, reason=error) from error

    def alone(self) -> tuple[float, int]:
        """Milliseconds of the step in one process, and at how many threads: all, unless fewer are faster.

        It is run, but for described devices: there it is what its parts take (`layers`) for all samples, as for all other plans.
        """
        if self.described is not None:
            return self.passes_ms(self.spec.batch_size) + sum(layer.update_ms for layer in self.whole), self.threads
        counts = sorted({self.cores, self.threads})
        timings = self._time_step(Variant(), counts)
        return min((sum(timing.ms), count) for timing, count in zip(timings, counts, strict=True))

    def layers(self, shown: Progress) -> tuple[tuple[PlannedLayer, ...], tuple[str, ...]]:
        """The parts of the module, as stages run them, with what could not be divided."""
        names = repeating_blocks(prepare_step(self.spec, Variant()).module)
        factors: dict[int, list[PartTimes]] = {}
        kinds: list[dict[int, StepRow]] = [{} for _ in self._kinds]
        division: Division | None = None
        refused = ""
        for size in self.sizes:
            timing = self._time_parts(size)
            self._rows[size] = row = StepRow(timing.graph, timing.ms, names, 2)
            here = StepRow(timing.graph, timing.here, names, 2)
            for mine, ms in zip(kinds, timing.kinds, strict=True):
                mine[size] = StepRow(timing.graph, ms, names, 2)
            self.scale = sum(timing.ms) / max(sum(timing.here), 1e-9)
            if not refused:
                try:
                    division, parts = self._parts(row.names[1:], size)
                except BadPlan as error:
                    refused = f"no pipelines: {error.facts['reason']}"
                    factors = {}
                else:
                    factors[size] = [_by(*times) for times in zip(parts, here.forward, here.backward, strict=True)]
            shown.advance(1)
        joined = (0, self._rows[self.sizes[-1]].count)
        handed: list[float] | None = None
        notes: tuple[str, ...] = (refused,)
        if not refused and division is not None:
            size = self.sizes[-1]
            handed = [sum(message.bytes for message in messages) / size for messages in division.handed]
            joined, notes = (0, 0), ()
            if division.shared is not None:
                name, begin, end = division.shared
                joined, notes = (begin, end + 1), (f"no stage begins between two uses of the weights '{name}'",)

        def layers_of(rows: Mapping[int, StepRow]) -> tuple[PlannedLayer, ...]:
            layers = planned_layers(rows, handed, factors or None)
            return join_layers(layers, *joined) if joined[1] else layers

        self.kind_layers = [layers_of(rows) for rows in kinds]
        return layers_of(self._rows), notes

    def _parts(self, begins: Sequence[str], size: int) -> tuple[Division, list[PartTimes]]:
        """The module in as many stages as can be, and what each takes for a micro-batch."""
        step = prepare_step(self.spec, Variant())
        inputs, targets = (tuple(tensor[:size] for tensor in tensors) for tensors in (step.inputs, step.targets))
        division = divide_module(step, begins, inputs, sharing=True)
        torch.set_num_threads(self.threads)
        return division, _stage_times(division, step, inputs, targets, self.seconds)

    @cached_property
    def whole(self) -> tuple[PlannedLayer, ...]:
        """The parts of the module as PyTorch runs it whole, not in stages; after `layers`, which times them."""
        return planned_layers(self._rows)

    def passes_ms(self, samples: int) -> float:
        """Milliseconds of forward and backward pass of the whole module, in one process that no other slows."""
        return sum(
            samples * (layer.forward_ms + layer.input_gradient_ms + layer.weight_gradient_ms)
            + layer.forward_start_ms
            + layer.backward_start_ms
            for layer in self.whole
        )

    def crowd(self, problem: PipelineProblem) -> float:
        """The factor by which computing takes longer because all processes run at once."""
        return self.crowding * max(1.0, problem.devices / problem.cores)

    def data_parallel_ms(self, problem: PipelineProblem) -> float | None:
        """By DistributedDataParallel on all devices: buckets are exchanged while gradients are computed."""
        workers = problem.devices
        if workers < 2 or self.spec.batch_size % workers:
            return None
        samples = self.spec.batch_size // workers
        size = min(self.sizes, key=lambda timed_size: abs(timed_size - samples))
        graph, ms, numbers = self._rows[size].second
        crowd = self.crowd(problem)
        scale = crowd * self.passes_ms(samples) / (sum(ms[number] for number in numbers) or 1.0)
        ring = problem.ring if problem.ring is not None else _ring_of(problem)
        place = {number: index for index, number in enumerate(numbers)}
        ready = [replace(gradient, ready=place.get(gradient.ready, len(numbers) - 1)) for gradient in graph.gradients]
        sending = gradient_buckets(ready, _BUCKET_MB)
        ends, sent = simulate_overlap([scale * ms[number] for number in numbers], sending, ring.among(workers, None))
        arrived = max([ends[-1] if ends else 0.0, *(transfer.end_ms for transfer in sent)])
        arrived += 2 * ring.copy_ms_per_byte * sum(bucket.bytes for bucket in sending)
        return arrived + crowd * sum(layer.update_ms for layer in self.whole)


def _by(part: PartTimes, forward: float, backward: float) -> PartTimes:
    """What a part took as a stage by what its operators took; 1 where it has none."""
    return PartTimes(
        part.forward / forward if forward > 0.0 else 1.0,
        part.backward / backward if backward > 0.0 else 1.0,
        part.divided,
    )


def _stage_times(
    division: Division, step: TrainingStep, inputs: Tensors, targets: Tensors, seconds: float
) -> list[PartTimes]:
    """Milliseconds of the passes of each stage, one after another in this process."""
    times: list[list[tuple[float, float, float]]] = []
    end = time.perf_counter() + seconds
    with users_code("the module, divided into stages"):
        while len(times) < 2 or goes_on(len(times) - 1, end, seconds, _ROUNDS):
            forward, backward = _one_round(division, step, inputs, targets, divided=False)
            _, divided = _one_round(division, step, inputs, targets, divided=True)
            times.append(list(zip(forward, backward, divided, strict=True)))
    table = np.quantile(np.array(times[1:]), QUANTILE, axis=0)
    return [
        PartTimes(float(forward), float(backward), max(1.0, float(both / max(backward, 1e-6))))
        for forward, backward, both in table
    ]


def _one_round(
    division: Division, step: TrainingStep, inputs: Tensors, targets: Tensors, *, divided: bool
) -> tuple[list[float], list[float]]:
    """Milliseconds of the forward and backward passes; `divided`: the gradients of inputs first, then those of weights, by what
    PyTorch's runtime computes them with."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    given: tuple[torch.Tensor, ...] = ()
    kept: list[tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]] = []
    forward: list[float] = []
    for stage in division.stages:
        begun = time.perf_counter()
        outputs = stage(*given, **batch_names(inputs))
        if stage is division.stages[-1]:
            outputs = step.loss(outputs, *targets)
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        forward.append((time.perf_counter() - begun) * 1e3)
        kept.append((given, several))
        given = tuple(output.detach().requires_grad_(output.requires_grad) for output in several)
    backward: list[float] = []
    gradients: list[torch.Tensor] | None = None
    for stage, (came, several) in zip(reversed(division.stages), reversed(kept), strict=True):
        roots = [output for output in several if output.requires_grad]
        wanted = [tensor for tensor in came if tensor.requires_grad]
        begun = time.perf_counter()
        if divided and wanted:
            input_gradients, left = stage_backward_input(roots, gradients, wanted, stage.parameters())
            stage_backward_weight(stage.parameters(), left)
            gradients = [
                torch.zeros_like(tensor) if gradient is None else gradient
                for tensor, gradient in zip(wanted, input_gradients, strict=True)
            ]
        else:
            torch.autograd.backward(roots, gradients)
            gradients = [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in wanted]
        backward.append((time.perf_counter() - begun) * 1e3)
    return forward, backward[::-1]


def _ring_of(problem: PipelineProblem) -> Ring:
    """A ring of the described links."""
    workers, link = problem.devices, problem.link
    each = problem.all_reduce_ms(1e6, workers) - problem.all_reduce_ms(0.0, workers)
    return Ring(workers, link, problem.all_reduce_ms(0.0, workers), each / 1e6)


def kind_words(device: Device, described: DescribedDevices) -> str:
    """The same for devices that differ in their name and memory alone."""
    return str((replace(device, name="", memory_bytes=0), described.times[device.name]))


def unlike_kinds(described: DescribedDevices) -> Sequence[Device]:
    """One of each kind of device."""
    kinds = {kind_words(device, described): device for device in described.machine.devices}
    return list(kinds.values())
