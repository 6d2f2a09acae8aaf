"""Regions of a plan as a scheduling problem, and a schedule of them as a part of the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.costs.models.speedup import SpeedupCurve, climb
from bricolage.graph.extract import graph_of
from bricolage.graph.to_work import to_work
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime.programs import placement_of
from bricolage.search.schedules.candidate_schedules import Proposal, Proposals
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.placement import quotient
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

STEPS = 8
"""Into how many steps the way from one core to all of them is divided, where curves are measured."""


@dataclass(frozen=True)
class Timetable:
    """A schedule as a plan holds it."""

    order: tuple[int, ...]
    """Regions by their starts, which is the order of the plan."""
    starts_ms: tuple[float, ...]
    """Predicted, in that order."""
    schedule: PlannedSchedule
    """In that order, too."""


def measured_curves(measured: Callable[[int], Sequence[float] | None], cores: int) -> list[SpeedupCurve] | None:
    """Speed-up curves of regions whose times on a number of cores are measured together: on one core, then on more for as long as
    that makes some region faster (`costs.models.speedup.climb`). None where `measured` gives none."""
    step = max(1, cores // STEPS)
    times: dict[int, Sequence[float]] = {}
    falling: set[int] = set()
    used = 1
    before: Sequence[float] | None = None
    while True:
        region_ms = measured(used)
        if region_ms is None:
            return None
        times[used] = region_ms
        falling = (
            set(range(len(region_ms)))
            if before is None
            else {index for index in falling if not region_ms[index] > before[index]}
        )
        if used == cores or not falling:
            break
        used, before = min(used + step, cores), region_ms

    def curve(region: int) -> SpeedupCurve:
        return climb(lambda count: times[count][region], cores, step=step)

    return [curve(region) for region in range(len(times[1]))]


def curves_in_place(
    plan: Plan, index: int, cores: Sequence[int], timed: Callable[[Plan], Sequence[float]]
) -> list[SpeedupCurve]:
    """Of each region of a bucket, as the plan would run: on one core, then on more for as long as that makes some region faster.
    `timed` gives the milliseconds of each region of a plan (`measure.in_place`)."""
    bucket = plan.buckets[index]
    count = len(bucket.program.regions)

    def measure_regions(used: int) -> Sequence[float]:
        """Of every region on `used` cores, milliseconds."""
        kept = PlannedSchedule((tuple(cores[:used]),) * count, "curves", 0.0, 0.0, 0.0)
        buckets = (*plan.buckets[:index], bucket.with_schedule(kept), *plan.buckets[index + 1 :])
        return timed(replace(plan, buckets=buckets))

    curves = measured_curves(measure_regions, len(cores))
    assert curves is not None  # `measured` always gives some
    return curves


def region_problem(
    graph: WorkGraph, regions: Sequence[int], curves: Sequence[SpeedupCurve], cores: int
) -> ScheduleProblem:
    """Regions of a graph (bit-sets that cover it) with their curves, on one kind of core."""
    readers = quotient(graph, regions)
    operators = tuple(WorkOperator(f"region {number + 1}") for number in range(len(regions)))
    edges = tuple(WorkTensor(str(number), number, tuple(sorted(sinks))) for number, sinks in enumerate(readers))
    times = tuple({"cpu": curve.table(cores)} for curve in curves)
    return ScheduleProblem(WorkGraph(operators, edges), times, {"cpu": cores})


def measured_problem(
    plan: Plan, index: int, directory: Path, cores: Sequence[int], timed: Callable[[Plan], Sequence[float]]
) -> ScheduleProblem:
    """Regions with their measured curves, on one kind of core. `timed` as for `curves_in_place`."""
    bucket = plan.buckets[index]
    curves = curves_in_place(plan, index, cores, timed)
    work = to_work(graph_of(directory / bucket.program.graph))
    return region_problem(work, [region.region for region in placement_of(bucket)], curves, len(cores))


def timetable(proposal: Proposal, proposals: Proposals, cores: Sequence[int]) -> Timetable:
    """The proposal on these cores (processors by number). `proposals` give the bounds."""
    schedule = proposal.schedule
    order = schedule.order()
    intervals = [schedule.intervals[region] for region in order]
    kept = PlannedSchedule(
        cores=tuple(tuple(sorted(cores[lane] for lane in interval.lanes)) for interval in intervals),
        method=schedule.method,
        predicted_ms=schedule.makespan_ms,
        lower_ms=proposals.lower_ms,
        upper_ms=proposals.sequential_ms,
        ms=tuple(interval.end_ms - interval.start_ms for interval in intervals),
    )
    return Timetable(tuple(order), tuple(interval.start_ms for interval in intervals), kept)


def reorder_regions(bucket: Bucket, planned: Timetable) -> Bucket:
    """The bucket with its regions in the order of the schedule."""
    regions = tuple(
        replace(bucket.program.regions[region], start_ms=start)
        for region, start in zip(planned.order, planned.starts_ms, strict=True)
    )
    return bucket.with_regions(regions, planned.schedule)
