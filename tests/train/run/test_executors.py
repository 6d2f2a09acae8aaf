"""Plans run on gloo processes: gradients are those of the single process, in whichever way the schedule is run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.run.process_group import run_group
from bricolage.train.step.spec import Optimiser, StepSpec

pytest.importorskip("torch")

from tests.train.run.ranks import Found, Several, gradients

HERE = str(Path(__file__).parent)


def spec(module: str) -> StepSpec:
    return StepSpec(f"code.py:{module}", "code.py:batch", batch_size=16, optimiser=Optimiser("adam"), folder=HERE)


def plan(
    schedule: str, devices: int, replicas: int, micro: int, stages: int, *, recompute: bool = False
) -> PipelinePlan:
    return PipelinePlan(
        schedule, stages, devices, replicas, micro, recompute, tuple(range(stages)), 1.0, 0.0, 0.0, 0.0, 0.0
    )


def begins(stages: int) -> tuple[str, ...]:
    return tuple(f"layers.{number}" for number in range(1, stages))


def run(module: str, *plans: PipelinePlan) -> list[Found]:
    job = Several(spec(module), plans, tuple(begins(one.stages) for one in plans))
    return run_group(gradients, [job] * 4, Found, 1, 120.0, wait_s=60.0)


def test_pipelines_give_the_gradients_of_the_single_process() -> None:
    plans = (
        plan("zb-v", 2, 2, 4, 4),
        replace(plan("gpipe", 2, 2, 2, 2, recompute=True), divided=(1,)),
        plan("chimera", 4, 1, 4, 4),
        plan("chimera", 2, 2, 2, 2, recompute=True),
        replace(plan("interleaved", 2, 2, 2, 4), divided=(0, 3)),
        plan("1f1b", 3, 1, 4, 3),  # the fourth process has nothing to do
    )
    found = run("perceptrons", *plans)
    for number, one in enumerate(plans):
        for rank in range(4):
            assert found[rank].checks[number].accepted, (one, found[rank].checks[number])
    assert found[0].engines == ("torch", "torch", "loop", "loop", "torch", "torch")
    assert found[3].engines[-1] == "none"
    whole = sum(one.held[-1] for one in found)
    first, halves = found[0].held[1], (found[1].held[1], found[3].held[1])
    assert first + sum(halves) == whole and abs(halves[0] - halves[1]) < whole / 100, "the second stage lies divided"
    assert found[0].passes[2][:4] == ("0F0", "0F1", "3F2", "3B2"), "the order of Chimera's first device"


def test_values_for_later_stages_are_handed_on_and_a_mask_without_gradient_is_sent_by_our_loop() -> None:
    found = run("skipping", plan("1f1b", 3, 1, 4, 3))
    assert all(check.accepted for one in found for check in one.checks), found[0].checks
    assert set(found[0].engines) <= {"loop", "torch"}
