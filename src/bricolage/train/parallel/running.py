"""Runs a plan: on processes that this one starts, or as one of those that `torchrun` has started."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.codec import DecodeError, decode, encode, parse
from bricolage.costs.latency import Latency
from bricolage.device.host import host
from bricolage.errors import BadPlan, DifferentDevices
from bricolage.measure.statistics import Ratio
from bricolage.measure.turns import Turns
from bricolage.options import available_cores
from bricolage.train.parallel.worker import (
    Contestant,
    GradientCheck,
    MeasuredPass,
    ParallelAnswer,
    ParallelJob,
    work,
)
from bricolage.train.plan.document import RESULT, TrainingPlan, read_plan
from bricolage.train.process_group import run_group
from bricolage.train.rank import Rank
from bricolage.work.pipeline.csv import table_text


@dataclass(frozen=True)
class PlanResult:
    """What came of a plan that was run. Times in milliseconds."""

    predicted_ms: Mapping[str, float]
    measured: Mapping[str, Latency]
    """Of a step, by the way it was run."""
    checks: Mapping[str, GradientCheck]
    failures: Mapping[str, str]
    """Ways that were refused, and why."""
    kept: Contestant
    """The fastest."""
    speedups: Mapping[str, Ratio]
    """Of the way that is kept over the others."""
    passes: tuple[tuple[MeasuredPass, ...], ...]
    """By rank, those of the pipeline's last step."""
    engine: str
    """What ran the pipeline: "torch" (torch.distributed.pipelining) or "loop" (ours)."""

    def error(self, way: str) -> float | None:
        """Predicted over measured time, minus one."""
        if way not in self.measured or way not in self.predicted_ms:
            return None
        return self.predicted_ms[way] / self.measured[way].median_ms - 1.0


def run_plan(
    folder: Path, *, seconds: float = 8.0, timeout_s: float = 120.0, rank: Rank | None = None
) -> PlanResult | None:
    """Runs a plan: checks its gradients against the single process, then races it with plain data parallelism and one process.

    Args:
        folder: the plan's.
        seconds: for the race.
        timeout_s: for which a process waits for another.
        rank: this process, where somebody else has started the others; None: they are started here.

    Returns:
        What came of it, in the first process; None in the others. It is written into the folder as `result.json`.

    Raises:
        MissingFile, NewerTrainingPlan, BadPlan: the plan cannot be read.
        DifferentDevices: it is for other devices.
        TrainingWorkerFailed: a process ends, or does not come.
    """
    plan, schedule = read_plan(folder)
    count = plan.devices.count
    _check_devices(plan, count if rank is None else rank.size)
    ways: list[Contestant] = ["single process"]
    if count > 1 and plan.step.batch_size % count == 0:
        ways.insert(0, "data parallel")
    pipelined = plan.pipelined
    if pipelined is not None:
        ways.insert(0, "pipeline")
    job = ParallelJob(
        plan.step,
        pipelined,
        () if pipelined is None else plan.begins(pipelined),
        table_text(schedule),
        tuple(ways),
        True,
        seconds,
        timeout_s,
        max(1, available_cores() // count) if plan.devices.here else plan.made.threads,
        plan.single_threads,
    )
    if rank is None:
        answers: Sequence[ParallelAnswer] = run_group(
            work, [job] * count, ParallelAnswer, job.threads, timeout_s + 4 * seconds, wait_s=timeout_s
        )
    else:
        own = work(job, rank)
        several: list[ParallelAnswer | None] = [None] * rank.size
        rank.dist.all_gather_object(several, own)
        if rank.number:
            return None
        answers = [one for one in several if one is not None]
    result = _result(plan, answers)
    (folder / RESULT).write_text(json.dumps(encode(result), indent=1) + "\n", encoding="utf-8")
    return result


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


def _check_devices(plan: TrainingPlan, found: int) -> None:
    """Raises DifferentDevices where the plan is for others."""
    wanted = plan.devices
    here = host()
    if found != wanted.count:
        raise DifferentDevices(wanted=wanted, found=f"{found} processes")
    if wanted.kind != "cpu":
        raise DifferentDevices(wanted=wanted, found="processors alone")
    if wanted.here and here.fingerprint() != plan.made.fingerprint:
        raise DifferentDevices(wanted=f"{wanted}, {plan.made.host}", found=here)
    if wanted.here and available_cores() != wanted.cores:
        raise DifferentDevices(wanted=f"{wanted} of {wanted.cores} cores", found=f"{available_cores()} cores")


def _result(plan: TrainingPlan, answers: Sequence[ParallelAnswer]) -> PlanResult:
    first = answers[0]
    turns = Turns(first.rounds)
    every: tuple[Contestant, ...] = ("pipeline", "data parallel", "single process")
    names = [one for one in every if turns.samples(one)]
    measured: dict[str, Latency] = {one: turns.latency(one) for one in names}
    kept = min(names, key=lambda one: measured[one].median_ms)
    predicted: dict[str, float] = {"single process": plan.single_ms}
    if plan.data_parallel_ms is not None:
        predicted["data parallel"] = plan.data_parallel_ms
    if plan.pipelined is not None:
        predicted["pipeline"] = plan.pipelined.step_ms
    speedups = {one: turns.ratio(kept, one) for one in names if one != kept}
    return PlanResult(
        predicted,
        measured,
        first.checks or {},
        first.failures or {},
        kept,
        {name: one for name, one in speedups.items() if one is not None},
        tuple(one.passes for one in answers),
        first.engine,
    )
