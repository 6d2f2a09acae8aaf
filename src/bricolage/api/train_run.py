"""A plan of a training step, run on processes of this machine or of a Ray cluster."""

from __future__ import annotations

from pathlib import Path

from bricolage.train.run.document import RESULT, TrainingPlan, read_training_plan
from bricolage.train.run.launch_plan import PlanResult, launch_plan, read_result
from bricolage.train.run.ray_launch import run_on_ray


def open_plan(folder: Path) -> TrainingPlan:
    """The plan in a folder.

    Raises:
        MissingFile, NewerTrainingPlan, BadPlan: there is none, or it cannot be read.
    """
    return read_training_plan(folder)[0]


def result_file(folder: Path) -> Path:
    """Where a plan's folder has what came of it."""
    return folder / RESULT


def open_result(folder: Path) -> PlanResult | None:
    """What came of the plan in a folder when it was run; None where it has not been.

    Raises:
        BadPlan: the file is damaged.
    """
    return read_result(folder)


def race_plan(
    folder: Path, *, seconds: float = 8.0, timeout_s: float = 120.0, pipelines: int = 1, ray: str | None = None
) -> PlanResult:
    """Runs a plan in turns with plain data parallelism and a single process, once its gradients are compared with those of the
    single process; the result is written into the folder.

    Args:
        folder: the plan's.
        seconds: for the race.
        timeout_s: for which a process waits for another.
        pipelines: that take part, the fastest as predicted.
        ray: address of the Ray cluster on whose nodes its processes run; None: on this machine.

    Raises:
        MissingFile, NewerTrainingPlan, BadPlan: the plan cannot be read.
        DifferentDevices: it is for other devices.
        MissingLibrary, UnreachableCluster: the cluster cannot be used.
        TrainingWorkerFailed: a process ends, or does not come.
    """
    if ray is not None:
        return run_on_ray(folder, ray, seconds=seconds, timeout_s=timeout_s, pipelines=pipelines)
    result = launch_plan(folder, seconds=seconds, timeout_s=timeout_s, pipelines=pipelines)
    assert result is not None, "this process starts the others"
    return result
