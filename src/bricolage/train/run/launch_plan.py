"""Runs a plan: on processes that this one starts, or as one of those that `torchrun` has started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.codec import DecodeError, decode, encode, parse
from bricolage.base.options import available_cores
from bricolage.costs.latency import Latency
from bricolage.device.host import host
from bricolage.errors import BadPlan, DifferentDevices
from bricolage.measure.statistics import Ratio
from bricolage.measure.turns import Turns
from bricolage.train.pipeline.unlike_groups import equal_shares
from bricolage.train.run.document import RESULT, TrainingPlan, read_training_plan, table_of
from bricolage.train.run.pace import paced_machine
from bricolage.train.run.plan_worker import (
    SINGLE,
    GradientCheck,
    MeasuredPass,
    ParallelAnswer,
    ParallelJob,
    PipelineJob,
    work,
)
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.work.pipeline.csv import table_text
from bricolage.work.pipeline.table import PipelineSchedule

PIPELINE = "pipeline"
_NO_LAUNCHER = "processes of this machine; torchrun starts those of GPUs"
_WHOLE = 10.0
"""Times what one process waits for another: what all of it may take. One that hangs is found by those that wait for it."""


@dataclass(frozen=True)
class PlanResult:
    """What came of a plan that was run. Times in milliseconds; by the way that was run: "pipeline", "data parallel" ..."""

    predicted_ms: Mapping[str, float]
    measured: Mapping[str, Latency]
    checks: Mapping[str, GradientCheck]
    failures: Mapping[str, str]
    """Ways that were refused, and why."""
    kept: str
    """The fastest."""
    speedups: Mapping[str, Ratio]
    """Of the way that is kept over the others."""
    passes: Mapping[str, tuple[tuple[MeasuredPass, ...], ...]]
    """By rank, those of a pipeline's last step."""
    engines: Mapping[str, str]
    """What ran a pipeline: "torch" (torch.distributed.pipelining) or "loop" (ours)."""

    def error(self, way: str) -> float | None:
        """Predicted over measured time, minus one."""
        if way not in self.measured or way not in self.predicted_ms:
            return None
        return self.predicted_ms[way] / self.measured[way].median_ms - 1.0


def launch_plan(
    folder: Path, *, seconds: float = 8.0, timeout_s: float = 120.0, pipelines: int = 1, rank: Rank | None = None
) -> PlanResult | None:
    """Runs a plan: checks its gradients against the single process, then races it with plain data parallelism and one process.

    Args:
        folder: the plan's.
        seconds: for the race.
        timeout_s: for which a process waits for another.
        pipelines: that take part, the fastest as predicted; the first by the plan's `schedule.csv`.
        rank: this process, where the others were started elsewhere; None: they are started here.

    Returns:
        What came of it, in the first process; None in the others. It is written into the folder as `result.json`.

    Raises:
        MissingFile, NewerTrainingPlan, BadPlan: the plan cannot be read.
        DifferentDevices: it is for other devices.
        BadDevices: processes of this machine cannot be its unlike devices.
        TrainingWorkerFailed: a process ends, or does not come.
    """
    plan, schedule = read_training_plan(folder)
    count = plan.devices.count
    _check_devices(plan, count if rank is None else rank.size, rank)
    job = _parallel_job(plan, schedule, pipelines, started_here=rank is None)
    job = replace(job, seconds=seconds, timeout_s=timeout_s)
    if rank is None:
        answers: Sequence[ParallelAnswer] = run_group(
            work, [job] * count, ParallelAnswer, job.threads, _WHOLE * timeout_s + 4 * seconds, wait_s=timeout_s
        )
    else:
        own_answer = work(job, rank)
        several: list[ParallelAnswer | None] = [None] * rank.size
        rank.dist.all_gather_object(several, own_answer)
        if rank.number:
            return None
        answers = [answer for answer in several if answer is not None]
    predicted = {name: pipeline.plan.step_ms for name, pipeline in job.pipelines.items()} | plan.ways_ms
    result = _result(predicted, answers)
    (folder / RESULT).write_text(json.dumps(encode(result), indent=1) + "\n", encoding="utf-8")
    return result


def _parallel_job(
    plan: TrainingPlan, schedule: PipelineSchedule | None, pipelines: int, *, started_here: bool
) -> ParallelJob:
    """What processes do with a plan, without its times.

    Raises:
        BadDevices: processes of this machine cannot be its unlike devices.
    """
    jobs = {
        PIPELINE if not number else f"{PIPELINE} {number + 1}": PipelineJob(
            pipeline_plan,
            plan.begins(pipeline_plan),
            table_text(table_of(pipeline_plan) if number or schedule is None else schedule),
            plan.units(),
        )
        for number, pipeline_plan in enumerate(plan.pipelines[:pipelines])
    }
    unlike, machine = plan.devices.unlike, None
    if unlike is not None:
        if started_here:
            assert plan.step.devices is not None
            machine = paced_machine(plan.step.devices.described())
        if (shares := equal_shares(plan.problem)) is not None:
            jobs["data parallel"] = PipelineJob(shares, (), table_text(table_of(shares)))
    return ParallelJob(
        plan.step,
        jobs,
        data_parallel=plan.data_parallel_ms is not None and unlike is None,
        seconds=0.0,
        timeout_s=0.0,
        threads=max(1, available_cores() // plan.devices.count) if plan.devices.here else plan.made.threads,
        single_threads=plan.single_threads,
        layouts=plan.layouts,
        fully_sharded=plan.fully_sharded is not None,
        grouped=plan.grouped,
        machine=machine,
        single_rank=0 if unlike is None else unlike.alone(plan.step.batch_size) or 0,
    )


def read_result(folder: Path) -> PlanResult | None:
    """What came of a plan when it was run; None where it has not been.

    Raises:
        BadPlan: the file is damaged.
    """
    place = folder / RESULT
    if not place.is_file():
        return None
    try:
        return decode(PlanResult, parse(place.read_bytes()), "result")
    except DecodeError as error:
        raise BadPlan(reason=f"'{place}' is damaged: {error}") from error


def _check_devices(plan: TrainingPlan, found: int, rank: Rank | None) -> None:
    """Raises DifferentDevices where the plan is for others."""
    wanted = plan.devices
    here = host()
    if found != wanted.count:
        raise DifferentDevices(wanted=wanted, found=f"{found} processes")
    if wanted.kind != "cpu" and (rank is None or rank.device == "cpu"):
        raise DifferentDevices(wanted=wanted, found="processors alone" if rank is not None else _NO_LAUNCHER)
    if wanted.here and here.fingerprint() != plan.made.fingerprint:
        raise DifferentDevices(wanted=f"{wanted}, {plan.made.host}", found=here)
    if wanted.here and available_cores() != wanted.cores:
        raise DifferentDevices(wanted=f"{wanted} of {wanted.cores} cores", found=f"{available_cores()} cores")


def _result(predicted: Mapping[str, float], answers: Sequence[ParallelAnswer]) -> PlanResult:
    first = answers[0]
    turns = Turns(first.rounds)
    measured = {way: turns.latency(way) for way in (first.rounds[0] if first.rounds else ())}
    kept = min(measured, key=lambda way: measured[way].median_ms, default=SINGLE)
    speedups = {way: turns.ratio(kept, way) for way in measured if way != kept}
    return PlanResult(
        predicted,
        measured,
        checks=first.checks,
        failures=first.failures,
        kept=kept,
        speedups={name: speedup for name, speedup in speedups.items() if speedup is not None},
        passes={name: tuple(answer.passes.get(name, ()) for answer in answers) for name in first.engines},
        engines=first.engines,
    )
