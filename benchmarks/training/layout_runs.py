"""Plans of layouts for a spec, and their steps on processes of this machine that meet by gloo.

group = here(spec, 2)                        # links measured among two processes of this machine
plan = plan_spec(spec, group)
ran = run_plan(spec, plan)                   # gradients against one process, and the times of steps
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bricolage.device.host import host
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.sharded.calls import measure_calls, slowdown_of
from bricolage.train.sharded.dtensor_step import distribute
from bricolage.train.sharded.layout_plan import DeviceGroup, plan_layouts, share_of_peaks
from bricolage.train.sharded.partitioned_step import PartitionedStep
from bricolage.train.sharded.planned_layouts import LayoutPlan
from bricolage.train.sharded.step_graph import trace_joint
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import build, make_optimiser

_LONGEST_S = 600.0


@dataclass(frozen=True)
class LayoutJob:
    """Of one process."""

    spec: StepSpec
    plan: LayoutPlan
    steps: int


@dataclass(frozen=True)
class LayoutRun:
    """What a plan's steps gave, the worst of all processes; times in milliseconds."""

    error: float
    """Of loss and gradients of the first step, relative to one process: the largest ‖a - b‖ / ‖b‖."""
    step_ms: float
    """Median, with the update."""
    single_ms: float
    """The same of one process while the others wait."""
    loss: float
    """Behind the last step."""
    strayed: tuple[str, ...]
    """Operators that DTensor laid out in another way than planned."""


def here(spec: StepSpec, workers: int, *, threads: int = 1, seconds: float = 2.0) -> DeviceGroup:
    """Processes of this machine as a group of devices: what they exchange is measured, and how much longer than its roofline one
    process takes for the step.

    Args:
        spec: whose step runs meanwhile.
        workers: how many.
        threads: of each.
        seconds: for measuring.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    from bricolage.train.predict.workers import measure_ring

    device = host()
    ring, _ = measure_ring(spec, workers, threads, seconds)
    calls = measure_calls(workers, threads, spec.optimiser, seconds)
    peaks = share_of_peaks(device, threads, workers)
    joint = trace_joint(build(spec))
    slowdown = slowdown_of([joint], peaks, calls.operator_ms, 1.0, threads)
    memory = device.memory_bytes / workers
    return DeviceGroup(
        workers,
        calls.on(ring),
        peaks,
        memory,
        start_ms=calls.operator_ms,
        update_ms=calls.update_ms,
        slowdown=slowdown,
    )


def plan_spec(spec: StepSpec, group: DeviceGroup, *, limit_s: float = 60.0) -> LayoutPlan:
    """The best layouts of a spec's step on a group of devices; arguments and errors as of `plan_layouts`, `build` and
    `trace_joint`."""
    step = build(spec)
    return plan_layouts(trace_joint(step), step.optimiser, group, limit_s=limit_s)


def run_plan(spec: StepSpec, plan: LayoutPlan, *, threads: int = 1, steps: int = 5) -> LayoutRun:
    """Runs a plan's steps on as many processes of this machine as it has devices, and checks the first against one process.

    Args:
        spec: that the plan is for.
        plan: the layouts.
        threads: of each process.
        steps: at least 1.

    Raises:
        TrainingWorkerFailed: a process fails, as it does where the plan is for another step.
    """
    runs = run_group(work, [LayoutJob(spec, plan, steps)] * plan.workers, LayoutRun, threads, _LONGEST_S)
    return LayoutRun(
        max(rank_run.error for rank_run in runs),
        max(rank_run.step_ms for rank_run in runs),
        runs[0].single_ms,
        runs[0].loss,
        tuple(sorted({name for rank_run in runs for name in rank_run.strayed})),
    )


def work(job: LayoutJob, rank: Rank) -> LayoutRun:
    """What each process does."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    step = build(job.spec)
    joint = trace_joint(step)
    state: Mapping[str, torch.Tensor] = {**dict(step.module.named_parameters()), **dict(step.module.named_buffers())}
    mesh = init_device_mesh("cpu", (rank.size,))
    given = distribute(joint, job.plan, state, [*step.inputs, *step.targets], mesh)
    program = PartitionedStep(joint, job.plan, given)
    parts = [tensor.to_local() for tensor in given]
    parameters = {name: torch.nn.Parameter(part) for name, part in zip(joint.parameters, parts, strict=False)}
    now = [*parameters.values(), *parts[len(parameters) :]]
    optimiser = make_optimiser(step.optimiser, list(parameters.values()))

    loss = step.loss(step.module(*step.inputs), *step.targets)
    loss.backward()
    last = program.run(now)
    pairs = [(last.loss, loss.detach())]
    for name, gradient in last.gradients.items():
        whole = state[name].grad
        if gradient is not None and whole is not None:
            pairs.append((program.whole(name, gradient), whole))
    error = max(float((a - b).norm() / max(float(b.norm()), 1e-12)) for a, b in pairs)

    def once() -> None:
        nonlocal last
        last = program.run(now)
        for name, parameter in parameters.items():
            parameter.grad = last.gradients[name]
        optimiser.step()

    times = _times(once, job.steps, rank.dist.barrier)
    alone = step.make_optimiser()
    single = _times(lambda: step.run(alone), job.steps, lambda: None) if rank.number == 0 else 0.0
    rank.dist.barrier()
    return LayoutRun(error, times, single, float(last.loss), program.strayed)


def _times(run: Callable[[], object], steps: int, meet: Callable[[], object]) -> float:
    """Median milliseconds."""
    durations = []
    for _ in range(steps):
        meet()
        started = time.perf_counter()
        run()
        durations.append((time.perf_counter() - started) * 1e3)
    return sorted(durations)[len(durations) // 2]
