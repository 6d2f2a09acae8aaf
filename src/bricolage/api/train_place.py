"""Operators of a training step, or of an instance in a file, placed on unlike devices by every method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.codec import DecodeError, read_file
from bricolage.base.progress import Progress, Silent
from bricolage.errors import BadOption, BadPlacementInstance
from bricolage.search.devices.device_problem import DevicePlacementProblem, without_spare_devices
from bricolage.search.devices.instance_files import by_hand, read_instance
from bricolage.search.devices.placement_methods import (
    GOALS,
    Goal,
    PlacementCase,
    choose_methods,
    judge_given,
    place_by_methods,
)
from bricolage.train.place.comparison import PlacementComparison, compare_placements, comparison_json, placement_json
from bricolage.train.step.spec import StepSpec, read_spec

__all__ = ["PlacementRequest", "comparison_json", "open_placement", "place_operators", "placement_json"]


@dataclass(frozen=True)
class PlacementRequest:
    """What is placed, by which methods, and by what the best placement is chosen."""

    path: Path
    problem: StepSpec | DevicePlacementProblem
    methods: tuple[str, ...]
    goal: Goal
    given: tuple[int, ...] | None = None
    """A placement by hand that is judged with the others: the number of each operator's device."""


def open_placement(
    path: Path,
    methods: Sequence[str] = ("all",),
    *,
    goal: str = "sample",
    accelerators: int | None = None,
    by_hand_file: Path | None = None,
) -> PlacementRequest:
    """A training step or an instance of device placement, by what the file holds.

    Args:
        path: of a training step (TOML, or JSON with a `module`), or of an instance in the JSON of Tarnawski et al.
        methods: by name; "all" is every one.
        goal: one of `GOALS`.
        accelerators: of an instance, instead of the number in the file.
        by_hand_file: a placement of an instance in its authors' JSON.

    Raises:
        BadOption: there is no such method or goal, or an option is none of a training step.
        MissingFile, BadTrainingSpec, BadPlacementInstance: a file cannot be used.
    """
    chosen = choose_methods(methods)
    for name in GOALS:
        if goal == name:
            break
    else:
        raise BadOption(option="--goal", value=goal, advice=f"Use one of {', '.join(GOALS)}")
    if not _is_instance(path):
        for option, value in (("--accelerators", accelerators), ("--by-hand", by_hand_file)):
            if value is not None:
                raise BadOption(option=option, value=value, advice="It is of instances alone; leave it out")
        return PlacementRequest(path, read_spec(path), chosen, name)
    problem = read_instance(path, accelerators)
    problem = without_spare_devices(problem, len(problem))
    given = None
    if by_hand_file is not None:
        try:
            given = by_hand(problem, read_file(by_hand_file))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # a DecodeError is a ValueError
            reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise BadPlacementInstance(path=by_hand_file, reason=reason) from error
    return PlacementRequest(path, problem, chosen, name, given)


def place_operators(
    request: PlacementRequest,
    *,
    limit_s: float = 20.0,
    seconds: float = 2.0,
    run: bool = False,
    progress: Progress | None = None,
) -> PlacementComparison:
    """Places the operators by every method that was asked for, and judges all placements alike.

    Args:
        request: of `open_placement`.
        limit_s: seconds for each method that can be stopped.
        seconds: for each timing of a training step, which runs in this process; and for the race of placements.
        run: runs the placements on processes of this machine, one for each device.
        progress: told about methods.

    Raises:
        NoDevicePlacement: no method places the operators.
        MissingLibrary, BadTrainingCode, NotTraceable, BadTrainingSpec, BadDevices: of a training step, as `step_case`.
        BadOption: an instance cannot be run.
        BadDevices, BadPlan, TrainingWorkerFailed: the step cannot be run on these devices, as `run_placements`.
    """
    shown = progress if progress is not None else Silent()
    if isinstance(request.problem, DevicePlacementProblem):
        if run:
            raise BadOption(
                option="--run", value=request.path.name, advice="An instance has times and no operators to run"
            )
        return _compare(request, PlacementCase.of_instance(request.problem), limit_s, shown)
    from bricolage.base.torch_library import load_torch

    load_torch()
    from bricolage.train.place.placed_step import described_devices, step_case
    from bricolage.train.place.placement_runs import run_placements
    from bricolage.train.run.pace import paced_machine

    machine = paced_machine(described_devices(request.problem)) if run else None
    shown.start("timing the operators of the step")
    step = step_case(request.problem, seconds=seconds, here=run)
    comparison = _compare(request, step.case, limit_s, shown)
    if machine is None:
        return comparison
    shown.start("running the placements")
    runs = run_placements(request.problem, step, machine, comparison.methods, seconds=seconds)
    shown.finish()
    return replace(comparison, runs=runs)


def _compare(request: PlacementRequest, case: PlacementCase, limit_s: float, shown: Progress) -> PlacementComparison:
    shown.start("placing (methods)", len(request.methods))
    placements = place_by_methods(case, request.methods, limit_s=limit_s, shown=lambda: shown.advance(1))
    if request.given is not None:
        placements.append(judge_given(case, request.given, "by hand"))
    comparison = compare_placements(request.path.name, case, placements, request.goal)
    shown.finish()
    return comparison


def _is_instance(path: Path) -> bool:
    """Whether a file holds an instance rather than a training step: JSON without a module."""
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    try:
        content = read_file(path)
    except (DecodeError, OSError):
        return True  # whose reader says what is wrong, and takes larger files
    return not (isinstance(content, dict) and "module" in content)
