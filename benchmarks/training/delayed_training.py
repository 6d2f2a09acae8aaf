"""Training for several batches by PipeMare's pipeline, and by the same micro-batches one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bricolage.train.pipeline.module_stages import divide_module
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.pipemare import DelayedWeights, Remedies
from bricolage.train.pipeline.schedule_loop import MicroBatches, ScheduleLoop
from bricolage.train.run.rank import Rank
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import build, call_batch, make_optimiser
from bricolage.work.pipeline.csv import from_text


@dataclass(frozen=True)
class DelayedJob:
    """Of each process."""

    spec: StepSpec
    plan: PipelinePlan
    begins: tuple[str, ...]
    table: str
    batches: int
    remedies: Remedies


@dataclass(frozen=True)
class DelayedAnswer:
    """Losses by batch, in the process that has the last stage; empty in others."""

    losses: tuple[float, ...]


def train_delayed(job: DelayedJob, rank: Rank) -> DelayedAnswer:
    """Trains for some batches, each from a seed of its own; between two batches the pipeline runs empty."""
    torch.set_num_threads(1)
    step = build(job.spec)
    batches = MicroBatches.of(step.inputs, step.targets, job.plan.micro_batches)
    schedule = from_text("pipemare", job.table, 1, synchronous=False)
    division = divide_module(step, job.begins, batches.inputs[0])
    loop = ScheduleLoop(division, schedule, rank.number, range(rank.size), batches, step.loss)
    weights = DelayedWeights(
        loop.stages, schedule, lambda parameters: make_optimiser(step.optimiser, parameters), job.remedies
    )
    losses = []
    for number in range(job.batches):
        loop.batches = MicroBatches.of(*call_batch(job.spec, number), job.plan.micro_batches)
        loop.run(weights)
        losses.append(float(sum(loop.losses)) if loop.losses else 0.0)
    return DelayedAnswer(tuple(losses) if loop.losses else ())


def train_in_turn(spec: StepSpec, micro_batches: int, batches: int) -> tuple[float, ...]:
    """Losses of the same micro-batches in one process, one after another, each with all updates before it: what asynchronous
    training is to come close to."""
    step = build(spec)
    optimiser = step.make_optimiser()
    losses = []
    for number in range(batches):
        chunks = MicroBatches.of(*call_batch(spec, number), micro_batches)
        total = 0.0
        for inputs, targets in zip(chunks.inputs, chunks.targets, strict=True):
            total += float(replace(step, inputs=inputs, targets=targets).run(optimiser))
        losses.append(total / micro_batches)
    return tuple(losses)
