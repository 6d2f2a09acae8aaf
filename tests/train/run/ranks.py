"""What the processes of these tests do: run a pipeline, and compare its gradients with the single process's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.run.document import table_of
from bricolage.train.run.executors import Pipeline, Seat
from bricolage.train.run.plan_worker import GradientCheck, compare_gradients, reference_gradients
from bricolage.train.run.rank import Rank
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import build


@dataclass(frozen=True)
class Several:
    """Plans to run, one after another."""

    spec: StepSpec
    plans: tuple[PipelinePlan, ...]
    begins: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Found:
    """By plan."""

    checks: tuple[GradientCheck, ...]
    engines: tuple[str, ...]
    passes: tuple[tuple[str, ...], ...]
    held: tuple[int, ...]
    """Numbers of weights that this process holds."""


def gradients(job: Several, rank: Rank) -> Found:
    """Runs each plan once."""
    torch.set_num_threads(1)
    names = [name for name, one in build(job.spec).module.named_parameters() if one.requires_grad]
    exact, own = reference_gradients(job.spec, rank, names)
    checks, engines, passes, held = [], [], [], []
    for plan, begins in zip(job.plans, job.begins, strict=True):
        schedule = table_of(plan)
        units = [f"layers.{number}" for number in range(4)]
        made = Pipeline(build(job.spec), Seat(rank.number, plan), schedule, begins, 60.0, units)
        made.run()
        timed = made.run()
        here: Mapping[str, torch.Tensor] = made.gradients()
        checks.append(compare_gradients(names, exact, own, here, rank))
        engines.append(made.engine)
        passes.append(tuple(str(one) for one, _, _ in timed.passes))
        held.append(sum(map(_held, made.weights)))
    return Found(tuple(checks), tuple(engines), tuple(passes), tuple(held))


def _held(one: torch.Tensor) -> int:
    return (one.to_local() if isinstance(one, DTensor) else one).numel()
