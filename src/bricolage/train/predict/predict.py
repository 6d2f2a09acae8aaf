"""Predicts a training step as it is and as variants would run it; on request, it runs the variants too."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.costs.latency import Latency
from bricolage.costs.models.described import AtLeast, Scaled
from bricolage.device.collective import Ring
from bricolage.device.description import DescribedDevices, read_devices
from bricolage.device.device import Link
from bricolage.device.host import host
from bricolage.errors import BadDevices, BadVariant, TrainingWorkerFailed
from bricolage.frontends.torch_training import Lasting, trace_step
from bricolage.frontends.traced_step import TracedStep
from bricolage.measure.turns import time_in_turns
from bricolage.train.predict import predicted_pipeline
from bricolage.train.predict.exchange import GradientBucket, gradient_buckets, simulate_overlap
from bricolage.train.predict.fused_step import FusedRunning, fused_graph, fused_running
from bricolage.train.predict.operator_costs import QUANTILE, OperatorProfile, OperatorTimings, profile, time_phases
from bricolage.train.predict.prediction import Predicted, Prediction, Span, StepTimeline, by_layer, by_type
from bricolage.train.predict.recompute import Block, Recomputation, fit
from bricolage.train.predict.step_cost_model import StepCost, StepCostModel
from bricolage.train.predict.step_memory import add_run_memory, measured_peak
from bricolage.train.predict.variant import Variant, default_variants
from bricolage.train.predict.variant_step import Running, Runs, prepare_step, repeating_blocks
from bricolage.train.predict.workers import measure_ring, run_stages, run_steps
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import TrainingStep
from bricolage.work.cost import Setting
from bricolage.work.training_step import StepGraph

if TYPE_CHECKING:
    import torch

_ROUNDS = (3, 20)
_TURN = 3
"""Steps of one turn, after one that does not count."""


def predict_step(
    spec: StepSpec,
    variants: Sequence[Variant] | None = None,
    *,
    threads: int | None = None,
    seconds: float = 4.0,
    measure: bool = False,
    memory_limit: int | None = None,
    progress: Progress | None = None,
) -> Prediction:
    """Predicts a training step and changes of it.

    The step itself is run for `seconds` to see what its operators take; variants are not run, unless `measure` asks for it. Several
    workers are measured as such: what it costs that they run at once, and what exchanging takes.

    Args:
        spec: the training step.
        variants: what is asked about; by default mixed precision, a fused optimiser, twice the batch, recomputation, micro-batches
            and two workers.
        threads: of one worker; all cores by default, divided among workers.
        seconds: for the step as it is, and for each measurement that is asked for.
        measure: runs every variant, too, and says what it took.
        memory_limit: bytes that a step may take for tensors; blocks to recompute are chosen so that it does, at least time. By
            default what a described device has, if the step takes more.
        progress: told about variants.

    Raises:
        MissingLibrary: PyTorch is not installed.
        BadTrainingCode: a function that the spec names is not there, fails, or returns something else than it should.
        NotTraceable: the step's control flow rests on values of tensors.
        BadDevices, MissingFile: the spec names a device's file that cannot be used, or a device that does not run an operator.
        TrainingWorkerFailed: a process that takes part in a measurement ends.
    """
    torch = load_torch()
    shown = progress if progress is not None else Silent()
    asked = (Variant(), *(default_variants(spec) if variants is None else variants))
    shown.start("predicting (variants)", len(asked))
    work = StepPredictor(spec, threads or available_cores(), seconds, torch)
    kept = torch.get_num_threads()
    predictions = []
    chosen: Recomputation | None = None
    try:
        for variant in asked:
            predictions.append(work.both(variant, measure))
            shown.advance(1)
        limit = work.exceeded_memory(predictions[0]) if memory_limit is None else memory_limit
        if limit is not None:
            chosen = work.recomputation(limit)
            predictions.append(work.both(Variant(recompute=chosen.blocks), measure))
        shown.finish()
    finally:
        torch.set_num_threads(kept)
    return work.told(tuple(predictions), chosen)


class StepPredictor:
    """Graphs, profiles and links that several variants share."""

    def __init__(self, spec: StepSpec, threads: int, seconds: float, torch: object) -> None:
        self.spec, self.threads, self.seconds = spec, threads, seconds
        self._version = str(torch.__version__)  # type: ignore[attr-defined]
        self.described = spec.device != "here"
        self._devices = read_devices(Path(spec.folder, spec.device)) if self.described else None
        self._link: Link | None = None
        self._least_ms = 0.0
        self._models: dict[int, StepCostModel] = {}
        self._rings: dict[tuple[int, int], tuple[Ring, float]] = {}
        self._graphs: dict[Variant, TracedStep] = {}
        self._lanes: dict[Variant, FusedRunning] = {}
        self._base: tuple[StepGraph, tuple[float, ...]] | None = None

    def on(self, devices: DescribedDevices, link: Link | None, least_ms: float) -> StepPredictor:
        """The same on described devices with equal links and one profile; no operator takes less than `least_ms`."""
        there = copy.copy(self)
        there._devices, there.described, there._link, there._least_ms = devices, True, link, least_ms
        return there

    def both(self, variant: Variant, measure: bool) -> Predicted:
        """A prediction, with what the variant really takes, if that is asked for and can be measured."""
        prediction = self.predict(variant)
        if self._base is not None:
            prediction = replace(prediction, base_ms=sum(self._base[1]))
        runs = measure and not prediction.reason and not self.described
        return self.measured(variant, prediction) if runs else prediction

    def exceeded_memory(self, base: Predicted) -> int | None:
        """Bytes that the described device has, where the step takes more; None where it fits, or that is not known."""
        memory = 0 if self._devices is None else self._devices.machine.devices[0].memory_bytes
        return memory if 0 < memory < base.peak_bytes else None

    def recomputation(self, limit: int) -> Recomputation:
        """The blocks to recompute."""
        assert self._base is not None
        graph, ms = self._base
        step = prepare_step(self.spec, Variant())
        under = {name: (name, f"{name}.") for name in repeating_blocks(step.module)}
        blocks = []
        for name, (path, inner) in under.items():
            inside = [layer == path or layer.startswith(inner) for layer in graph.layers]
            forward = sum(
                cost for cost, phase, here in zip(ms, graph.phases, inside, strict=True) if here and phase == "forward"
            )
            kept = sum(
                storage.bytes
                for storage in graph.storages
                if storage.kind == "activations" and (storage.layer == path or storage.layer.startswith(inner))
            )
            if kept:
                blocks.append(Block(name, forward, kept))
        alone = self._model(self._threads(Variant())).alone

        def peak(names: tuple[str, ...]) -> int:
            return add_run_memory(self.graph(step, Variant(recompute=names)), alone).peak()

        return fit(blocks, limit, peak)

    def predict(self, variant: Variant) -> Predicted:
        """One variant; with a reason where it cannot run."""
        try:
            return self._predict(variant)
        except BadVariant as error:
            return Predicted(variant.name, reason=str(error.facts["reason"]))

    def _predict(self, variant: Variant) -> Predicted:
        step = prepare_step(self.spec, variant)
        ring, gbytes, contention = self._exchange(variant)
        cost_model = self._model(self._threads(variant))
        traced = self.graph(step, variant) if variant.models == 1 else fused_graph(self._fuse_step(variant), variant)
        graph = add_run_memory(traced, cost_model.alone)
        cost_model.alone.measure(graph.calls, graph.signatures)
        cost = self._cost(graph, cost_model, self._threads(variant))
        ms = tuple(operator * contention for operator in cost.operators)
        if variant.stages > 1:
            assert ring is not None
            pipeline_prediction = predicted_pipeline.predict_pipeline(
                graph, ms, repeating_blocks(step.module), variant, ring.among(variant.stages, gbytes)
            )
            return replace(
                pipeline_prediction,
                batch_size=variant.batch_size or self.spec.batch_size,
                operators=len(graph.work),
                known=cost.sources.get("measured", 0),
                alone=cost.sources.get("composed", 0),
            )
        sending = gradient_buckets(graph.gradients, variant.bucket_mb) if ring is not None else []
        size = sum(bucket.bytes for bucket in sending)
        if variant == Variant():
            self._base = graph, ms
        course, waiting = _course(graph, ms, sending, ring.among(variant.workers, gbytes) if ring else None)
        phases: dict[str, float] = {}
        for op_ms, phase in zip(ms, graph.phases, strict=True):
            phases[phase] = phases.get(phase, 0.0) + op_ms
        if sending:
            phases["exchange"] = waiting
        low, high = (scale * contention + sum(phases.values()) - sum(ms) for scale in (cost.low_ms, cost.high_ms))
        at, most = max(graph.memory(), key=itemgetter(1))
        kinds = graph.kinds(at)
        if size:
            kinds["gradients"] = kinds.get("gradients", 0) + size
        return Predicted(
            variant.name,
            (variant.batch_size or self.spec.batch_size) * variant.workers * variant.models,
            ms=sum(phases.values()),
            phases=phases,
            peak_bytes=most + size,
            memory=kinds,
            sent_bytes=2 * (variant.workers - 1) * size // variant.workers,
            operators=len(graph.work),
            known=cost.sources.get("measured", 0),
            alone=cost.sources.get("composed", 0),
            low_ms=low,
            high_ms=high,
            course=course,
        )

    def measured(self, variant: Variant, predicted: Predicted) -> Predicted:
        """The prediction with what the variant really takes."""
        if _processes(variant) > 1:
            if variant.gbytes is not None or _processes(variant) > available_cores():
                return predicted  # not what is here
            before = self._time_interleaved([Variant()], self.seconds / 2)[0]
            threads, peak = self._threads(variant), None
            try:
                if variant.stages > 1:
                    times, peak = run_stages(self.spec, variant, predicted.begins, threads, self.seconds)
                else:
                    times = run_steps(self.spec, variant, threads, self.seconds)
            except TrainingWorkerFailed as error:
                return replace(predicted, not_run=str(error.facts["reason"]))
            base = before + self._time_interleaved([Variant()], self.seconds / 2)[0]
            return replace(_add_measurements(predicted, times, base), measured_peak_bytes=peak)
        try:
            base, times = self._time_interleaved([Variant(), variant], self.seconds)
            peak = measured_peak(self._running(variant))
        except RuntimeError as error:  # PyTorch has not each operator in each type on each processor
            line = next(iter(str(error).splitlines()), type(error).__name__)
            return replace(predicted, not_run=line.rstrip("."))
        return replace(_add_measurements(predicted, times, base), measured_peak_bytes=peak)

    def _time_interleaved(self, variants: Sequence[Variant], seconds: float) -> list[list[float]]:
        """Milliseconds of steps of each, some at a time, in turns."""
        import torch

        def contestant(variant: Variant) -> Callable[[], Sequence[float]]:
            running, threads = self._running(variant), self._threads(variant)

            def turn() -> Sequence[float]:
                torch.set_num_threads(threads)
                running.run()
                return [sum(time_phases(running).values()) for _ in range(_TURN)]

            return turn

        contestants = {str(number): contestant(candidate) for number, candidate in enumerate(variants)}
        turns = time_in_turns(contestants, _ROUNDS[1], least=_ROUNDS[0], seconds=seconds * len(variants))
        return [[ms for samples in turns.samples(name) for ms in samples] for name in contestants]

    def told(self, found: tuple[Predicted, ...], chosen: Recomputation | None) -> Prediction:
        """All of it."""
        assert self._base is not None
        graph, ms = self._base
        device = Path(self.spec.device).name if self.described else str(host())
        ring = next((measured_ring for measured_ring, _ in self._rings.values()), None)
        return Prediction(
            self.spec.module,
            device,
            threads=self.threads,
            torch=self._version,
            predicted=found,
            operators=by_type(graph, ms),
            layers=by_layer(graph, ms),
            link=ring,
            recomputation=chosen,
        )

    def _running(self, variant: Variant) -> Runs:
        gc.collect()
        if variant.models > 1:
            return self._fuse_step(variant)
        step = prepare_step(self.spec, variant)
        return Running(step.module, [*step.inputs, *step.targets], step, variant)

    def _fuse_step(self, variant: Variant) -> FusedRunning:
        """What is predicted and what is run compute operators in the same ways: those chosen when it is made ready."""
        if variant not in self._lanes:
            import torch

            torch.set_num_threads(self._threads(variant))
            spec = self.spec if variant.batch_size is None else replace(self.spec, batch_size=variant.batch_size)
            self._lanes[variant] = fused_running(spec, prepare_step(self.spec, variant), variant)
        return self._lanes[variant]

    def graph(self, step: TrainingStep, variant: Variant) -> TracedStep:
        """What one process runs of it, if it is not divided into stages: the same however many there are."""

        def start(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Running, Lasting]:
            running = Running(module, tensors, step, variant)
            return running, running.lasting

        alike = variant.of_one_process()
        if alike not in self._graphs:
            self._graphs[alike] = trace_step(step.module, [*step.inputs, *step.targets], start)
        return self._graphs[alike]

    def _model(self, threads: int) -> StepCostModel:
        if threads not in self._models:
            step = prepare_step(self.spec, Variant())
            graph = self.graph(step, Variant())
            running = Running(copy.deepcopy(step.module), [*step.inputs, *step.targets], step, Variant())
            seen: OperatorProfile = profile(running, graph, threads, self.seconds)
            self._models[threads] = StepCostModel(graph, seen, OperatorTimings(threads))
        return self._models[threads]

    def _threads(self, variant: Variant) -> int:
        if variant.threads is not None:
            return variant.threads
        if self._link is not None:
            return self.threads  # each worker has a device of its own
        count = _processes(variant)
        return max(1, self.threads // count) if count <= available_cores() else self.threads

    def _cost(self, graph: StepGraph, known: StepCostModel, threads: int) -> StepCost:
        here = StepCost.of(graph, known, Setting(host(), threads))
        if self._devices is None:
            return here
        scaled = AtLeast(Scaled(known, self._devices.times, host(), (threads,)), self._least_ms)
        try:
            there = StepCost.of(graph, scaled, Setting(self._devices.machine.devices[0], threads))
            return replace(there, sources=here.sources)
        except ValueError as error:
            raise BadDevices(path=self.spec.device, reason=error) from error

    def _exchange(self, variant: Variant) -> tuple[Ring | None, float | None, float]:
        """The ring that was measured, another bandwidth, and how much longer steps take because workers run at once."""
        if _processes(variant) == 1:
            return None, None, 1.0
        if self._link is not None:
            return Ring.of(self._link), None, 1.0
        here = _processes(variant) <= available_cores() and not self.described
        gbytes = variant.gbytes
        if gbytes is None and self._devices is not None and self._devices.machine.links:
            gbytes = self._devices.machine.links[0].gbytes
        if not here and gbytes is None:
            raise BadVariant(
                variant=variant.name,
                reason="this machine has fewer cores than workers or stages: give the bandwidth of their links, bandwidth=...",
            )
        count = _processes(variant) if here else min(2, available_cores())
        if count < 2:
            raise BadVariant(variant=variant.name, reason="exchanging is measured between two cores; here is one")
        key = (count, self._threads(variant) if here else 1)
        if key not in self._rings:
            self._rings[key] = measure_ring(self.spec, *key, self.seconds)
        ring, contention = self._rings[key]
        return ring, gbytes, contention if here else 1.0


def _processes(variant: Variant) -> int:
    return max(variant.workers, variant.stages)


def _add_measurements(predicted: Predicted, times: Sequence[float], base: Sequence[float]) -> Predicted:
    import numpy as np

    ratio = float(np.quantile(times, QUANTILE) / np.quantile(base, QUANTILE))
    return replace(predicted, measured=Latency.of(times), measured_base=Latency.of(base), measured_ratio=ratio)


def _course(
    graph: StepGraph, ms: Sequence[float], sending: Sequence[GradientBucket], ring: Ring | None
) -> tuple[StepTimeline, float]:
    """What happens when, and what the update waits for gradients."""
    first = next((number for number, phase in enumerate(graph.phases) if phase == "update"), len(ms))
    ends, sent = simulate_overlap(ms[:first], sending, ring)
    computed = sum(ms[:first])
    arrived = max([ends[-1] if ends else 0.0, *(transfer.end_ms for transfer in sent)])
    if ring is not None:  # into buckets, and back
        arrived += 2 * ring.copy_ms_per_byte * sum(bucket.bytes for bucket in sending)
    now = arrived
    for op_ms in ms[first:]:
        now += op_ms
        ends.append(now)
    starts = [end - op_ms for end, op_ms in zip(ends, ms, strict=True)]
    spans: list[Span] = []
    for start, end, phase, layer in zip(starts, ends, graph.phases, graph.layers, strict=True):
        if spans and spans[-1].phase == phase and spans[-1].layer == layer:
            spans[-1] = replace(spans[-1], end_ms=end)
        else:
            spans.append(Span(phase, layer, start, end))
    memory = tuple((starts[at], size) for at, size in graph.memory())
    return StepTimeline(tuple(spans), tuple(sent), memory), arrived - computed
