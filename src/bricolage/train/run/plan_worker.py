"""What each process does with a plan: its stages, the check of gradients, and its turns in the race."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from bricolage.errors import BadPlan, NotShardable
from bricolage.measure.turns import take_turns
from bricolage.train.pipeline.pipeline_problem import PipelinePlan
from bricolage.train.pipeline.weight_versions import VersionedPipeline, changes_one_by_one
from bricolage.train.run.document import table_of
from bricolage.train.run.executors import DataParallel, Pipeline, Seat, SingleProcess, StepExecutor
from bricolage.train.run.pace import Pace, PacedMachine
from bricolage.train.run.rank import Rank
from bricolage.train.sharded.group_pipeline import GroupPipeline
from bricolage.train.sharded.planned_layouts import GroupedPlan, LayoutPlan
from bricolage.train.sharded.sharded_executors import FullyShardedStep, ShardedOperators
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import TrainingStep, build, on_device
from bricolage.work.pipeline.csv import from_text
from bricolage.work.pipeline.table import PipelineSchedule

SINGLE, SHARDED, FULLY_SHARDED, GROUPS = "single process", "sharded", "fully sharded", "groups"
BOUND = 1e-6
"""Relative error of gradients that is accepted; or four times what rounding (float32) does to those of one process."""
_OF_ITSELF = 4.0
_ROUNDS = (3, 40)
_TURN = 2
"""Steps of a turn, after one that does not count."""


@dataclass(frozen=True)
class PipelineJob:
    """A plan that divides the module."""

    plan: PipelinePlan
    begins: tuple[str, ...]
    """Paths of the modules with which stages begin, but for the first."""
    table: str
    """Its schedule."""
    units: tuple[str, ...] = ()
    """Paths of modules whose weights a divided stage gathers together."""

    @property
    def schedule(self) -> PipelineSchedule:
        """The table."""
        wanted = table_of(self.plan)
        return from_text(wanted.name, self.table, max(wanted.weight_copies), synchronous=wanted.synchronous)


@dataclass(frozen=True)
class ParallelJob:
    """What all processes are given."""

    spec: StepSpec
    pipelines: Mapping[str, PipelineJob]
    """By the name under which they take part."""
    data_parallel: bool
    seconds: float
    """For the race."""
    timeout_s: float
    """For which a process waits for another."""
    threads: int
    """Of each process, but for one that runs alone."""
    single_threads: int
    """Of that one."""
    layouts: LayoutPlan | None = None
    """Of divided operators, where they take part."""
    fully_sharded: bool = False
    """Whether FSDP2 takes part."""
    machine: PacedMachine | None = None
    """Where processes of this machine are in the place of unlike devices: they are as slow."""
    single_rank: int = 0
    """The process that runs the step alone."""
    grouped: GroupedPlan | None = None
    """Stages on groups of devices, where they take part."""


@dataclass(frozen=True)
class MeasuredPass:
    """A pass as it was run: milliseconds from the begin of the step."""

    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class GradientCheck:
    """Relative errors of gradients, of one step, all weights together."""

    error: float
    own_error: float
    """Of the single process in float32."""
    worst: float
    """Of the weight whose error is largest by what is accepted of it."""
    worst_name: str
    own_worst: float = 0.0
    """Of that weight in the single process in float32: a gradient that is zero but for rounding has a large one."""

    @property
    def limit(self) -> float:
        """What is accepted."""
        return max(BOUND, _OF_ITSELF * self.own_error)

    @property
    def accepted(self) -> bool:
        """Whether the gradients are those of the single process."""
        return self.error <= self.limit and self.worst <= max(10.0 * self.limit, _OF_ITSELF * self.own_worst)


@dataclass(frozen=True)
class ParallelAnswer:
    """What a process found."""

    rounds: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    """Milliseconds of steps by the way that was run, of the slowest process."""
    checks: Mapping[str, GradientCheck] = field(default_factory=dict)
    passes: Mapping[str, tuple[MeasuredPass, ...]] = field(default_factory=dict)
    """Of each pipeline's last step, on this process."""
    engines: Mapping[str, str] = field(default_factory=dict)
    """What runs each pipeline here: "torch" (torch.distributed.pipelining), "loop" (ours), "none"."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Ways that were refused, and why."""


def work(job: ParallelJob, rank: Rank) -> ParallelAnswer:
    """Checks gradients, then races."""
    torch.set_num_threads(job.threads if job.machine is None else job.machine.devices[rank.number].threads)
    executors, failures = _make_executors(job, rank)
    checks = _checks(job, rank, executors)
    engines = {
        name: executor.engine
        for name, executor in executors.items()
        if isinstance(executor, Pipeline | VersionedPipeline | GroupPipeline)
    }
    for way, check in checks.items():
        if not check.accepted:
            failures[way] = f"its gradients differ from the single process's by {check.error:.1e} ({check.worst_name})"
            executors.pop(way, None)
    rounds, passes = race_executors(executors, job.seconds, rank)
    return ParallelAnswer(rounds, checks, passes, engines, failures)


def _make_executors(job: ParallelJob, rank: Rank) -> tuple[dict[str, StepExecutor], dict[str, str]]:
    """All ways to run the step, and why others cannot be; all processes agree."""
    executors: dict[str, StepExecutor] = {}
    failures: dict[str, str] = {}
    for name, pipeline_job in job.pipelines.items():
        schedule = pipeline_job.schedule
        reason = ""
        try:
            if schedule.synchronous:
                executors[name] = Pipeline(
                    on_device(build(job.spec), rank.device),
                    Seat(rank.number, pipeline_job.plan, job.machine),
                    schedule,
                    pipeline_job.begins,
                    job.timeout_s,
                    pipeline_job.units,
                )
            else:
                executors[name] = VersionedPipeline(
                    on_device(build(job.spec), rank.device),
                    pipeline_job.plan,
                    schedule,
                    pipeline_job.begins,
                    rank.number,
                )
        except BadPlan as error:
            reason = str(error.facts["reason"])
        if _any(bool(reason), rank):
            failures[name] = reason or "another process cannot divide the module"
            executors.pop(name, None)
    for name, make in _collect_divided(job, rank).items():
        reason = ""
        try:
            executors[name] = make()
        except (BadPlan, NotShardable) as error:
            reason = str(error.facts["reason"])
        if _any(bool(reason), rank):
            failures[name] = reason or "another process cannot divide the step"
            executors.pop(name, None)
    if job.data_parallel:
        executors["data parallel"] = DataParallel(on_device(build(job.spec), rank.device), rank.number, rank.size)
    pace = None if job.machine is None else Pace(job.machine.devices[rank.number])
    threads = job.single_threads if pace is None else pace.device.threads
    takes_part = rank.number == job.single_rank
    executors[SINGLE] = SingleProcess(job.spec, threads, takes_part=takes_part, device=rank.device, pace=pace)
    return executors, failures


def _collect_divided(job: ParallelJob, rank: Rank) -> dict[str, Callable[[], StepExecutor]]:
    """Ways with divided operators or weights that take part."""
    makers: dict[str, Callable[[], StepExecutor]] = {}
    if job.layouts is not None:
        makers[SHARDED] = partial(ShardedOperators, on_device(build(job.spec), rank.device), job.layouts)
    if job.fully_sharded:
        makers[FULLY_SHARDED] = partial(FullyShardedStep, on_device(build(job.spec), rank.device))
    if job.grouped is not None:
        step = on_device(build(job.spec), rank.device)
        makers[GROUPS] = partial(GroupPipeline, step, job.grouped, rank.number, job.timeout_s)
    return makers


def _any(one: bool, rank: Rank) -> bool:
    """Whether it is so in any process."""
    flag = torch.tensor([int(one)])
    rank.dist.all_reduce(flag, op=rank.dist.ReduceOp.MAX)
    return bool(int(flag))


# --- gradients ----------------------------------------------------------------------------------------------------------


def _checks(job: ParallelJob, rank: Rank, executors: Mapping[str, StepExecutor]) -> dict[str, GradientCheck]:
    """Of each way to run the step on several processes; all processes see the same."""
    names = [name for name, parameter in build(job.spec).module.named_parameters() if parameter.requires_grad]
    exact, own_error = reference_gradients(job.spec, rank, names)
    checks = {}
    for kind, executor in executors.items():
        if kind == SINGLE:
            continue
        if isinstance(executor, VersionedPipeline):
            executor.learn()
            changes = shared_reference(
                partial(_changes_of, job.spec, job.pipelines[kind], names), names, job.spec, rank
            )
            checks[kind] = compare_gradients(names, *changes, executor.gradients(), rank)
            continue
        executor.run()
        checks[kind] = compare_gradients(names, exact, own_error, executor.gradients(), rank)
    return checks


def reference_gradients(
    spec: StepSpec, rank: Rank, names: Sequence[str]
) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
    """Gradients of the single process in float64, and by weight the error of its own in float32; from the first process."""
    return shared_reference(partial(_gradients_of, spec, names), names, spec, rank)


def shared_reference(
    compute: Callable[[torch.dtype], torch.Tensor], names: Sequence[str], spec: StepSpec, rank: Rank
) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
    """What the first process computes in float64, by weight, and by weight the norm of the error of the same in float32."""
    shapes = {name: parameter.shape for name, parameter in build(spec).module.named_parameters()}
    sizes = [shapes[name].numel() for name in names]
    flat = torch.zeros(sum(sizes) + len(names), dtype=torch.float64)
    if rank.number == 0:
        single, double = compute(torch.float32).double(), compute(torch.float64)
        errors = [part.norm() for part in (single - double).split(sizes)]
        flat = torch.cat([double, torch.stack(errors)])
    rank.dist.broadcast(flat, 0)
    parts = flat[: -len(names)].split(sizes)
    return dict(zip(names, parts, strict=True)), flat[-len(names) :]


def _in(kind: torch.dtype, spec: StepSpec) -> TrainingStep:
    """The step with weights and batch of a type."""
    step = build(spec)

    def like(one: torch.Tensor) -> torch.Tensor:
        return one.to(kind) if one.is_floating_point() else one

    return replace(
        step, module=step.module.to(kind), inputs=tuple(map(like, step.inputs)), targets=tuple(map(like, step.targets))
    )


def _gradients_of(spec: StepSpec, names: Sequence[str], kind: torch.dtype) -> torch.Tensor:
    step = _in(kind, spec)
    step.loss(step.module(*step.inputs), *step.targets).backward()
    parameters = dict(step.module.named_parameters())
    grads = [parameters[name].grad for name in names]
    zeros = [
        torch.zeros_like(parameters[name]) if grad is None else grad for name, grad in zip(names, grads, strict=True)
    ]
    return torch.cat([zero.reshape(-1) for zero in zeros])


def _changes_of(spec: StepSpec, job: PipelineJob, names: Sequence[str], kind: torch.dtype) -> torch.Tensor:
    changes = changes_one_by_one(_in(kind, spec), job.plan, job.schedule, job.begins)
    return torch.cat([changes[name].reshape(-1) for name in names])


def compare_gradients(
    names: Sequence[str],
    exact: Mapping[str, torch.Tensor],
    own: torch.Tensor,
    here: Mapping[str, torch.Tensor],
    rank: Rank,
) -> GradientCheck:
    """The largest difference that any process sees in each weight. `own`: by weight the error of one process in float32."""
    errors = torch.full((len(names),), -1.0, dtype=torch.float64)
    for place, name in enumerate(names):
        if name in here:
            difference = (here[name].detach().cpu().double().reshape(-1) - exact[name]).norm()
            errors[place] = difference if difference.isfinite() else float("inf")
    rank.dist.all_reduce(errors, op=rank.dist.ReduceOp.MAX)
    sizes = torch.stack([exact[name].norm() for name in names])
    whole = float(sizes.norm()) or 1.0
    # A weight that no process has, is one whose gradient is missing.
    errors = torch.where(errors < 0.0, sizes, errors)
    least = sizes.clamp_min(1e-3 * whole)
    relative, own_relative = errors / least, own / least
    check = GradientCheck(float(errors.norm()) / whole, float(own.norm()) / whole, 0.0, "")
    worst = int((relative / (_OF_ITSELF * own_relative).clamp_min(10.0 * check.limit)).argmax())
    return replace(check, worst=float(relative[worst]), worst_name=names[worst], own_worst=float(own_relative[worst]))


# --- the race ------------------------------------------------------------------------------------------------------------


def race_executors(
    executors: Mapping[str, StepExecutor], seconds: float, rank: Rank
) -> tuple[tuple[Mapping[str, tuple[float, ...]], ...], Mapping[str, tuple[MeasuredPass, ...]]]:
    """Rounds of turns: in each, every way runs some steps; a step takes what its slowest process takes. All processes call it."""
    rounds: list[dict[str, tuple[float, ...]]] = []
    last: dict[str, tuple[MeasuredPass, ...]] = {}
    begun = time.perf_counter()

    def turn(name: str) -> None:
        executors[name].run()
        times = []
        for _ in range(_TURN):
            rank.dist.barrier()
            at = time.perf_counter()
            passes = executors[name].run()
            if rank.device != "cpu":
                torch.cuda.synchronize(rank.device)
            times.append((time.perf_counter() - at) * 1e3)
            last[name] = tuple(
                MeasuredPass(str(stage_pass), (start - at) * 1e3, (end - at) * 1e3)
                for stage_pass, start, end in passes.passes
            )
        slowest = torch.tensor(times, dtype=torch.float64)
        rank.dist.all_reduce(slowest, op=rank.dist.ReduceOp.MAX)
        rounds[-1][name] = tuple(slowest.tolist())

    def remaining(number: int, running: list[str]) -> Sequence[str]:
        # All processes have to agree: the first one's clock counts.
        over = torch.tensor([int(number >= _ROUNDS[0] and time.perf_counter() - begun > seconds)])
        rank.dist.broadcast(over, 0)
        if int(over) or number >= _ROUNDS[1]:
            return ()
        rounds.append({})
        return running

    if seconds > 0.0 and executors:
        take_turns(list(executors), turn, remaining)
    return tuple(rounds), {name: measured_passes for name, measured_passes in last.items() if measured_passes}
