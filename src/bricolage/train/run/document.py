"""A plan of a training step as data: a folder with `plan.json`, which says everything, and `schedule.csv`, the order of passes.

A plan holds what it was made from (the step, devices, times of layers), so that its prediction can be made again from the file.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from os.path import relpath
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from bricolage.base.codec import DecodeError, Length, Within, decode, encode, parse
from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import BadPlan, MissingFile, NewerTrainingPlan
from bricolage.train.pipeline.pipeline_problem import (
    DIVIDABLE,
    PipelinePlan,
    PipelineProblem,
    PlannedLayer,
    UnlikeDevices,
)
from bricolage.train.sharded.planned_layouts import GroupedPlan, LayoutPlan
from bricolage.train.step.spec import StepSpec
from bricolage.work.pipeline.csv import from_text, table_text
from bricolage.work.pipeline.generators import SCHEDULES
from bricolage.work.pipeline.group_schedule import GROUPS, grouped
from bricolage.work.pipeline.table import PipelineSchedule

FORMAT = 4
"""Version of the format. Readers refuse a higher one; in 1 no operators were divided, in 2 no stages of a pipeline, and in 3 all
devices were alike and there were no groups of them."""
PLAN, TABLE, RESULT = "plan.json", "schedule.csv", "result.json"
"""Files of a plan's folder."""
Way: TypeAlias = Literal["pipeline", "data parallel", "single process", "sharded", "fully sharded", "groups"]
"""How a step is run: "sharded" has operators divided by layouts, "fully sharded" is FSDP2, "groups" has stages on groups of devices
with layouts inside."""


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
    """The devices of a plan."""

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
    unlike: UnlikeDevices | None = None
    """Where they differ. All ways but stages on groups of them then take them as the slowest, with the slowest link."""

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
class FullyShardedPlan:
    """Data parallelism with weights that lie divided (FSDP2), where whole ones do not fit. Predicted."""

    step_ms: float
    exchange_ms: float
    """Of these, gathering weights and adding up gradients."""
    peak_bytes: float


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
    chosen: PipelinePlan | None
    """Of pipelines and replicas, the fastest; None where only what divides operators or weights fits."""
    way: Way
    """The way to run the step that is predicted to be fastest."""
    runner_ups: tuple[PipelinePlan, ...]
    single_ms: float
    """Of the step in one process."""
    single_threads: Annotated[int, Within(1, 1 << 16)]
    """Of that process: as many as are fastest."""
    data_parallel_ms: float | None
    """By DistributedDataParallel on all devices, which exchanges while it computes. None where the batch does not divide, or what
    lies whole on each device does not fit."""
    changes: tuple[PlanChange, ...]
    notes: tuple[str, ...] = ()
    """What the plan does not have, and why."""
    layouts: LayoutPlan | None = None
    """The step with its operators divided among all devices; None where they cannot be, and on one device."""
    fully_sharded: FullyShardedPlan | None = None
    """None where plain data parallelism fits, or this does not either."""
    grouped: GroupedPlan | None = None
    """Stages on groups of devices; None where there are few devices, or nothing fits."""
    bound: float | None = None
    """No way takes less, milliseconds; None where the chosen pipeline says it."""
    start_ms: Annotated[float, Within(0.0, 1e6)] = 0.0
    """That each pass of a pipeline takes beyond its stage's computing; 0 where that was not measured."""

    def __post_init__(self) -> None:
        _ = self.problem
        most = len(self.layers)
        for plan in self.plans:
            if plan.devices * plan.replicas > self.devices.count:
                raise ValueError(f"a plan takes {plan.devices * plan.replicas} devices of {self.devices.count}")
            if (
                list(plan.begins) != sorted(set(plan.begins))
                or not plan.begins
                or plan.begins[-1] >= most
                or plan.begins[0]
            ):
                raise ValueError("a plan's stages do not begin at layers in their order")
            if self.step.batch_size % (plan.replicas * plan.micro_batches):
                raise ValueError(f"{plan.replicas} x {plan.micro_batches} micro-batches do not divide the batch")
            if not set(plan.divided) <= set(range(len(plan.begins))) or (
                plan.divided and plan.schedule not in DIVIDABLE
            ):
                raise ValueError(f"its stages cannot be divided so: {list(plan.divided)} of '{plan.schedule}'")
            if bool(plan.groups) != (plan.schedule == GROUPS) or (plan.groups and self.devices.unlike is None):
                raise ValueError("its stages are on groups of devices, and it does not say which, or these are alike")
        if self.layouts is not None and self.layouts.workers != self.devices.count:
            raise ValueError(f"its layouts are for {self.layouts.workers} devices of {self.devices.count}")
        if self.grouped is not None and self.grouped.devices > self.devices.count:
            raise ValueError(f"its groups take {self.grouped.devices} devices of {self.devices.count}")
        if self.grouped is not None and self.step.batch_size % self.grouped.micro_batches:
            raise ValueError(f"{self.grouped.micro_batches} micro-batches do not divide the batch")
        if self.way in ("sharded", "fully sharded", "groups") and self.way not in self.ways_ms:
            raise ValueError(f"it chooses '{self.way}', and has no such plan")

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
            self.start_ms,
            cores=devices.cores or math.inf,
            prefetch=self.prefetch,
            ring=self.ring,
            unlike=devices.unlike,
        )

    @property
    def bound_ms(self) -> float:
        """No way takes less."""
        if self.bound is not None:
            return self.bound
        return self.problem.bound_ms if self.chosen is None else self.chosen.bound_ms

    @property
    def plans(self) -> tuple[PipelinePlan, ...]:
        """Of pipelines and replicas, the fastest first."""
        return (*(() if self.chosen is None else (self.chosen,)), *self.runner_ups)

    @property
    def shown(self) -> PipelinePlan | None:
        """The plan whose order of passes `schedule.csv` holds."""
        return self.pipelined or self.chosen

    @property
    def ways_ms(self) -> dict[Way, float]:
        """What each way to run the step is predicted to take, of those that there are."""
        predicted_ms: dict[Way, float] = {"single process": self.single_ms}
        if self.pipelined is not None:
            predicted_ms["pipeline"] = self.pipelined.step_ms
        if self.data_parallel_ms is not None:
            predicted_ms["data parallel"] = self.data_parallel_ms
        if self.layouts is not None:
            predicted_ms["sharded"] = self.layouts.ms
        if self.fully_sharded is not None:
            predicted_ms["fully sharded"] = self.fully_sharded.step_ms
        if self.grouped is not None:
            predicted_ms["groups"] = self.grouped.step_ms
        return predicted_ms

    @property
    def step_ms(self) -> float:
        """Predicted, the way that it chooses."""
        ways = self.ways_ms
        return ways.get(self.way, min(ways.values()) if self.chosen is None else self.chosen.step_ms)

    def begins(self, plan: PipelinePlan) -> tuple[str, ...]:
        """Paths of the modules with which stages begin, but for the first."""
        return tuple(self.layers[begin].name for begin in plan.begins[1:])

    def units(self) -> tuple[str, ...]:
        """Paths of the modules whose weights a divided stage gathers together; the rest of a stage is one more."""
        return tuple(layer.name for layer in self.layers if layer.name)

    @property
    def pipelines(self) -> tuple[PipelinePlan, ...]:
        """The plans that divide the module, the fastest first."""
        return tuple(plan for plan in self.plans if plan.devices > 1)

    @property
    def pipelined(self) -> PipelinePlan | None:
        """The best of them; None where there is none."""
        return next(iter(self.pipelines), None)


def table_of(plan: PipelinePlan) -> PipelineSchedule:
    """Its schedule.

    Raises:
        ValueError: its groups share devices, or have different micro-batches.
    """
    if plan.groups:
        return grouped(plan.groups, plan.devices)
    name = plan.schedule if plan.devices > 1 else "1f1b"
    return SCHEDULES[name](plan.devices, plan.micro_batches)


def write_plan(plan: TrainingPlan, folder: Path) -> None:
    """Writes both files. The step's folder is kept relative to this one, so that both can move together.

    Raises:
        OSError: it cannot be written.
    """
    kept = replace(plan, step=replace(plan.step, folder=relpath(plan.step.folder, folder.resolve())))
    (folder / PLAN).write_text(json.dumps(encode(kept), indent=1) + "\n", encoding="utf-8")
    if plan.shown is not None:
        (folder / TABLE).write_text(table_text(table_of(plan.shown)), encoding="utf-8")


def read_training_plan(folder: Path) -> tuple[TrainingPlan, PipelineSchedule | None]:
    """A plan and the schedule of the plan that divides the module (that of one device, where none does; None where only what
    divides operators or weights fits).

    Raises:
        MissingFile: a file is not there.
        NewerTrainingPlan: it has a later format.
        BadPlan: it is damaged, or its schedule does not fit it.
    """
    if not (folder / PLAN).is_file():
        raise MissingFile(path=folder / PLAN)
    try:
        data = parse((folder / PLAN).read_bytes())
        if isinstance(data, dict) and isinstance(data.get("format"), int) and data["format"] > FORMAT:
            raise NewerTrainingPlan(path=folder / PLAN, found=data["format"], known=FORMAT)
        plan = decode(TrainingPlan, data)
        schedule = None if plan.shown is None else _read_table(folder, plan.shown)
    except (DecodeError, ValueError) as error:
        raise BadPlan(reason=f"'{folder}' is damaged: {error}") from error
    place = str((folder / plan.step.folder).resolve())
    return replace(plan, step=replace(plan.step, folder=place)), schedule


def _read_table(folder: Path, shown: PipelinePlan) -> PipelineSchedule:
    """Raises ValueError where it is damaged."""
    if not (folder / TABLE).is_file():
        raise MissingFile(path=folder / TABLE)
    wanted = table_of(shown)
    text = (folder / TABLE).read_text(encoding="utf-8")
    schedule = from_text(wanted.name, text, max(wanted.weight_copies), synchronous=wanted.synchronous)
    facts = [(table.stages, table.micro_batches, len(table.rows)) for table in (schedule, wanted)]
    if facts[0] != facts[1]:
        difference = " and ".join("{} stages, {} micro-batches, {} devices".format(*fact) for fact in facts)
        raise BadPlan(reason=f"'{folder / TABLE}' and '{folder / PLAN}' differ: {difference}")
    return schedule
