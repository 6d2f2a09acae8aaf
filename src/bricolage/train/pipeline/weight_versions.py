"""Pipelines that update weights between micro-batches, with the versions of the weights that this takes.

A stage's weights are updated after every `each` backward passes, with the mean of their gradients: 1 in PipeDream (SOSP 2019), as
many as devices in 2BW (ICML 2021). PipeMare, without versions, is in `pipemare.py`. A micro-batch uses the same version in both
passes of a stage; which one, the table names. That is other training than one update a batch: what is compared is the change of
the weights after a batch, with the same micro-batches one after another in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import torch
from torch.func import functional_call

from bricolage.train.pipeline.module_stages import ModuleStage, batch_names, divide_module
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.pipemare import DelayedWeights, Remedies, delayed_changes
from bricolage.train.pipeline.schedule_loop import KeptWeights, MicroBatches, ScheduleLoop, TimedPasses, Weights
from bricolage.train.run.executors import Seat
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import TrainingStep, make_optimiser
from bricolage.work.pipeline.table import Pass, PipelineSchedule

Makes: TypeAlias = "Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer]"


def updates_after(plan: PipelinePlan) -> int:
    """Micro-batches between two updates."""
    return plan.devices if plan.schedule == "2bw" else 1


def remedies_of(plan: PipelinePlan) -> Remedies:
    """Of PipeMare, for a batch: the learning rate is rescheduled over twice its micro-batches."""
    return Remedies(2 * plan.micro_batches)


def _maker(spec: Optimiser) -> Makes:
    return lambda parameters: make_optimiser(spec, parameters)


class VersionedPipeline:
    """Stages on the processes of one replica, each with versions of its weights."""

    def __init__(
        self, step: TrainingStep, plan: PipelinePlan, schedule: PipelineSchedule, begins: Sequence[str], rank: int
    ) -> None:
        """`begins`: paths of the modules with which stages begin, but for the first.

        Raises:
            BadPlan: PyTorch cannot divide the module there, or two stages share weights.
        """
        self._seat, self._plan = Seat(rank, plan), plan
        self.engine = "none"
        if not self._seat.takes_part:
            return
        batches = MicroBatches.of(step.inputs, step.targets, plan.micro_batches)
        division = divide_module(step, begins, batches.inputs[0])
        for stage in division.stages:
            stage.recompute = plan.recompute
        self.engine = "loop"
        self._optimiser, self._schedule = step.optimiser, schedule
        self._loop = ScheduleLoop(division, schedule, self._seat.device, self._seat.ranks, batches, step.loss)
        self._changes: Weights = {}

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        if not self._seat.takes_part:
            return TimedPasses()
        return self._loop.run(self._kept(replace(self._optimiser, lr=0.0)))

    def _kept(self, optimiser: Optimiser) -> KeptWeights:
        """What keeps the weights of a batch."""
        makes = _maker(optimiser)
        if self._plan.schedule == "pipemare":
            return DelayedWeights(self._loop.stages, self._schedule, makes, remedies_of(self._plan))
        return Versions(self._loop, updates_after(self._plan), makes)

    def learn(self) -> None:
        """A batch with the optimiser's learning rate, after which the weights are as before."""
        if not self._seat.takes_part:
            return
        before = {name: parameter.detach().clone() for name, parameter in self._list_parameters()}
        self._loop.run(self._kept(self._optimiser))
        self._changes = {name: parameter.detach() - before[name] for name, parameter in self._list_parameters()}
        with torch.no_grad():
            for name, parameter in self._list_parameters():
                parameter.copy_(before[name])

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """What the last batch of `learn` has changed in the weights of this process."""
        return self._changes if self._seat.takes_part else {}

    def _list_parameters(self) -> list[tuple[str, torch.Tensor]]:
        return [pair for stage in self._loop.stages.values() for pair in stage.inner.named_parameters()]


class Versions:
    """The versions of weights that a device keeps during one batch, and their updates."""

    def __init__(self, loop: ScheduleLoop, each: int, makes: Makes) -> None:
        """`makes`: an optimiser of weights; every stage has its own."""
        row, stages = loop.row, loop.stages
        self._stages, self._each = stages, each
        self._scale = len(loop) / each
        self._optimisers = {number: makes(list(stage.parameters())) for number, stage in stages.items()}
        self._left: dict[tuple[int, int], int] = {}
        for stage_pass in row:
            if stage_pass.kind == "F":
                key = stage_pass.stage, stage_pass.version
                self._left[key] = self._left.get(key, 0) + 1
        self._kept: dict[tuple[int, int], Weights] = {}
        self._now = dict.fromkeys(stages, 0)
        self._sums: dict[int, tuple[int, Weights]] = {number: (0, {}) for number in stages}
        for number in stages:
            self._keep(number)

    def _keep(self, stage: int) -> None:
        self._kept[stage, self._now[stage]] = _leaves(self._stages[stage])

    def of(self, one: Pass) -> Weights:
        """The weights that a forward pass uses."""
        return self._kept[one.stage, one.version]

    def back(self, one: Pass, version: int) -> None:
        """Nothing: the version of the forward pass is still there."""

    def add(self, stage: int, version: int) -> None:
        """Takes the gradients of a backward pass whose forward pass used a version, and updates where it is time."""
        count, sums = self._sums[stage]
        for name, weight in self._kept[stage, version].items():
            if weight.grad is not None:
                sums[name] = weight.grad if name not in sums else sums[name] + weight.grad
                weight.grad = None
        count += 1
        self._left[stage, version] -= 1
        if count == self._each:
            for name, parameter in self._stages[stage].named_parameters():
                parameter.grad = None if name not in sums else sums[name] * self._scale
            self._optimisers[stage].step()
            self._optimisers[stage].zero_grad(set_to_none=True)
            self._now[stage] += 1
            self._keep(stage)
            count, sums = 0, {}
        self._sums[stage] = count, sums
        for key in [
            candidate for candidate in self._kept if candidate[0] == stage and candidate[1] != self._now[stage]
        ]:
            if not self._left.get(key):
                del self._kept[key]


def changes_one_by_one(
    step: TrainingStep, plan: PipelinePlan, schedule: PipelineSchedule, begins: Sequence[str]
) -> Weights:
    """What a batch changes in the weights, in one process: micro-batches one after another, each with the versions that the table
    names. Nothing of it is in common with `ScheduleLoop` but the division of the module."""
    if plan.schedule == "pipemare":
        return delayed_changes(step, plan, schedule, begins, remedies_of(plan))
    batches = MicroBatches.of(step.inputs, step.targets, plan.micro_batches)
    stages = divide_module(step, begins, batches.inputs[0]).stages
    version = {
        (stage_pass.stage, stage_pass.micro_batch): stage_pass.version
        for row in schedule.rows
        for stage_pass in row
        if stage_pass.kind == "F"
    }
    before = [{name: parameter.detach().clone() for name, parameter in stage.named_parameters()} for stage in stages]
    history: list[list[Weights]] = [[_leaves(stage)] for stage in stages]
    optimisers = [make_optimiser(step.optimiser, list(stage.parameters())) for stage in stages]
    each = updates_after(plan)
    for micro, (inputs, targets) in enumerate(zip(batches.inputs, batches.targets, strict=True)):
        used = [history[number][version[number, micro]] for number in range(len(stages))]
        activation: torch.Tensor | tuple[torch.Tensor, ...] = ()
        for stage, weights in zip(stages, used, strict=True):
            given = activation if isinstance(activation, tuple) else (activation,)
            activation = functional_call(stage, weights, given, batch_names(inputs))
        (step.loss(activation, *targets) / each).backward()
        for number, (stage, weights) in enumerate(zip(stages, used, strict=True)):
            for name, parameter in stage.named_parameters():
                grad = weights[name].grad
                if grad is not None:
                    parameter.grad = grad.clone() if parameter.grad is None else parameter.grad + grad
                    weights[name].grad = None
            if (micro + 1) % each == 0:
                optimisers[number].step()
                optimisers[number].zero_grad(set_to_none=True)
                history[number].append(_leaves(stage))
    prefix = len("inner.")
    return {
        name[prefix:]: parameter.detach() - before[number][name]
        for number, stage in enumerate(stages)
        for name, parameter in stage.named_parameters()
    }


def _leaves(stage: ModuleStage) -> Weights:
    return {
        name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
        for name, parameter in stage.named_parameters()
    }
