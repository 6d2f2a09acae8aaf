"""Regions of a plan side by side: their speed-up curves measured, a schedule found, and kept only if it wins a race.

Everything happens in this process, as the plan would run: a program is timed with each region on the first core, then on more
for as long as that makes some region faster; the methods of `bricolage.schedule` propose schedules; the one that the simulator
likes best races against the plan as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bricolage.device.host import selected
from bricolage.driver.scheduling import Timetable, curves_in_place, region_problem, timetable
from bricolage.errors import ForeignArtifact
from bricolage.graph.extract import graph_of
from bricolage.graph.to_work import to_work
from bricolage.measure.statistics import Ratio
from bricolage.measure.turns import time_in_turns, timed
from bricolage.plan import artifact
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import foreign
from bricolage.runtime.programs import placement_of
from bricolage.schedule.bounds import TypedTasks, new_b_1
from bricolage.schedule.path_bound import new_b_2
from bricolage.schedule.problem import ScheduleProblem
from bricolage.schedule.search import propose
from bricolage.schedule.simulate import BandwidthContention
from bricolage.verify.compare import relative_error

_WORTH = 1.02
"""A schedule must be faster by this much as well as by more than the noise."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    runs: int = 9
    """Of which a region's time, on each count of cores, is the median."""
    rounds: int = 31
    """Of the race."""


@dataclass(frozen=True)
class Proposed:
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
    proposals: tuple[Proposed, ...]
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
    problem = measured_problem(plain, index, directory, inputs, cores, effort.runs)
    nominal = selected(options.isa, options.cores).peaks.gbytes
    contention = BandwidthContention.seen([float(region.bytes) for region in bucket.regions], problem, nominal)
    proposals = propose(problem, contention)
    told = Scheduled(
        regions=len(problem),
        cores=len(cores),
        proposals=tuple(
            Proposed(one.schedule.method, one.schedule.makespan_ms, one.simulated_ms) for one in proposals.found
        ),
        sequential_ms=proposals.sequential_ms,
        lower_ms=proposals.lower_ms,
        new_b_2_ms=new_b_2(_narrow(problem)),
        new_b_1_ms=new_b_1(_narrow(problem)),
    )
    if proposals.best is None:
        return told
    planned = with_schedule(bucket, timetable(proposals.best, proposals, cores))
    buckets = (*plain.buckets[:index], planned, *plain.buckets[index + 1 :])
    beside = Executable(dataclasses.replace(plain, buckets=buckets), directory)
    results = as_planned.run(inputs), beside.run(inputs)  # which warms both
    error = relative_error(list(results[1].values()), list(results[0].values()))
    contestants = {"planned": timed(lambda: as_planned.run(inputs)), "scheduled": timed(lambda: beside.run(inputs))}
    found = time_in_turns(contestants, effort.rounds)
    ratio = found.ratio("scheduled", "planned")
    assert ratio is not None, "both take part in every round"
    kept = ratio.low > 1.0 and ratio.value >= _WORTH and error <= bucket.bound
    if kept:
        won = dataclasses.replace(planned, schedule=_raced(planned.schedule, ratio))
        buckets = (*plain.buckets[:index], won, *plain.buckets[index + 1 :])
        artifact.save(dataclasses.replace(plain, buckets=buckets), directory, Path(out))
    measured = found.latency("scheduled").median_ms
    return dataclasses.replace(told, measured_ms=measured, speedup=ratio, error=error, kept=kept)


def measured_problem(
    plan: Plan, index: int, directory: Path, inputs: Mapping[str, Any], cores: Sequence[int], times: int
) -> ScheduleProblem:
    """Regions with their measured curves, on one kind of core."""
    bucket = plan.buckets[index]
    curves = curves_in_place(plan, index, directory, inputs, cores, times)
    work = to_work(graph_of(directory / bucket.graph))
    return region_problem(work, [one.region for one in placement_of(bucket)], curves, len(cores))


def _narrow(problem: ScheduleProblem) -> TypedTasks:
    """Every region on one core."""
    ms = tuple(problem.ms(task, "cpu", 1) for task in range(len(problem)))
    return TypedTasks(problem.graph, ms, ("cpu",) * len(problem), problem.cores)


def with_schedule(bucket: Bucket, found: Timetable) -> Bucket:
    """The bucket with its regions in the order of the schedule."""
    regions = tuple(
        dataclasses.replace(bucket.regions[region], start_ms=start)
        for region, start in zip(found.order, found.starts_ms, strict=True)
    )
    return dataclasses.replace(bucket, regions=regions, schedule=found.schedule)


def _raced(found: PlannedSchedule | None, ratio: Ratio) -> PlannedSchedule | None:
    """With the outcome of the race."""
    if found is None:
        return None
    return dataclasses.replace(found, speedup=ratio.value, speedup_ci=(ratio.low, ratio.high))
