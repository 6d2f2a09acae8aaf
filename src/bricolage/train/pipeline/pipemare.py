"""PipeMare: a pipeline that never waits, with one version of the weights, which change between a micro-batch's two passes.

Yang et al., "PipeMare: Asynchronous pipeline parallel DNN training", MLSys 2021. A forward pass and its backward pass use the
weights that are there, so that gradients are τ updates late: at the first stage of D as many as D - 1. Two of its techniques
keep that stable. T1 divides the learning rate of a stage by τ^(1 - min(k / K, 1)) at update k. T2 takes for the backward pass the
weights less τ times the mean of their changes, an estimate of what the forward pass saw; the mean fades by d^(1 / τ), d = e⁻². T3,
which begins with synchronous steps, is not there.

The weights that autograd reads in the backward pass are those that lie in the tensors of the forward pass by then: they are written
over in place, where autograd does not look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.func import functional_call

from bricolage.train.pipeline.module_stages import ModuleStage, batch_names, divide_module
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.schedule_loop import MicroBatches, Weights
from bricolage.train.step.step import TrainingStep, make_optimiser
from bricolage.work.pipeline.table import Pass, PipelineSchedule

_FADING = math.exp(-2.0)


@dataclass(frozen=True)
class Remedies:
    """What is done against delays."""

    anneal: int = 0
    """K of T1, updates after which the learning rate is whole; 0: it is not rescheduled."""
    corrected: bool = True
    """Whether backward passes take corrected weights (T2)."""

    def rate(self, delay: int, update: int) -> float:
        """The factor of a stage's learning rate at an update, from 0."""
        if not self.anneal or delay < 2:
            return 1.0
        return float(delay ** -(1.0 - min(update / self.anneal, 1.0)))


def delays(schedule: PipelineSchedule) -> dict[int, int]:
    """By stage the most updates between the two passes of a micro-batch."""
    seen: dict[tuple[int, int], int] = {}
    stage_delays: dict[int, int] = {}
    for stage_pass in (stage_pass for row in schedule.rows for stage_pass in row):
        if stage_pass.kind == "F":
            seen[stage_pass.stage, stage_pass.micro_batch] = stage_pass.version
        elif stage_pass.kind == "B":
            stage_delays[stage_pass.stage] = max(
                stage_delays.get(stage_pass.stage, 0),
                stage_pass.version - seen[stage_pass.stage, stage_pass.micro_batch],
            )
    return stage_delays


class DelayedWeights:
    """The weights of a device's stages from batch to batch (`KeptWeights`)."""

    def __init__(
        self,
        stages: Mapping[int, ModuleStage],
        schedule: PipelineSchedule,
        makes: Callable[[Sequence[torch.Tensor]], torch.optim.Optimizer],
        remedies: Remedies,
    ) -> None:
        """`makes`: an optimiser of weights; every stage has its own."""
        self._stages, self._remedies, self._delays = stages, remedies, delays(schedule)
        self._optimisers = {number: makes(list(stage.parameters())) for number, stage in stages.items()}
        self._live: dict[int, Weights] = {
            number: {
                name: parameter.detach().clone().requires_grad_(parameter.requires_grad)
                for name, parameter in stage.named_parameters()
            }
            for number, stage in stages.items()
        }
        self._drift: dict[int, Weights] = {
            number: {name: torch.zeros_like(parameter) for name, parameter in stage.named_parameters()}
            for number, stage in stages.items()
        }
        self._updates = dict.fromkeys(stages, 0)
        self._scale = schedule.micro_batches

    def of(self, one: Pass) -> Weights:
        """The weights that a forward pass uses: those that are there."""
        return self._live[one.stage]

    def back(self, one: Pass, version: int) -> None:
        """Puts the weights in place that a backward pass uses, whose forward pass used a version of this batch."""
        delay = one.version - version
        if self._remedies.corrected and delay > 0:
            for name, parameter in self._stages[one.stage].named_parameters():
                self._live[one.stage][name].data.copy_(parameter.data - delay * self._drift[one.stage][name])

    def add(self, stage: int, _version: int) -> None:
        """Takes the gradients of a backward pass, and updates."""
        live, module = self._live[stage], self._stages[stage]
        for name, parameter in module.named_parameters():
            grad = live[name].grad
            parameter.grad = None if grad is None else grad * self._scale
            live[name].grad = None
        fading = _FADING ** (1.0 / max(1, self._delays.get(stage, 0)))
        rate = self._remedies.rate(self._delays.get(stage, 0), self._updates[stage])
        before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
        step_at(self._optimisers[stage], rate)
        for name, parameter in module.named_parameters():
            self._drift[stage][name].mul_(fading).add_(parameter.detach() - before[name], alpha=1.0 - fading)
            live[name].data.copy_(parameter.data)
        self._updates[stage] += 1


def step_at(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """An update at a part of the learning rate."""
    kept = [group["lr"] for group in optimiser.param_groups]
    for group in optimiser.param_groups:
        group["lr"] *= rate
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    for group, lr in zip(optimiser.param_groups, kept, strict=True):
        group["lr"] = lr


def delayed_changes(
    step: TrainingStep, plan: PipelinePlan, schedule: PipelineSchedule, begins: Sequence[str], remedies: Remedies
) -> Weights:
    """What a batch changes in the weights, in one process: micro-batches one after another, each with the weights that the table
    names for both of its passes. All weights that there were are kept."""
    batches = MicroBatches.of(step.inputs, step.targets, plan.micro_batches)
    stages = divide_module(step, begins, batches.inputs[0]).stages
    version = {
        (stage_pass.stage, stage_pass.micro_batch, stage_pass.kind): stage_pass.version
        for row in schedule.rows
        for stage_pass in row
    }
    late = delays(schedule)
    history = [[{name: parameter.detach().clone() for name, parameter in stage.named_parameters()}] for stage in stages]
    optimisers = [make_optimiser(step.optimiser, list(stage.parameters())) for stage in stages]
    for micro, (inputs, targets) in enumerate(zip(batches.inputs, batches.targets, strict=True)):
        used: list[Weights] = []
        activation: torch.Tensor | tuple[torch.Tensor, ...] = ()
        for number, stage in enumerate(stages):
            weights = {
                name: parameter.clone().requires_grad_(True)
                for name, parameter in history[number][version[number, micro, "F"]].items()
            }
            used.append(weights)
            activation = functional_call(
                stage, weights, activation if isinstance(activation, tuple) else (activation,), batch_names(inputs)
            )
        loss = step.loss(activation, *targets)
        for number in range(len(stages)):
            seen, now = version[number, micro, "F"], version[number, micro, "B"]
            drift = _mean_change(history[number][: now + 1], late[number]) if remedies.corrected else {}
            for name, weight in used[number].items():
                weight.data.copy_(history[number][now][name] - (now - seen) * drift.get(name, torch.zeros_like(weight)))
        loss.backward()
        for number, stage in enumerate(stages):
            for name, parameter in stage.named_parameters():
                parameter.grad = used[number][name].grad
            step_at(optimisers[number], remedies.rate(late[number], micro))
            history[number].append({name: parameter.detach().clone() for name, parameter in stage.named_parameters()})
    prefix = len("inner.")
    return {
        name[prefix:]: weight - stage_history[0][name]
        for stage_history in history
        for name, weight in stage_history[-1].items()
    }


def _mean_change(history: Sequence[Weights], delay: int) -> Weights:
    """Of weights from update to update, fading."""
    fading = _FADING ** (1.0 / max(1, delay))
    count = len(history) - 1
    return {
        name: sum(
            (
                (1.0 - fading) * fading ** (count - 1 - at) * (history[at + 1][name] - history[at][name])
                for at in range(count)
            ),
            torch.zeros_like(history[0][name]),
        )
        for name in history[0]
    }
