"""A step by a plan of two levels: each stage on a group of processes, which share its operators; messages between neighbours.

A message lies divided along its first axis on both sides where that goes evenly, so that each row crosses between the groups once
for each process that wants it. Messages are asked for ahead, so that they move while a group computes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh

from bricolage.train.pipeline.module_stages import Division, Handed, divide_module
from bricolage.train.pipeline.schedule_loop import MicroBatches, TimedPasses, new_group
from bricolage.train.sharded.planned_layouts import GroupedPlan, GroupStage, message_layout
from bricolage.train.sharded.stage_programs import StagePrograms
from bricolage.train.sharded.step_graph import StageExample
from bricolage.train.step.step import TrainingStep, make_optimiser
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import Pass

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

_AHEAD = 2
"""Passes whose messages are asked for before it is their turn."""


@dataclass(frozen=True)
class Piece:
    """Rows of a message that one process sends to another."""

    sender: int
    """Its place in the group; so for the receiver."""
    receiver: int
    begin: int
    end: int


def message_pieces(rows: int | None, senders: int, receivers: int) -> list[Piece]:
    """Who sends which rows to whom: each receiver gets what it holds (`message_layout`) once.

    Args:
        rows: of the message; None where it has no axis, and goes whole.
        senders: processes that have it.
        receivers: that want it.
    """
    length = 1 if rows is None else rows
    divided_there = message_layout(rows, receivers) != "R"
    divided_here = message_layout(rows, senders) != "R"
    pieces = []
    for receiver in range(receivers):
        share = length // receivers if divided_there else length
        begin = receiver * share if divided_there else 0
        if not divided_here:
            pieces.append(Piece(receiver % senders, receiver, begin, begin + share))
            continue
        part = length // senders
        for sender in range(begin // part, -(-(begin + share) // part)):
            ends = max(begin, sender * part), min(begin + share, (sender + 1) * part)
            pieces.append(Piece(sender, receiver, *ends))
    return pieces


def stage_example(step: TrainingStep, division: Division, stage: tuple[int, int], samples: int) -> StageExample:
    """Parts from the first to before the second as a stage, with a micro-batch of `samples`."""
    begin, end = stage
    last = end == len(division.stages)
    return StageExample(
        division.stages[begin:end],
        tuple(tensor[:samples] for tensor in step.inputs),
        division.handed[begin - 1] if begin else (),
        () if last else division.handed[end - 1],
        tuple(tensor[:samples] for tensor in step.targets),
        step.loss,
    )


class GroupPipeline:
    """The stages of a plan of two levels, in the order of 1F1B."""

    engine = "loop"

    def __init__(self, step: TrainingStep, plan: GroupedPlan, rank: int, timeout_s: float) -> None:
        """All processes of the default group make it.

        Args:
            step: whose module is divided; it is changed.
            plan: the stages.
            rank: of this process.
            timeout_s: for which it waits for another.

        Raises:
            BadPlan: PyTorch cannot divide the module there, or two stages share weights.
            NotShardable: the plan is for another step.
        """
        self._plan = plan
        number = next((n for n, stage in enumerate(plan.stages) if rank in stage.ranks), None)
        groups = [new_group(stage.ranks, timeout_s) if stage.devices > 1 else None for stage in plan.stages]
        self._stage: _RunningStage | None = None
        samples = step.inputs[0].shape[0] // plan.micro_batches
        division = divide_module(step, plan.parts, tuple(tensor[:samples] for tensor in step.inputs))
        if number is not None:
            self._stage = _RunningStage(step, plan, division, number, rank, groups[number])

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        return TimedPasses() if self._stage is None else self._stage.run()

    def calls(self) -> Sequence[Callable[[], object]]:
        """After `run`: a forward pass, a backward pass and the update of this process's stage, without collectives, for their
        times. None where it has no stage. It runs no further step."""
        return () if self._stage is None else self._stage.calls()

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`. Whole, on each process of their stage: all have to ask."""
        return {} if self._stage is None else self._stage.gradients()


@dataclass
class _Messages:
    """Of one step: what was asked for and sent."""

    asked: dict[int, list[tuple[torch.Tensor, list[Work]]]] = field(default_factory=dict)
    sent: list[tuple[torch.Tensor, Work]] = field(default_factory=list)


class _RunningStage:
    """A process's stage."""

    def __init__(
        self,
        step: TrainingStep,
        plan: GroupedPlan,
        division: Division,
        number: int,
        rank: int,
        group: ProcessGroup | None,
    ) -> None:
        self._plan, self._number = plan, number
        stage = plan.stages[number]
        self._here, self._place = stage, rank - stage.first
        self._batches = MicroBatches.of(step.inputs, step.targets, plan.micro_batches)
        example = stage_example(step, division, (stage.begin, stage.end), self._batches.inputs[0][0].shape[0])
        mesh = None if group is None else DeviceMesh.from_group(group, "cpu")
        self._programs = StagePrograms(example, stage.layouts, mesh)
        self._last = example.last
        parameters = list(self._programs.parameters.values())
        self._optimiser = make_optimiser(replace(step.optimiser, lr=0.0), parameters) if parameters else None
        self._row = SCHEDULES["1f1b"](len(plan.stages), plan.micro_batches).rows[number]
        self._boundaries = [division.handed[other.end - 1] for other in plan.stages[:-1]]
        self._sums: dict[str, torch.Tensor] = {}
        self._own: set[str] = set()
        """Names of sums that are written in place."""
        self._most = max([1, *map(len, self._boundaries)])

    def run(self) -> TimedPasses:
        """All passes of a step, and the update."""
        messages, timed = _Messages(), TimedPasses()
        kept: dict[int, list[torch.Tensor]] = {}
        self._sums, self._own = {}, set()
        for place, stage_pass in enumerate(self._row):
            for ahead in range(place, min(place + _AHEAD + 1, len(self._row))):
                self._ask(ahead, messages)
            given = self._receive(messages.asked.pop(place, []))
            begun = time.perf_counter()
            micro = stage_pass.micro_batch
            if stage_pass.kind == "F":
                targets = self._batches.targets[micro] if self._last else ()
                batch = self._programs.batch([*self._batches.inputs[micro], *targets])
                outputs, kept[micro] = self._programs.forward(batch, given)
                if not self._last:
                    self._send(stage_pass, self._number + 1, outputs, messages)
            else:
                self._go_back(stage_pass, kept.pop(micro), given, messages)
            timed.passes.append((stage_pass, begun, time.perf_counter()))
        for _, work in messages.sent:
            work.wait()
        self._sums = self._programs.finish(self._sums)
        self._update()
        return timed

    def _update(self) -> None:
        for name, parameter in self._programs.parameters.items():
            parameter.grad = self._sums.get(name)
        if self._optimiser is not None:
            self._optimiser.step()

    def calls(self) -> Sequence[Callable[[], object]]:
        """See `GroupPipeline`."""
        self._programs.spare_collectives()
        targets = self._batches.targets[0] if self._last else ()
        batch = self._programs.batch([*self._batches.inputs[0], *targets])
        given = self._zeros("F", self._number - 1) if self._number else []
        seeds = [torch.ones(())] if self._last else self._zeros("B", self._number + 1)
        _, kept = self._programs.forward(batch, given)

        def forward() -> None:
            self._programs.forward(batch, given)

        def backward() -> None:
            gradients, _ = self._programs.backward(kept, seeds)
            self._add(gradients)

        return forward, backward, self._update

    def _zeros(self, kind: str, other: int) -> list[torch.Tensor]:
        """Messages as this process gets them."""
        empty = [handed.empty(torch.device("cpu")).zero_() for handed in self._kinds(kind, other)]
        devices = self._here.devices
        layouts = [message_layout(tensor.shape[0] if tensor.dim() else None, devices) for tensor in empty]
        return [self._programs.part(tensor, layout) for tensor, layout in zip(empty, layouts, strict=True)]

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Of this stage's weights, whole."""
        return {name: self._programs.whole(name, gradient) for name, gradient in self._sums.items()}

    def _go_back(
        self, stage_pass: Pass, kept: list[torch.Tensor], given: list[torch.Tensor], messages: _Messages
    ) -> None:
        seeds = [torch.tensor(1.0 / self._plan.micro_batches)] if self._last else given
        gradients, back = self._programs.backward(kept, seeds)
        self._add(gradients)
        if self._number:
            self._send(stage_pass, self._number - 1, back, messages)

    def _add(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for name, gradient in zip(self._programs.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if name in self._own:
                self._sums[name].add_(gradient)
            elif name in self._sums:  # the first may be memory of another: it is not written
                self._sums[name] = self._sums[name] + gradient
                self._own.add(name)
            else:
                self._sums[name] = gradient

    # --- messages ----------------------------------------------------------------------------------------------------

    def _kinds(self, kind: str, other: int) -> Sequence[Handed]:
        """What goes between this stage and a neighbour."""
        boundary = self._boundaries[min(self._number, other)]
        return [handed for handed in boundary if kind == "F" or handed.gradient]

    def _pieces(self, handed: Handed, sender: GroupStage, receiver: GroupStage) -> list[Piece]:
        return message_pieces(handed.shape[0] if handed.shape else None, sender.devices, receiver.devices)

    def _ask(self, place: int, messages: _Messages) -> None:
        """Asks for the messages of a pass."""
        stage_pass = self._row[place]
        kind = "F" if stage_pass.kind == "F" else "B"
        other = self._number + (-1 if kind == "F" else 1)
        if place in messages.asked or not 0 <= other < len(self._plan.stages):
            return
        sender, asked = self._plan.stages[other], []
        for number, handed in enumerate(self._kinds(kind, other)):
            mine = [piece for piece in self._pieces(handed, sender, self._here) if piece.receiver == self._place]
            rows = sum(piece.end - piece.begin for piece in mine)
            buffer = torch.empty((rows, *handed.shape[1:]) if handed.shape else (), dtype=handed.dtype)
            works = []
            for piece in mine:
                target = buffer[piece.begin - mine[0].begin :][: piece.end - piece.begin] if handed.shape else buffer
                tag = self._tag(kind, self._number, stage_pass.micro_batch) + number
                works.append(torch.distributed.irecv(target, sender.first + piece.sender, tag=tag))
            asked.append((buffer, works))
        messages.asked[place] = asked  # type: ignore[assignment]

    @staticmethod
    def _receive(asked: list[tuple[torch.Tensor, list[Work]]]) -> list[torch.Tensor]:
        for work in itertools.chain.from_iterable(works for _, works in asked):
            work.wait()
        return [buffer for buffer, _ in asked]

    def _send(self, stage_pass: Pass, other: int, tensors: Sequence[torch.Tensor], messages: _Messages) -> None:
        kind = "F" if stage_pass.kind == "F" else "B"
        receiver = self._plan.stages[other]
        for number, (handed, tensor) in enumerate(zip(self._kinds(kind, other), tensors, strict=True)):
            rows = handed.shape[0] if handed.shape else None
            divided = message_layout(rows, self._here.devices) != "R"
            first = self._place * ((rows or 0) // self._here.devices) if divided else 0
            for piece in self._pieces(handed, self._here, receiver):
                if piece.sender != self._place:
                    continue
                part = tensor[piece.begin - first : piece.end - first] if rows is not None else tensor
                whole = part.contiguous()
                tag = self._tag(kind, other, stage_pass.micro_batch) + number
                work = torch.distributed.isend(whole, receiver.first + piece.receiver, tag=tag)
                assert work is not None
                messages.sent.append((whole, work))

    def _tag(self, kind: str, stage: int, micro: int) -> int:
        """The first of a pass's messages, apart from those of all other passes."""
        stages = len(self._plan.stages)
        return (((kind == "B") * stages + stage) * self._plan.micro_batches + micro) * self._most
