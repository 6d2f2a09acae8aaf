"""Ways to run a training step on the processes of a group: alone, as data parallelism, or as a pipeline by a plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch.distributed.tensor import DTensor

from bricolage.errors import BadOption
from bricolage.train.pipeline.module_stages import Division, ModuleStage, batch_names, divide_module
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.schedule_loop import MicroBatches, ScheduleLoop, TimedPasses, new_group
from bricolage.train.run.pace import Pace, PacedMachine
from bricolage.train.sharded.sharded_executors import divide_weights
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import LossFunction, TrainingStep, build, make_optimiser, on_device, users_code
from bricolage.work.pipeline.csv import to_csv
from bricolage.work.pipeline.table import Pass, PassKind, PipelineSchedule

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.pipelining import PipelineStage


class StepExecutor(Protocol):
    """A training step that several processes run together. Weights stay as they are unless it is told to update."""

    def run(self) -> TimedPasses:
        """Forward, backward, exchange of gradients and the update, with a learning rate of zero."""

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """Of the weights that this process has, by the module's names, after `run`."""


class SingleProcess:
    """The whole step in the first process, on all cores; the others do nothing."""

    def __init__(
        self, spec: StepSpec, threads: int, *, takes_part: bool, device: str = "cpu", pace: Pace | None = None
    ) -> None:
        self._takes_part, self._threads, self._pace = takes_part, threads, pace
        if takes_part:
            self._step = on_device(build(spec), device)
            trained = [parameter for parameter in self._step.module.parameters() if parameter.requires_grad]
            self._optimiser = make_optimiser(replace(spec.optimiser, lr=0.0), trained)

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        if self._takes_part:
            before = torch.get_num_threads()
            torch.set_num_threads(self._threads)
            try:
                with users_code("the training step"), nullcontext() if self._pace is None else self._pace.slowed():
                    self._step.run(self._optimiser)
            finally:
                torch.set_num_threads(before)
        return TimedPasses()

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`."""
        return _gradients(self._step.module) if self._takes_part else {}


class DataParallel:
    """A replica in each process, with an equal part of the batch, by PyTorch's DistributedDataParallel."""

    def __init__(self, step: TrainingStep, rank: int, workers: int, group: ProcessGroup | None = None) -> None:
        """`workers`: processes 0, 1, ..., to which `group` belongs; others do nothing."""
        self._takes_part = rank < workers
        if not self._takes_part:
            return
        parts = MicroBatches.of(step.inputs, step.targets, workers)
        self._inputs, self._targets, self._loss = parts.inputs[rank], parts.targets[rank], step.loss
        self._plain = step.module
        self._module = torch.nn.parallel.DistributedDataParallel(step.module, process_group=group)
        trained = [parameter for parameter in step.module.parameters() if parameter.requires_grad]
        self._optimiser = make_optimiser(replace(step.optimiser, lr=0.0), trained)

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        if self._takes_part:
            self._optimiser.zero_grad(set_to_none=True)
            self._loss(self._module(*self._inputs), *self._targets).backward()
            self._optimiser.step()
        return TimedPasses()

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`."""
        return _gradients(self._plain) if self._takes_part else {}


@dataclass(frozen=True)
class Seat:
    """Where a process is in a plan: rank r is device r modulo D of replica r / D; ranks beyond the last replica do nothing."""

    rank: int
    plan: PipelinePlan
    machine: PacedMachine | None = None
    """Where processes are as slow as the devices in whose place they are."""

    @property
    def takes_part(self) -> bool:
        """Whether the plan gives it something to do."""
        return self.rank < self.plan.devices * self.plan.replicas

    @property
    def replica(self) -> int:
        """Its number."""
        return self.rank // self.plan.devices

    @property
    def device(self) -> int:
        """Its row of the schedule."""
        return self.rank % self.plan.devices

    @property
    def ranks(self) -> list[int]:
        """Of its replica."""
        return [self.replica * self.plan.devices + device for device in range(self.plan.devices)]


class Pipeline:
    """Stages on the processes of each replica, in the order of a schedule."""

    def __init__(
        self,
        step: TrainingStep,
        seat: Seat,
        schedule: PipelineSchedule,
        begins: Sequence[str],
        timeout_s: float,
        units: Sequence[str] = (),
    ) -> None:
        """All processes of the default group make it.

        Args:
            step: whose module is divided; it is changed.
            seat: of this process, with the plan, and with the stages whose weights lie divided among replicas.
            schedule: the passes.
            begins: paths of the modules with which stages begin, but for the first.
            timeout_s: for which it waits for another.
            units: paths of modules whose weights a divided stage gathers together.

        Raises:
            BadPlan: PyTorch cannot divide the module there, or two stages share weights.
        """
        self._seat = seat
        self._plan = plan = seat.plan
        self._group = _pipeline_groups(seat, timeout_s)
        self._holders = _holder_groups(schedule, plan, timeout_s)
        self.engine = "none"
        self.weights: list[torch.Tensor] = []
        """That this process updates, as they lie here."""
        if not seat.takes_part:
            return
        replica_batches = MicroBatches.of(step.inputs, step.targets, plan.replicas)
        batches = MicroBatches.of(
            replica_batches.inputs[seat.replica], replica_batches.targets[seat.replica], plan.micro_batches
        )
        division = divide_module(step, begins, batches.inputs[0])
        for module_stage in division.stages:
            module_stage.recompute = plan.recompute
        machine = seat.machine
        self._pace = None if machine is None else Pace(machine.devices[seat.rank])
        self._stages = {row.stage: division.stages[row.stage] for row in schedule.rows[seat.device]}
        for number, stage in self._stages.items():
            if number in plan.divided:
                divide_weights(stage, units, self._holders[number][1])
        # One for each stage: weights that lie divided and whole ones are not updated by one call.
        trained = [
            [parameter for parameter in part.parameters() if parameter.requires_grad] for part in self._stages.values()
        ]
        self.weights = [weight for weights in trained for weight in weights]
        self._optimisers = [make_optimiser(replace(step.optimiser, lr=0.0), weights) for weights in trained if weights]
        self._runs: ScheduleLoop | TorchRuntime
        if machine is None and not plan.groups and expressible(schedule, division) and len(step.targets) == 1:
            self.engine = "torch"
            self._runs = TorchRuntime(division, schedule, seat, self._group, batches, step.loss)
        else:
            self.engine = "loop"
            self._runs = ScheduleLoop(division, schedule, seat.device, seat.ranks, batches, step.loss, machine)

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        if not self._seat.takes_part:
            return TimedPasses()
        for stage in self._stages.values():
            stage.zero_grad(set_to_none=True)
        timed = self._runs.run()
        for number, stage in self._stages.items():
            if number not in self._plan.divided:  # these add up gradients behind each backward pass
                self._exchange(number, stage)
        with nullcontext() if self._pace is None else self._pace.slowed():
            for optimiser in self._optimisers:
                optimiser.step()
        return timed

    def _exchange(self, number: int, stage: ModuleStage) -> None:
        """Adds up the gradients of all that have a stage, in one message; replicas average them."""
        ranks, group = self._holders[number]
        if len(ranks) < 2:
            return
        gradients = []
        for parameter in stage.parameters():
            if parameter.requires_grad:  # those that no micro-batch of this process used count as zero
                grad = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter.data)
                parameter.grad = grad
                gradients.append(grad)
        if not gradients:
            return
        flat = torch.cat([source.reshape(-1) for source in gradients])
        torch.distributed.all_reduce(flat, group=group)
        flat /= self._plan.replicas
        for gradient, part in zip(gradients, flat.split([piece.numel() for piece in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`. Of divided stages whole, on each process: all that have one have to ask."""
        if not self._seat.takes_part:
            return {}
        stage_gradients = {
            name: gradient for stage in self._stages.values() for name, gradient in _gradients(stage.inner).items()
        }
        return {
            name: gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            for name, gradient in stage_gradients.items()
        }


def expressible(schedule: PipelineSchedule, division: Division) -> bool:
    """Whether `torch.distributed.pipelining` can run it: one home for each stage, one update, and gradients of all that is handed
    on."""
    try:
        to_csv(schedule)
    except BadOption:
        return False
    return all(message.gradient for messages in division.handed for message in messages)


class TorchRuntime:
    """PyTorch's runtime for schedules, which reads the table as CSV."""

    def __init__(
        self,
        division: Division,
        schedule: PipelineSchedule,
        seat: Seat,
        group: ProcessGroup | None,
        batches: MicroBatches,
        loss: LossFunction,
    ) -> None:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime

        self._batches = batches
        self._targets = [batch_target for (batch_target,) in batches.targets]
        self._passes: list[tuple[Pass, float, float]] = []
        device = batches.inputs[0][0].device
        count = len(division.stages)
        self._stages = [
            PipelineStage(division.stages[number], number, count, device, group=group)
            for number in sorted({row.stage for row in schedule.rows[seat.device]})
        ]
        for stage in self._stages:
            self._watch(stage)

        def part_of_loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return loss(outputs, target) / len(batches)

        # Dividing the loss spares a pass over all gradients.
        self._runtime = _PipelineScheduleRuntime(self._stages, len(batches), loss_fn=part_of_loss, scale_grads=False)
        # As its reader of CSV does, without a file.
        actions = {
            rank: [_Action.from_str(cell) for cell in line.split(",")]
            for rank, line in enumerate(to_csv(schedule).splitlines())
        }
        self._runtime.pipeline_order = actions
        self._runtime._prepare_schedule_with_comms(actions)

    def _watch(self, stage: PipelineStage) -> None:
        """Takes the times of its passes."""
        number = stage.stage_index

        def watch_pass(name: str, kind: PassKind) -> None:
            inner = getattr(stage, name)

            def run(chunk: int, *args: object, **keywords: object) -> object:
                begun = time.perf_counter()
                try:
                    return inner(chunk, *args, **keywords)
                finally:
                    pass_kind: PassKind = "I" if keywords.get("full_backward") is False else kind
                    self._passes.append((Pass(number, pass_kind, chunk), begun, time.perf_counter()))

            setattr(stage, name, run)

        watch_pass("forward_one_chunk", "F")
        watch_pass("backward_one_chunk", "B")
        watch_pass("backward_weight_one_chunk", "W")

    def run(self) -> TimedPasses:
        """All passes of a step."""
        self._passes.clear()
        for stage in self._stages:
            stage.has_backward = True
            stage.clear_runtime_states()
        args: list[tuple[torch.Tensor, ...]] = [()] * len(self._batches)
        batch = [batch_names(source) for source in self._batches.inputs]
        # `step` would divide tensors itself, and takes one target.
        self._runtime._step_microbatches(args, batch, self._targets, [], False)
        return TimedPasses(list(self._passes))


def _gradients(module: torch.nn.Module) -> Mapping[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


def _pipeline_groups(seat: Seat, timeout: float) -> ProcessGroup | None:
    """The processes of each replica; all processes make all groups, in one order."""
    plan, own_group = seat.plan, None
    for replica in range(plan.replicas):
        ranks = [replica * plan.devices + device for device in range(plan.devices)]
        group = new_group(ranks, timeout)
        if seat.takes_part and seat.replica == replica:
            own_group = group
    return own_group


def _holder_groups(
    schedule: PipelineSchedule, plan: PipelinePlan, timeout: float
) -> dict[int, tuple[list[int], ProcessGroup | None]]:
    """By stage the processes that have its weights."""
    holder_groups: dict[int, tuple[list[int], ProcessGroup | None]] = {}
    groups: dict[tuple[int, ...], ProcessGroup | None] = {}
    for stage in range(schedule.stages):
        homes = sorted({device for (held_stage, _), device in schedule.device.items() if held_stage == stage})
        ranks = [replica * plan.devices + home for replica in range(plan.replicas) for home in homes]
        if len(ranks) > 1 and tuple(ranks) not in groups:
            groups[tuple(ranks)] = new_group(ranks, timeout)
        holder_groups[stage] = ranks, groups.get(tuple(ranks))
    return holder_groups
