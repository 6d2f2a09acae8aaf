"""A training step planned on several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.errors import BadOption
from bricolage.train.pipeline.search import ASYNCHRONOUS, PLANNED
from bricolage.train.run.document import PLAN, TrainingPlan, write_plan
from bricolage.train.run.planning import plan_step
from bricolage.train.step.spec import StepSpec, read_spec


@dataclass(frozen=True)
class PlanningRequest:
    """A training step with its devices, and the schedules that are tried."""

    spec: StepSpec
    schedules: tuple[str, ...]


def open_planning(path: Path, schedules: Sequence[str] | None = None) -> PlanningRequest:
    """The training step that a file describes; `schedules` by name, by default all with one update a batch.

    Raises:
        BadOption: there is no such schedule.
        MissingFile, BadTrainingSpec: the file cannot be used.
    """
    choices = (*PLANNED, *ASYNCHRONOUS)
    for name in schedules or ():
        if name not in choices:
            raise BadOption(option="--schedule", value=name, advice=f"Use one of {', '.join(choices)}")
    return PlanningRequest(read_spec(path), tuple(schedules or PLANNED))


def plan_file(folder: Path) -> Path:
    """Where the plan stands in its folder."""
    return folder / PLAN


def plan_on_devices(
    request: PlanningRequest, folder: Path, *, seconds: float = 2.0, progress: Progress | None = None
) -> TrainingPlan:
    """Plans a training step on its devices, and writes the plan and the order of passes into a folder that is there. The step runs
    in this process to time its operators, for `seconds` each.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable, BadTrainingSpec, BadDevices, NoPipelinePlan, TrainingWorkerFailed: as
            `plan_step`.
        OSError: the folder cannot be written.
    """
    plan = plan_step(request.spec, schedules=request.schedules, seconds=seconds, progress=progress)
    write_plan(plan, folder)
    return plan
