"""A schedule run by a loop of ours: passes in the order of the table, messages by `isend` and `irecv`.

It runs what `torch.distributed.pipelining` cannot express: a stage on several devices (Chimera), updates between micro-batches with
versions of the weights (PipeDream, 2BW), and values without gradients that stages hand on. Messages are asked for ahead, so that
they move while this device computes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch
from torch.func import functional_call

from bricolage.train.pipeline.module_stages import Division, ModuleStage, batch_names
from bricolage.train.run.pace import Pace, PacedMachine, wait_until
from bricolage.train.step.step import LossFunction, Tensors
from bricolage.work.pipeline.table import Pass, PipelineSchedule

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

_AHEAD = 2
"""Passes whose messages are asked for before it is their turn."""
Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class MicroBatches:
    """A batch in equal parts."""

    inputs: Sequence[Tensors]
    targets: Sequence[Tensors]

    @staticmethod
    def of(inputs: Tensors, targets: Tensors, parts: int) -> MicroBatches:
        """Chunks of each tensor along its first dimension, which `parts` divides."""
        return MicroBatches(
            *(list(zip(*(tensor.chunk(parts) for tensor in tensors), strict=True)) for tensors in (inputs, targets))
        )

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass
class _Running:
    """A micro-batch on a stage, between its passes."""

    given: tuple[torch.Tensor, ...]
    made: tuple[torch.Tensor, ...]
    version: int


@dataclass
class TimedPasses:
    """When passes ran, seconds of this process's clock."""

    passes: list[tuple[Pass, float, float]] = field(default_factory=list)


class KeptWeights(Protocol):
    """Versions of weights, where they are updated between micro-batches."""

    def of(self, one: Pass) -> Weights:
        """The weights that a forward pass uses."""

    def back(self, one: Pass, version: int) -> None:
        """Before a backward pass, whose forward pass used a version."""

    def add(self, stage: int, version: int) -> None:
        """Takes the gradients of a backward pass whose forward pass used a version, and updates where it is time."""


class ScheduleLoop:
    """The passes of one device. Gradients are sums over micro-batches, each of a loss divided by their number."""

    def __init__(
        self,
        division: Division,
        schedule: PipelineSchedule,
        device: int,
        ranks: Sequence[int],
        batches: MicroBatches,
        loss: LossFunction,
        machine: PacedMachine | None = None,
    ) -> None:
        """`ranks`: of the schedule's devices. `machine`: processes by rank, each as slow as the device in whose place it is."""
        self._machine = machine
        self._pace = None if machine is None else Pace(machine.devices[ranks[device]])
        self._division, self._schedule, self._device, self._ranks = division, schedule, device, tuple(ranks)
        self.batches = batches
        """Of the next step."""
        self._loss = loss
        row = schedule.rows[device]
        self.stages: dict[int, ModuleStage] = {
            number: division.stages[number] for number in sorted({stage_pass.stage for stage_pass in row})
        }
        self.row = row
        self._last = schedule.stages - 1

    def __len__(self) -> int:
        """Micro-batches of a step."""
        return len(self.batches)

    def run(self, versions: KeptWeights | None = None) -> TimedPasses:
        """All passes of a step. With `versions`, weights are updated as these say; else gradients are left in the stages."""
        self._running: dict[tuple[int, int], _Running] = {}
        self._handed: dict[tuple[str, int, int], tuple[torch.Tensor, ...]] = {}
        self._asked: dict[int, tuple[list[torch.Tensor], list[Work]]] = {}
        self._sent: list[tuple[torch.Tensor, Work]] = []
        self._slow_messages: list[tuple[int, int, tuple[torch.Tensor, ...]]] = []
        self.losses: list[torch.Tensor] = []
        timed = TimedPasses()
        for place, stage_pass in enumerate(self.row):
            for ahead in range(place, min(place + _AHEAD + 1, len(self.row))):
                self._ask(ahead)
            came = self._receive_messages(place)
            begun = time.perf_counter()
            with nullcontext() if self._pace is None else self._pace.slowed():
                if stage_pass.kind == "F":
                    self._forward(stage_pass, came, versions)
                elif stage_pass.kind in "BI":
                    self._backward(stage_pass, came, versions)
            while self._slow_messages:
                self._send(*self._slow_messages.pop(0))
            timed.passes.append((stage_pass, begun, time.perf_counter()))
        for _, work in self._sent:
            work.wait()
        return timed

    def _forward(self, one: Pass, given: tuple[torch.Tensor, ...], versions: KeptWeights | None) -> None:
        stage = self.stages[one.stage]
        batch = batch_names(self.batches.inputs[one.micro_batch])
        weights = None if versions is None else versions.of(one)
        outputs = stage(*given, **batch) if weights is None else functional_call(stage, weights, given, batch)
        if one.stage == self._last:
            outputs = self._loss(outputs, *self.batches.targets[one.micro_batch]) / len(self.batches)
            self.losses.append(outputs.detach())
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        self._running[one.stage, one.micro_batch] = _Running(given, several, one.version)
        if one.stage < self._last:
            self._hand("F", one.stage + 1, one.micro_batch, tuple(output.detach() for output in several))

    def _backward(self, one: Pass, gradients: tuple[torch.Tensor, ...], versions: KeptWeights | None) -> None:
        running = self._running.pop((one.stage, one.micro_batch))
        outputs = running.made
        if one.stage < self._last:
            outputs = tuple(
                output for output, kind in zip(outputs, self._division.handed[one.stage], strict=True) if kind.gradient
            )
        if versions is not None:
            versions.back(one, running.version)
        torch.autograd.backward(outputs, gradients if one.stage < self._last else None)
        if one.stage:
            inputs = [tensor for tensor in running.given if tensor.requires_grad]
            back = tuple(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in inputs)
            self._hand("B", one.stage - 1, one.micro_batch, back)
        if versions is not None:
            versions.add(one.stage, running.version)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _source(self, one: Pass) -> tuple[str, int] | None:
        """What a pass is given: "F" or "B", and the stage from which it comes; None where it needs nothing."""
        if one.kind == "F":
            return ("F", one.stage - 1) if one.stage else None
        return ("B", one.stage + 1) if one.kind in "BI" and one.stage < self._last else None

    def _ask(self, place: int) -> None:
        """Asks for the messages of a pass, if they come from another device."""
        stage_pass = self.row[place]
        source = self._source(stage_pass)
        if source is None or place in self._asked:
            return
        home = self._schedule.device[source[1], stage_pass.micro_batch]
        if home == self._device:
            return
        boundary = min(stage_pass.stage, source[1])
        kinds = [kind for kind in self._division.handed[boundary] if source[0] == "F" or kind.gradient]
        buffers = [kind.empty(self.batches.inputs[0][0].device) for kind in kinds]
        if self._machine is not None:
            buffers.append(torch.empty(1, dtype=torch.float64))  # the moment at which they were sent
        tag = self._tag(source[0], stage_pass.stage, stage_pass.micro_batch)
        dist = torch.distributed
        works = [dist.irecv(buffer, self._ranks[home], tag=tag + number) for number, buffer in enumerate(buffers)]
        self._asked[place] = buffers, works  # type: ignore[assignment]

    def _receive_messages(self, place: int) -> tuple[torch.Tensor, ...]:
        """What a pass is given."""
        stage_pass = self.row[place]
        source = self._source(stage_pass)
        if source is None:
            return ()
        if place in self._asked:
            buffers, works = self._asked.pop(place)
            for work in works:
                work.wait()
            if self._machine is not None:
                home = self._schedule.device[source[1], stage_pass.micro_batch]
                sent_at = float(buffers.pop())
                size = sum(buffer.nbytes for buffer in buffers)
                wait_until(sent_at + self._machine.link_s(self._ranks[home], self._ranks[self._device], size))
        else:
            buffers = list(self._handed.pop((source[0], stage_pass.stage, stage_pass.micro_batch)))
        if source[0] == "B":
            return tuple(buffers)
        kinds = self._division.handed[stage_pass.stage - 1]
        return tuple(buffer.requires_grad_(kind.gradient) for buffer, kind in zip(buffers, kinds, strict=True))

    def _hand(self, kind: str, stage: int, micro: int, tensors: tuple[torch.Tensor, ...]) -> None:
        """To the device of a stage: a message, unless that is this one."""
        home = self._schedule.device[stage, micro]
        if home == self._device:
            self._handed[kind, stage, micro] = tensors
            return
        tag = self._tag(kind, stage, micro)
        if self._pace is None:
            self._send(home, tag, tensors)
        else:
            self._slow_messages.append((home, tag, tensors))  # they go out when the pass has taken its time

    def _send(self, home: int, tag: int, tensors: tuple[torch.Tensor, ...]) -> None:
        if self._machine is not None:
            tensors = (*tensors, torch.tensor([time.perf_counter()], dtype=torch.float64))
        for number, tensor in enumerate(tensors):
            whole = tensor.contiguous()
            work = torch.distributed.isend(whole, self._ranks[home], tag=tag + number)
            assert work is not None
            self._sent.append((whole, work))

    def _tag(self, kind: str, stage: int, micro: int) -> int:
        """The first of a pass's messages, apart from those of all other passes."""
        most = max(map(len, self._division.handed), default=1) + (self._machine is not None)
        return (((kind == "B") * self._schedule.stages + stage) * len(self.batches) + micro) * most


def new_group(ranks: Sequence[int], timeout_s: float) -> ProcessGroup | None:
    """Some of the processes; all processes make it. One that waits for another fails after `timeout_s` seconds."""
    group: ProcessGroup | None = torch.distributed.new_group(list(ranks), timeout=timedelta(seconds=timeout_s))
    return group
