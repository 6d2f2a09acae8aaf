"""Regions of a plan side by side: their speed-up curves measured, a schedule found, and kept only if it wins a race.

Everything happens in this process, as the plan would run: a program is timed with each region on the first core, then on more
for as long as that makes some region faster; the methods of `bricolage.schedule` propose schedules; the one that the simulator
likes best races against the plan as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.device.host import selected
from bricolage.errors import ForeignArtifact
from bricolage.graph.extract import graph_of
from bricolage.graph.to_work import to_work
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.plan import artifact
from bricolage.plan.plan import Bucket, Plan, PlannedSchedule
from bricolage.runtime.executable import Executable, placement_of
from bricolage.runtime.load import foreign
from bricolage.schedule.bounds import TypedTasks, lower_bound, new_b_1
from bricolage.schedule.duet import duet
from bricolage.schedule.exact import exact
from bricolage.schedule.heterogeneous import heft, peft
from bricolage.schedule.moldable import METHODS
from bricolage.schedule.path_bound import new_b_2
from bricolage.schedule.problem import ScheduleProblem
from bricolage.schedule.schedule import Schedule, check
from bricolage.schedule.simulate import Traffic, simulate
from bricolage.schedule.speedup import SpeedupCurve, climb
from bricolage.schedule.stages import ios, wavefront
from bricolage.verify.compare import relative_error
from bricolage.work.graph import WorkGraph, WorkOperator, WorkTensor
from bricolage.work.placement import quotient

_WORTH = 1.02
"""A schedule must be faster by this much as well as by more than the noise."""
_STAGES_UP_TO, _EXACT_UP_TO = 16, 12
"""Regions; beyond them the searches over stages, and over all schedules, take too long."""
_EXACT_S = 10.0
_STEPS = 8
"""Into how many steps the way from one core to all of them is divided."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    runs: int = 9
    """Of which a region's time, on each count of cores, is the median."""
    rounds: int = 31
    """Of the race."""


@dataclass(frozen=True)
class Proposal:
    """A schedule that a method found. Times in milliseconds."""

    method: str
    makespan_ms: float
    simulated_ms: float
    """With the way to memory shared."""


@dataclass(frozen=True)
class Scheduled:
    """What was found. Times in milliseconds."""

    regions: int
    cores: int
    proposals: tuple[Proposal, ...]
    """By their simulated times."""
    sequential_ms: float
    """The regions one after the other, each on its best count of cores."""
    lower_ms: float
    """No schedule of the regions takes less, by their measured times."""
    new_b_2_ms: float
    """With one core a region, no order that leaves no core idle needlessly takes more."""
    new_b_1_ms: float
    """The same by the quicker and looser bound."""
    measured_ms: float | None = None
    """Of the first proposal, run for real; None where none beats one after the other."""
    speedup: Ratio | None = None
    """Over the plan as it was."""
    error: float | None = None
    """Between the answers of both, relative."""
    kept: bool = False
    """Whether it won, and was written."""


def schedule(
    path: str | Path, inputs: Mapping[str, np.ndarray], out: str | Path, effort: Effort | None = None
) -> Scheduled:
    """Searches for a schedule of the bucket that these inputs belong to, and writes the artifact with it to `out` if it is faster
    than the plan as it stands. An `out` that is there already stays as it is otherwise.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact, ForeignArtifact: as `load`.
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        NotWritable: the result cannot be written.
    """
    effort = effort or Effort()
    plan, directory = artifact.load(Path(path))
    difference = foreign(plan)
    if difference:
        raise ForeignArtifact(path=path, difference=difference)
    options = plan.provenance.options
    cores = selected(options.isa, options.cores).cores[: options.threads]
    plain = dataclasses.replace(plan, buckets=tuple(dataclasses.replace(b, schedule=None) for b in plan.buckets))
    as_planned = Executable(plain, directory)
    first = as_planned.trace(inputs)
    index = first.bucket
    if index is None or len(plan.buckets[index].regions) < 2 or not first.spans or len(cores) < 2:
        count = 1 if index is None else len(plan.buckets[index].regions)
        return Scheduled(count, len(cores), (), 0.0, 0.0, 0.0, 0.0)
    bucket = plain.buckets[index]
    problem = _problem(plain, index, directory, inputs, cores, effort.runs)
    traffic = Traffic(tuple(float(r.bytes) for r in bucket.regions), selected(options.isa, options.cores).peaks.gbytes)
    found = sorted(
        ((simulate(problem, one, traffic=traffic).makespan_ms, one) for one in _schedules(problem)),
        key=lambda pair: (pair[0], pair[1].makespan_ms),
    )
    sequential_ms = next(one.makespan_ms for _, one in found if one.method == "sequential")
    told = Scheduled(
        regions=len(problem),
        cores=len(cores),
        proposals=tuple(Proposal(one.method, one.makespan_ms, simulated) for simulated, one in found),
        sequential_ms=sequential_ms,
        lower_ms=lower_bound(problem),
        new_b_2_ms=new_b_2(_narrow(problem)),
        new_b_1_ms=new_b_1(_narrow(problem)),
    )
    simulated, best = found[0]
    if simulated >= sequential_ms:
        return told
    planned = _planned(bucket, best, cores, told)
    buckets = (*plain.buckets[:index], planned, *plain.buckets[index + 1 :])
    beside = Executable(dataclasses.replace(plain, buckets=buckets), directory)
    before, after = _race(lambda: as_planned.run(inputs), lambda: beside.run(inputs), effort.rounds)
    results = as_planned.run(inputs), beside.run(inputs)
    error = relative_error(list(results[1].values()), list(results[0].values()))
    ratio = paired_ratio(before, after)
    kept = ratio.low > 1.0 and ratio.value >= _WORTH and error <= bucket.bound
    if kept:
        won = dataclasses.replace(planned, schedule=_raced(planned.schedule, ratio))
        buckets = (*plain.buckets[:index], won, *plain.buckets[index + 1 :])
        artifact.save(dataclasses.replace(plain, buckets=buckets), directory, Path(out))
    measured = statistics.median(sample[0] for sample in after)
    return dataclasses.replace(told, measured_ms=measured, speedup=ratio, error=error, kept=kept)


def _problem(
    plan: Plan, index: int, directory: Path, inputs: Mapping[str, Any], cores: Sequence[int], times: int
) -> ScheduleProblem:
    """Regions with their measured curves, on one kind of core."""
    bucket = plan.buckets[index]
    count = len(bucket.regions)

    @functools.cache
    def measured(used: int) -> tuple[float, ...]:
        """Of every region on so many cores, milliseconds."""
        kept = PlannedSchedule((tuple(cores[:used]),) * count, "curves", 0.0, 0.0, 0.0)
        buckets = (*plan.buckets[:index], dataclasses.replace(bucket, schedule=kept), *plan.buckets[index + 1 :])
        program = Executable(dataclasses.replace(plan, buckets=buckets), directory)
        program.run(inputs)
        runs = [program.trace(inputs).spans for _ in range(times)]
        spent = [
            [span.end_ns - span.start_ns for spans in runs for span in spans if span.step == n] for n in range(count)
        ]
        return tuple(statistics.median(some) / 1e6 for some in spent)

    step = max(1, len(cores) // _STEPS)

    def curve(region: int) -> SpeedupCurve:
        return climb(lambda used: measured(used)[region], len(cores), step=step)

    work = to_work(graph_of(directory / bucket.graph))
    readers = quotient(work, [one.region for one in placement_of(bucket)])
    operators = tuple(WorkOperator(one.title, float(one.flops), one.bytes) for one in bucket.regions)
    edges = tuple(WorkTensor(str(region), region, tuple(sorted(some))) for region, some in enumerate(readers))
    curves = tuple({"cpu": curve(region)} for region in range(count))
    return ScheduleProblem(WorkGraph(operators, edges), curves, {"cpu": len(cores)})


def _schedules(problem: ScheduleProblem) -> list[Schedule]:
    methods: list[Callable[[ScheduleProblem], Schedule]] = [*METHODS.values(), wavefront, heft, peft, duet]
    if len(problem) <= _STAGES_UP_TO:
        methods.append(ios)
    if len(problem) <= _EXACT_UP_TO:
        methods.append(lambda one: exact(one, time_limit_s=_EXACT_S).schedule)
    found = [method(problem) for method in methods]
    for one in found:
        check(problem, one)
    return found


def _narrow(problem: ScheduleProblem) -> TypedTasks:
    """Every region on one core."""
    ms = tuple(curves["cpu"].at(1) for curves in problem.curves)
    return TypedTasks(problem.graph, ms, ("cpu",) * len(problem), problem.cores)


def _planned(bucket: Bucket, found: Schedule, cores: Sequence[int], told: Scheduled) -> Bucket:
    """The bucket with its regions in the order of the schedule."""
    order = found.order()
    starts = {region: found.intervals[region].start_ms for region in order}
    regions = tuple(dataclasses.replace(bucket.regions[region], start_ms=starts[region]) for region in order)
    kept = PlannedSchedule(
        cores=tuple(tuple(sorted(cores[lane] for lane in found.intervals[region].lanes)) for region in order),
        method=found.method,
        predicted_ms=found.makespan_ms,
        lower_ms=told.lower_ms,
        upper_ms=told.sequential_ms,
    )
    return dataclasses.replace(bucket, regions=regions, schedule=kept)


def _raced(found: PlannedSchedule | None, ratio: Ratio) -> PlannedSchedule | None:
    """With the outcome of the race."""
    if found is None:
        return None
    return dataclasses.replace(found, speedup=ratio.value, speedup_ci=(ratio.low, ratio.high))


def _race(
    one: Callable[[], object], other: Callable[[], object], rounds: int
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Samples of both in ms, a round each, forwards and then backwards."""
    samples: tuple[list[tuple[float, ...]], list[tuple[float, ...]]] = ([], [])
    runs = (one, other)
    for run in runs:
        run()
    for number in range(rounds):
        for index in (0, 1) if number % 2 == 0 else (1, 0):
            begun = time.perf_counter()
            runs[index]()
            samples[index].append(((time.perf_counter() - begun) * 1e3,))
    return samples
