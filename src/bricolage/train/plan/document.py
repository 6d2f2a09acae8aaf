"""A plan of a training step as data: a folder with `plan.json`, which says everything, and `schedule.csv`, the order of passes.

A plan holds what it was made from (the step, devices, times of layers), so that its prediction can be made again from the file.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from os.path import relpath
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from bricolage.codec import DecodeError, Length, Within, decode, encode, parse
from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import BadPlan, MissingFile, NewerTrainingPlan
from bricolage.train.plan.problem import PipelinePlan, PipelineProblem, PlannedLayer
from bricolage.train.spec import StepSpec
from bricolage.work.pipeline.csv import from_text, table_text
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.table import PipelineSchedule

FORMAT = 1
"""Version of the format. Readers refuse a higher one."""
PLAN, TABLE, RESULT = "plan.json", "schedule.csv", "result.json"
"""Files of a plan's folder."""
Way: TypeAlias = Literal["pipeline", "data parallel", "single process"]


@dataclass(frozen=True)
class PlanOrigin:
    """What made a plan, and where."""

    bricolage: str
    torch: str
    host: str
    """The machine that timed the step."""
    fingerprint: str
    threads: Annotated[int, Within(1, 1 << 16)]
    """Of each process while the step was timed."""


@dataclass(frozen=True)
class PlanDevices:
    """The devices of a plan, which it takes as alike: as the slowest of them, with the slowest link."""

    count: Annotated[int, Within(1, 4096)]
    here: bool
    """Whether they are processes of one machine, which share its cores."""
    kind: str
    names: tuple[str, ...]
    link: Link
    memory_bytes: Annotated[int, Within(0, 1 << 62)]
    """Of each; 0 where that is not known."""
    cores: Annotated[int, Within(0, 1 << 16)]
    """Cores that processes of one machine share; 0: each device has its own."""

    def __str__(self) -> str:
        each = (
            f"{self.count} process{'es' * (self.count != 1)} on one machine" if self.here else f"{self.count} devices"
        )
        return each if self.here else f"{each} ({self.kind})"


@dataclass(frozen=True)
class PlanChange:
    """What another link, or other devices, would make of the step: the best plan there."""

    change: str
    step_ms: float
    plan: PipelinePlan


@dataclass(frozen=True)
class TrainingPlan:
    """What `plan.json` holds. Times in milliseconds."""

    format: Annotated[int, Within(1, FORMAT)]
    made: PlanOrigin
    step: StepSpec
    devices: PlanDevices
    layers: Annotated[tuple[PlannedLayer, ...], Length(1, 1 << 16)]
    ring: Ring | None
    """How all-reduces were measured; none for described devices."""
    prefetch: bool
    chosen: PipelinePlan
    way: Way
    """The way to run the step that is predicted to be fastest."""
    runner_ups: tuple[PipelinePlan, ...]
    single_ms: float
    """Of the step in one process."""
    single_threads: Annotated[int, Within(1, 1 << 16)]
    """Of that process: as many as are fastest."""
    data_parallel_ms: float | None
    """By DistributedDataParallel on all devices, which exchanges while it computes. None where the batch does not divide."""
    changes: tuple[PlanChange, ...]
    notes: tuple[str, ...] = ()
    """What the plan does not have, and why."""

    def __post_init__(self) -> None:
        _ = self.problem
        most = len(self.layers)
        for one in (self.chosen, *self.runner_ups):
            if one.devices * one.replicas > self.devices.count:
                raise ValueError(f"a plan takes {one.devices * one.replicas} devices of {self.devices.count}")
            if list(one.begins) != sorted(set(one.begins)) or not one.begins or one.begins[-1] >= most or one.begins[0]:
                raise ValueError("a plan's stages do not begin at layers in their order")
            if self.step.batch_size % (one.replicas * one.micro_batches):
                raise ValueError(f"{one.replicas} x {one.micro_batches} micro-batches do not divide the batch")

    @cached_property
    def problem(self) -> PipelineProblem:
        """What was planned."""
        devices = self.devices
        return PipelineProblem(
            self.layers,
            devices.count,
            self.step.batch_size,
            devices.link,
            devices.memory_bytes or math.inf,
            cores=devices.cores or math.inf,
            prefetch=self.prefetch,
            ring=self.ring,
        )

    @property
    def bound_ms(self) -> float:
        """No way takes less."""
        return self.chosen.bound_ms

    @property
    def step_ms(self) -> float:
        """Predicted, the way that it chooses."""
        if self.way == "single process":
            return self.single_ms
        if self.way == "data parallel" and self.data_parallel_ms is not None:
            return self.data_parallel_ms
        return self.chosen.step_ms

    def begins(self, plan: PipelinePlan) -> tuple[str, ...]:
        """Paths of the modules with which stages begin, but for the first."""
        return tuple(self.layers[one].name for one in plan.begins[1:])

    @property
    def pipelines(self) -> tuple[PipelinePlan, ...]:
        """The plans that divide the module, the fastest first."""
        return tuple(one for one in (self.chosen, *self.runner_ups) if one.devices > 1)

    @property
    def pipelined(self) -> PipelinePlan | None:
        """The best of them; None where there is none."""
        return next(iter(self.pipelines), None)


def table_of(plan: PipelinePlan) -> PipelineSchedule:
    """Its schedule."""
    name = plan.schedule if plan.devices > 1 else "1f1b"
    return SCHEDULES[name](plan.devices, plan.micro_batches)


def write_plan(plan: TrainingPlan, folder: Path) -> None:
    """Writes both files. The step's folder is kept relative to this one, so that both can move together.

    Raises:
        OSError: it cannot be written.
    """
    kept = replace(plan, step=replace(plan.step, folder=relpath(plan.step.folder, folder.resolve())))
    (folder / PLAN).write_text(json.dumps(encode(kept), indent=1) + "\n", encoding="utf-8")
    shown = plan.pipelined or plan.chosen
    (folder / TABLE).write_text(table_text(table_of(shown)), encoding="utf-8")


def read_plan(folder: Path) -> tuple[TrainingPlan, PipelineSchedule]:
    """A plan and the schedule of the plan that divides the module (that of one device, where none does).

    Raises:
        MissingFile: a file is not there.
        NewerTrainingPlan: it has a later format.
        BadPlan: it is damaged, or its schedule does not fit it.
    """
    for name in (PLAN, TABLE):
        if not (folder / name).is_file():
            raise MissingFile(path=folder / name)
    try:
        data = parse((folder / PLAN).read_bytes())
        if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise NewerTrainingPlan(path=folder / PLAN, found=data["format"], known=FORMAT)
        plan = decode(TrainingPlan, data)
        shown = plan.pipelined or plan.chosen
        wanted = table_of(shown)
        text = (folder / TABLE).read_text(encoding="utf-8")
        schedule = from_text(wanted.name, text, max(wanted.weight_copies), synchronous=wanted.synchronous)
    except (DecodeError, ValueError) as error:
        raise BadPlan(reason=f"'{folder}' is damaged: {error}") from error
    facts = [(one.stages, one.micro_batches, len(one.rows)) for one in (schedule, wanted)]
    if facts[0] != facts[1]:
        told = " and ".join("{} stages, {} micro-batches, {} devices".format(*one) for one in facts)
        raise BadPlan(reason=f"'{folder / TABLE}' and '{folder / PLAN}' differ: {told}")
    place = str((folder / plan.step.folder).resolve())
    return replace(plan, step=replace(plan.step, folder=place)), schedule


def stage_layers(plan: TrainingPlan, pipeline: PipelinePlan) -> tuple[tuple[PlannedLayer, ...], ...]:
    """The layers of each stage."""
    cuts = [*pipeline.begins, len(plan.layers)]
    return tuple(plan.layers[begin:end] for begin, end in itertools.pairwise(cuts))
