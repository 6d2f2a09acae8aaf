"""Placements of a training step that really run: a process of this machine for each device, all placements in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from bricolage.costs.latency import Latency
from bricolage.errors import BadPlan
from bricolage.measure.turns import Turns
from bricolage.search.devices.list_placement import upward_ranks
from bricolage.search.devices.placement_methods import MethodPlacement, judge_given
from bricolage.train.place.comparison import PlacedRun
from bricolage.train.place.piece_routes import (
    PieceRoutes,
    order_pieces,
    piece_accesses,
    route_storages,
    simulate_pieces,
)
from bricolage.train.place.placed_executor import PlacedStep
from bricolage.train.place.placed_step import StepCase
from bricolage.train.place.recorded_step import RecordedStep, check_pieces, record_step
from bricolage.train.run.pace import PacedMachine
from bricolage.train.run.plan_worker import GradientCheck, compare_gradients, race_executors, reference_gradients
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import build

_LONGEST_S = 300.0
"""Of what does not grow with the time given for measuring."""


@dataclass(frozen=True)
class PlacementsJob:
    """What all processes are given."""

    spec: StepSpec
    machine: PacedMachine
    pieces: tuple[tuple[int, ...], ...]
    """Numbers of the step's operators."""
    ranks: tuple[float, ...]
    """Of pieces: those of a high one run first."""
    placements: Mapping[str, tuple[int, ...]]
    """By name, of each piece the process that runs it."""
    seconds: float
    """For the race."""


@dataclass(frozen=True)
class PlacementsAnswer:
    """What a process found."""

    digest: str
    """Of the step that it recorded."""
    rounds: tuple[Mapping[str, tuple[float, ...]], ...] = ()
    checks: Mapping[str, GradientCheck] = field(default_factory=dict)
    routes: Mapping[str, PieceRoutes] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


def work(job: PlacementsJob, rank: Rank) -> PlacementsAnswer:
    """Records the step, checks the gradients of each placement, then races them."""
    torch.set_num_threads(job.machine.devices[rank.number].threads)
    recorded = record_step(job.spec)
    check_pieces(recorded, job.pieces)
    digests: list[str] = [""] * rank.size
    rank.dist.all_gather_object(digests, recorded.digest)
    if len(set(digests)) > 1:
        raise BadPlan(reason="its operators differ from one process to another")
    routes, failures = _routes(job, recorded)
    executors = {
        name: PlacedStep(recorded, job.pieces, job.placements[name], route, job.machine, rank.number)
        for name, route in routes.items()
    }
    names = [name for name, parameter in build(job.spec).module.named_parameters() if parameter.requires_grad]
    exact, own_error = reference_gradients(job.spec, rank, names)
    checks = {}
    for name in list(executors):
        executors[name].run()
        checks[name] = compare_gradients(names, exact, own_error, executors[name].gradients(), rank)
        if not checks[name].accepted:
            failures[name] = f"its gradients differ by {checks[name].error:.1e} ({checks[name].worst_name})"
            del executors[name]
    rounds, _ = race_executors(executors, job.seconds, rank)
    return PlacementsAnswer(recorded.digest, rounds, checks, routes, failures)


def _routes(job: PlacementsJob, recorded: RecordedStep) -> tuple[dict[str, PieceRoutes], dict[str, str]]:
    """The same in all processes."""
    reads, writes = [call.reads for call in recorded.calls], [call.writes for call in recorded.calls]
    accesses = piece_accesses(job.pieces, reads, writes)
    routes: dict[str, PieceRoutes] = {}
    failures: dict[str, str] = {}
    try:
        order = order_pieces(job.pieces, reads, writes, job.ranks)
    except ValueError as error:
        raise BadPlan(reason=str(error)) from error
    for name, devices in job.placements.items():
        try:
            routes[name] = route_storages(accesses, dict(recorded.sizes), devices, order)
        except ValueError as error:
            failures[name] = str(error)
    return routes, failures


def run_placements(
    spec: StepSpec, step: StepCase, machine: PacedMachine, placements: Sequence[MethodPlacement], *, seconds: float
) -> tuple[PlacedRun, ...]:
    """Runs each placement, and the whole step on each device that holds it; equal placements run once.

    Args:
        spec: the step.
        step: its pieces, and what they take on the devices.
        machine: the devices as processes here, in the order of the spec.
        placements: by methods; those that refuse have no run.
        seconds: for the race.

    Raises:
        NotTraceable: the step draws random numbers, or its operators differ with data.
        BadPlan: its operators differ from process to process.
        TrainingWorkerFailed: a process ends, or does not answer.
    """
    check_pieces(record_step(spec), step.tasks.operators)  # before processes start
    ranks = {device.name: number for number, device in enumerate(machine.devices)}
    names = tuple(ranks)
    methods: dict[tuple[int, ...], list[str]] = {}
    whole = [
        judge_given(step.case, [number] * len(step.tasks.operators), f"all on {name}")
        for number, name in enumerate(step.case.names)
        if all(name in able for able in step.case.sample.times)
    ]
    for placement in (*placements, *whole):
        if not placement.refused:
            methods.setdefault(tuple(ranks[device] for device in placement.devices), []).append(placement.method)
    by_name = {names_of_methods[0]: devices for devices, names_of_methods in methods.items()}
    job = PlacementsJob(spec, machine, step.tasks.operators, tuple(upward_ranks(step.case.sample)), by_name, seconds)
    count = len(machine.devices)
    answers = run_group(
        work,
        [job] * count,
        PlacementsAnswer,
        max(device.threads for device in machine.devices),
        _LONGEST_S + 20 * seconds,
    )
    first = answers[0]
    turns = Turns(first.rounds)
    runs = []
    for devices, names_of_methods in methods.items():
        name = names_of_methods[0]
        route = first.routes.get(name)
        run = PlacedRun(
            tuple(names_of_methods),
            tuple(names[device] for device in sorted(set(devices))),
            predicted_ms=None if route is None else simulate_pieces(step.case.sample, names, devices, route),
            measured=_measured(turns, name),
            moves=0 if route is None else len(route.moves),
            moved_bytes=0 if route is None else sum(move.bytes for move in route.moves),
            check=first.checks.get(name),
            refused=first.failures.get(name, ""),
        )
        runs.append(run)
    return tuple(runs)


def _measured(turns: Turns, name: str) -> Latency | None:
    return turns.latency(name) if any(name in times for times in turns.rounds) else None
