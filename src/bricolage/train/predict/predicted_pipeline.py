"""A training step divided into stages, each on a device of its own, through which micro-batches go one behind another.

The schedule is 1F1B (Narayanan et al., "PipeDream", SOSP 2019; Fan et al., "DAPPLE", PPoPP 2021) with one update after all
micro-batches, as `torch.distributed.pipelining.Schedule1F1B` runs it (`work/pipeline`). Stages begin at blocks that repeat; cuts
are those whose slowest stage is fastest, found exactly (`search.placement.contiguous_partition`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal, TypeAlias

from bricolage.device.collective import Ring
from bricolage.errors import BadVariant
from bricolage.search.placement.contiguous_partition import partition_row
from bricolage.train.predict.prediction import Predicted, Span, StepTimeline
from bricolage.train.predict.variant import Variant
from bricolage.work.liveness import Lifetime, alive, curve, peak
from bricolage.work.pipeline.generators import one_f_one_b
from bricolage.work.pipeline.table import StageTimes, run_times
from bricolage.work.training_step import Kind, StepGraph
from bricolage.work.work_graph import GRAPH_INPUT

Direction: TypeAlias = Literal["forward", "backward"]


@dataclass(frozen=True)
class PipelineStage:
    """One stage: milliseconds of each pass of one micro-batch and of the update, and bytes."""

    begin: str
    """Path of the block that it begins with; empty for the first."""
    forward_ms: float
    backward_ms: float
    update_ms: float
    sent_bytes: int
    """Of activations to the next stage for each micro-batch; as many come back as gradients."""
    lasting: Mapping[Kind, int]
    """Bytes of weights, gradients, the optimiser's state and the batch, and of what transfers are received in ("temporary")."""
    kept_bytes: int
    """That a micro-batch keeps between its two passes."""
    forward_bytes: int
    """At most during a forward pass, beyond what other micro-batches keep; with what it keeps."""
    backward_bytes: int
    update_bytes: int
    """Temporary, during the update."""


@dataclass(frozen=True)
class Action:
    """A pass of one micro-batch on one stage; milliseconds from the begin of the step."""

    stage: int
    kind: Direction
    micro_batch: int
    start_ms: float
    end_ms: float


def passes(stages: Sequence[PipelineStage], micro_batches: int, send_ms: Sequence[float]) -> list[Action]:
    """When each pass runs: after the one before it on its stage, and after its input has come. By stage, in their order.

    Args:
        stages: from the first to the last.
        micro_batches: at least as many as stages.
        send_ms: milliseconds of a transfer between each stage and the next, in either direction.
    """
    forward, backward = [stage.forward_ms for stage in stages], [stage.backward_ms for stage in stages]
    times = StageTimes(forward, backward, [0.0] * len(stages), send_ms)
    return [
        Action(
            stage_pass.stage, "forward" if stage_pass.kind == "F" else "backward", stage_pass.micro_batch, start, end
        )
        for _, stage_pass, start, end in run_times(one_f_one_b(len(stages), micro_batches), times).passes
    ]


def stage_memory(stage: PipelineStage, actions: Sequence[Action], ready_ms: float) -> list[tuple[Kind, Lifetime]]:
    """What one stage holds and when, in milliseconds.

    Args:
        stage: the stage.
        actions: its passes, in their order.
        ready_ms: when its update begins.
    """
    lifetimes: list[tuple[Kind, Lifetime]] = [(kind, Lifetime(size, 0.0)) for kind, size in stage.lasting.items()]
    begun: dict[int, float] = {}
    for action in actions:
        if action.kind == "forward":
            begun[action.micro_batch] = action.start_ms
        else:
            kept = Lifetime(stage.kept_bytes, begun.pop(action.micro_batch), action.end_ms)
            lifetimes.append(("activations", kept))
        passing = stage.forward_bytes if action.kind == "forward" else stage.backward_bytes
        lifetimes.append(("temporary", Lifetime(max(0, passing - stage.kept_bytes), action.start_ms, action.end_ms)))
    lifetimes.append(("temporary", Lifetime(stage.update_bytes, ready_ms)))
    return lifetimes


def divide_step(
    graph: StepGraph, ms: Sequence[float], blocks: Sequence[str], stages: int, micro_batches: int, variant: str
) -> list[PipelineStage]:
    """The stages of a step.

    Args:
        graph: the step with its micro-batches one after another.
        ms: of each operator.
        blocks: paths of modules with which stages may begin.
        stages: how many.
        micro_batches: of the graph, at least two.
        variant: its name.

    Raises:
        BadVariant: there are fewer blocks than stages.
    """
    row = StepRow(graph, ms, blocks, micro_batches)
    if row.count < stages:
        raise BadVariant(
            variant=variant,
            reason=f"it has {row.count} parts at which stages may begin (the blocks that repeat), and {stages} are asked for",
        )
    weights = [
        micro_batches * (forward + backward) + update
        for forward, backward, update in zip(row.forward, row.backward, row.update, strict=True)
    ]
    cuts = [0, *partition_row(weights, stages), row.count]
    return [row.stage(begin, end) for begin, end in itertools.pairwise(cuts)]


def predict_pipeline(
    graph: StepGraph, ms: Sequence[float], blocks: Sequence[str], variant: Variant, ring: Ring
) -> Predicted:
    """A step whose module is divided into stages.

    Raises:
        BadVariant: it cannot be.
    """
    parts = variant.micro_batches
    stages = divide_step(graph, ms, blocks, variant.stages, parts, variant.name)
    actions = passes(stages, parts, [ring.send_ms(stage.sent_bytes) for stage in stages[:-1]])
    ready = [
        max(pass_action.end_ms for pass_action in actions if pass_action.stage == number)
        for number in range(len(stages))
    ]
    ends = [at + pipeline_stage.update_ms for at, pipeline_stage in zip(ready, stages, strict=True)]
    last = max(range(len(stages)), key=ends.__getitem__)
    slowest, end = stages[last], ends[last]
    phases = {
        "forward": parts * slowest.forward_ms,
        "backward": parts * slowest.backward_ms,
        "update": slowest.update_ms,
    }
    held = [
        stage_memory(pipeline_stage, [action for action in actions if action.stage == number], ready[number])
        for number, pipeline_stage in enumerate(stages)
    ]
    fullest = max(held, key=lambda lifetimes: peak(lifetime for _, lifetime in lifetimes))
    course = curve(lifetime for _, lifetime in fullest)
    at, most = max(course, key=itemgetter(1))
    kinds = alive(fullest, at)
    kinds.setdefault("activations", 0)
    names = [stage.begin or "the begin" for stage in stages]
    spans = [
        Span(
            pass_action.kind,
            f"micro-batch {pass_action.micro_batch + 1}",
            pass_action.start_ms,
            pass_action.end_ms,
            pass_action.stage,
        )
        for pass_action in actions
    ]
    spans += [
        Span("update", f"the stage from {names[number]}", ready[number], ends[number], number)
        for number in range(len(stages))
    ]
    return Predicted(
        variant.name,
        ms=end,
        phases={**phases, "idle": end - sum(phases.values())},
        peak_bytes=most,
        memory=kinds,
        sent_bytes=max(parts * 2 * stage.sent_bytes for stage in stages),
        begins=tuple(stage.begin for stage in stages[1:]),
        course=StepTimeline(tuple(spans), (), tuple(course)),
    )


class StepRow:
    """The parts of a step, in their order: what each takes in one micro-batch. Milliseconds."""

    def __init__(self, graph: StepGraph, ms: Sequence[float], blocks: Sequence[str], micro_batches: int) -> None:
        self._graph = graph
        self._ms = ms
        begin, end = _second(graph)
        self._range = range(begin, end)
        self.names = [""]
        """Paths of the blocks with which parts begin; empty for the first."""
        self._parts = self._places(blocks)
        self.count = len(self.names)
        self.forward, self.backward = [0.0] * self.count, [0.0] * self.count
        self.weight = [0.0] * self.count
        """Of the backward pass, what no other part waits for: the gradients of weights."""
        waited = self._find_awaited()
        for number in self._range:
            here = self.forward if graph.phases[number] == "forward" else self.backward
            here[self._parts[number]] += ms[number]
            if graph.phases[number] != "forward" and number not in waited:
                self.weight[self._parts[number]] += ms[number]
        shares = self._shares()
        whole = sum(operator_ms for operator_ms, phase in zip(ms, graph.phases, strict=True) if phase == "update")
        self.update = [share * whole for share in shares]
        self._shared = shares
        self._micro_batches = micro_batches

    @property
    def second(self) -> tuple[StepGraph, Sequence[float], range]:
        """The graph, milliseconds of its operators, and the numbers of those of its second micro-batch's passes."""
        return self._graph, self._ms, self._range

    def stage(self, begin: int, end: int) -> PipelineStage:
        """Parts from `begin` on, before `end`."""
        graph = self._graph
        inside = {number for number in self._range if begin <= self._parts[number] < end}
        storages = [storage for storage in graph.storages if storage.born in inside]
        lifetimes = [allocation.lifetime for allocation in storages]
        forward = [number for number in inside if graph.phases[number] == "forward"]
        backward = inside.difference(forward)
        share = sum(self._shared[begin:end])
        lasting: dict[Kind, int] = {}
        parts: Mapping[Kind, float] = {
            "weights": share,
            "gradients": share,
            "optimiser state": share,
            "inputs": 0.5 * ((begin == 0) + (end == self.count)),
        }
        for allocation in graph.storages:
            # Gradients of the step before are given back as it begins.
            if allocation.kind in parts and (allocation.freed is None or allocation.born >= 0):
                lasting[allocation.kind] = lasting.get(allocation.kind, 0) + int(
                    allocation.bytes * parts[allocation.kind]
                )
        update = [number for number, phase in enumerate(graph.phases) if phase == "update"]
        temporary = peak(
            (storage.lifetime for storage in graph.storages if storage.born >= min(update, default=0)), update
        )
        sent = self._crossing(end) if end < self.count else 0
        received = self._crossing(begin) if begin else 0
        return PipelineStage(
            self.names[begin],
            sum(self.forward[begin:end]),
            backward_ms=sum(self.backward[begin:end]),
            update_ms=sum(self.update[begin:end]),
            sent_bytes=sent,
            # Where what comes is put is made once for all micro-batches.
            lasting={**lasting, "temporary": self._micro_batches * (sent + received)},
            kept_bytes=sum(allocation.bytes for allocation in storages if allocation.kind == "activations"),
            forward_bytes=peak(lifetimes, forward),
            backward_bytes=peak(lifetimes, backward),
            update_bytes=int(share * temporary),
        )

    def _places(self, blocks: Sequence[str]) -> dict[int, int]:
        """Operators of one micro-batch → their part, numbered by the blocks that begin them."""
        graph, now = self._graph, 0
        operator_parts: dict[int, int] = {}
        layer_parts: dict[str, set[int]] = {}
        begun: dict[str, int] = {}
        for number in self._range:
            layer = graph.layers[number]
            if graph.phases[number] == "forward":
                block = next((path for path in blocks if layer == path or layer.startswith(f"{path}.")), None)
                if block is not None and block not in begun:
                    if operator_parts:  # what the step begins with has no block before it
                        self.names.append(block)
                        now += 1
                    begun[block] = now
                layer_parts.setdefault(layer, set()).add(now)
            else:
                # A module that runs before and after others has its gradients from both; they come in the order of the parts.
                places = layer_parts.get(layer)
                if places:
                    now = max((place for place in places if place <= now), default=min(places))
            operator_parts[number] = now
        self._by_layer = layer_parts
        return operator_parts

    def _find_awaited(self) -> set[int]:
        """Operators of the backward pass from whose results parts before theirs compute."""
        after, awaited = self._graph.work.successors, set[int]()
        for number in reversed(self._range):
            if self._graph.phases[number] != "forward" and any(
                successor in awaited or self._parts.get(successor, self.count) < self._parts[number]
                for successor in after[number]
            ):
                awaited.add(number)
        return awaited

    def _shares(self) -> list[float]:
        """Of the weights that are trained, by bytes."""
        sizes = [0.0] * self.count
        for gradient in self._graph.gradients:
            layer = gradient.parameter.rpartition(".")[0]
            while layer and layer not in self._by_layer:
                layer = layer.rpartition(".")[0]
            sizes[min(self._by_layer.get(layer, {0}))] += gradient.bytes
        total = sum(sizes)
        return [size / total if total else 0.0 for size in sizes]

    def _crossing(self, cut: int) -> int:
        """Bytes of activations that are made before a part and read by it or later ones, in the forward phase."""
        graph = self._graph
        size = 0
        for tensor in graph.work.tensors:
            if (
                tensor.producer == GRAPH_INPUT
                or tensor.producer not in self._parts
                or self._parts[tensor.producer] >= cut
            ):
                continue
            if graph.phases[tensor.producer] == "forward" and any(
                self._parts.get(reader, -1) >= cut and graph.phases[reader] == "forward" for reader in tensor.consumers
            ):
                size += tensor.bytes
        return size


def _second(graph: StepGraph) -> tuple[int, int]:
    """The second micro-batch's operators: unlike the first one's, its gradients are added to what is there."""
    begins = [
        number
        for number, phase in enumerate(graph.phases)
        if phase == "forward" and (number == 0 or graph.phases[number - 1] != "forward")
    ]
    end = begins[2] if len(begins) > 2 else next(n for n, phase in enumerate(graph.phases) if phase == "update")
    return begins[1], end
