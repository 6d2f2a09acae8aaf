"""What a pass of a pipeline takes beyond computing, when processes of this machine run one: measured on one of made-up stages.

PyTorch's runtime passes through Python for each pass, and a process that waits for a message wakes when a core is free. Neither is
in the times of stages that run one after another, nor in those of messages between processes that do nothing else. So processes run
a pipeline whose stages' times are known, on the runtime that runs plans, and the start of a pass is what makes the simulator say
the time that it took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bricolage.device.device import Link
from bricolage.train.pipeline.module_stages import Division, Handed, ModuleStage
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.schedule_loop import MicroBatches
from bricolage.train.predict.operator_costs import QUANTILE, goes_on
from bricolage.train.run.executors import Seat, TorchRuntime
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.work.pipeline.generators import one_f_one_b
from bricolage.work.pipeline.table import StageTimes, run_times

_LONGEST_S = 120.0
_DEVICES = 8
"""Stages of the pipeline that is measured, at most."""
_ROWS, _WIDTH = 128, 128
"""Of a micro-batch that goes through stages of two layers: a pass takes a fraction of a millisecond."""
_ROUNDS = (5, 60)
_HALVINGS = 40


@dataclass(frozen=True)
class StartJob:
    """Of each process."""

    devices: int
    seconds: float


@dataclass(frozen=True)
class StartAnswer:
    """What a process saw, milliseconds."""

    steps: tuple[float, ...]
    forward_ms: float
    """Of a stage, while the other processes wait."""
    backward_ms: float


def measure_start(devices: int, threads: int, cores: float, link: Link, seconds: float) -> float:
    """Milliseconds that each pass of a pipeline takes longer than what its stage computes.

    Args:
        devices: processes of this machine, at least 2.
        threads: of each.
        cores: that they share.
        link: between two of them, as messages alone take it.
        seconds: for measuring, but for starting the processes.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    devices = min(devices, _DEVICES)
    answers = run_group(work, [StartJob(devices, seconds)] * devices, StartAnswer, threads, _LONGEST_S + 10 * seconds)
    steps = [max(step_times) for step_times in zip(*(answer.steps for answer in answers), strict=True)]
    forward, backward = answers[0].forward_ms, answers[0].backward_ms
    return estimate_start(float(np.median(steps)), devices, (forward, backward), cores, link)


def estimate_start(step_ms: float, devices: int, passes_ms: tuple[float, float], cores: float, link: Link) -> float:
    """The start of a pass with which the simulator says that 1F1B takes `step_ms` milliseconds.

    Args:
        step_ms: measured, with twice as many micro-batches as devices.
        devices: a stage on each.
        passes_ms: of a stage forward and backward, milliseconds.
        cores: that the devices share.
        link: between two of them.
    """
    schedule = one_f_one_b(devices, 2 * devices)

    def simulate_makespan(start: float) -> float:
        forward, backward = ((ms + start,) * devices for ms in passes_ms)
        send = (link.ms(_ROWS * _WIDTH * 4),) * (devices - 1)
        times = StageTimes(forward, backward, (0.0,) * devices, send)
        return run_times(schedule, times, cores=cores, prefetch=True).makespan_ms

    low, high = 0.0, step_ms
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if simulate_makespan(middle) < step_ms else (low, middle)
    return low


def work(job: StartJob, rank: Rank) -> StartAnswer:
    """What each process does."""
    torch.manual_seed(0)
    division, count = _division(job.devices), 2 * job.devices
    batch = torch.randn(count * _ROWS, _WIDTH)
    batches = MicroBatches.of((batch,), (torch.zeros_like(batch),), count)
    schedule = one_f_one_b(job.devices, count)
    plan = PipelinePlan(
        "1f1b",
        stages=job.devices,
        devices=job.devices,
        replicas=1,
        micro_batches=count,
        recompute=False,
        begins=tuple(range(job.devices)),
        step_ms=0.0,
        bubble=0.0,
        exchange_ms=0.0,
        peak_bytes=0.0,
        bound_ms=0.0,
    )
    runtime = TorchRuntime(division, schedule, Seat(rank.number, plan), None, batches, torch.nn.functional.mse_loss)
    alone = _alone(division.stages[0], batches.inputs[0][0]) if rank.number == 0 else (0.0, 0.0)
    runtime.run()
    steps: list[float] = []
    end = time.perf_counter() + job.seconds
    over = torch.zeros(1, dtype=torch.int64)
    while not int(over):
        rank.dist.barrier()
        begun = time.perf_counter()
        runtime.run()
        steps.append((time.perf_counter() - begun) * 1e3)
        over[0] = not goes_on(len(steps), end, job.seconds, _ROUNDS)
        rank.dist.broadcast(over, 0)  # the first one's clock counts
    return StartAnswer(tuple(steps), *alone)


def _division(stages: int) -> Division:
    """Two layers in each stage."""
    modules: Sequence[ModuleStage] = [
        ModuleStage(
            torch.nn.Sequential(torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH)),
            number,
            [(number - 1, 0)],
            [(number - 1, 0)] if number else [],
            [(number, 0)],
            last=number == stages - 1,
        )
        for number in range(stages)
    ]
    handed = (Handed((_ROWS, _WIDTH), torch.float32, gradient=True),)
    return Division(tuple(modules), (handed,) * (stages - 1))


def _alone(stage: ModuleStage, given: torch.Tensor) -> tuple[float, float]:
    """Milliseconds of a stage's passes, while nothing else runs."""
    times = []
    for _ in range(_ROUNDS[1]):
        begun = time.perf_counter()
        output = stage(input0=given.detach().requires_grad_())
        middle = time.perf_counter()
        output.backward(torch.ones_like(output))
        times.append((middle - begun, time.perf_counter() - middle))
    forward, backward = np.quantile(np.array(times[5:]) * 1e3, QUANTILE, axis=0)
    return float(forward), float(backward)
