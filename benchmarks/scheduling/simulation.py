"""Predicted against measured: how long schedules were said to take, and took.

    python -m benchmarks.scheduling.simulation inception.bricolage randwire.bricolage

Each artifact is divided at its forks and joins, and every sub-graph is timed in place. Then every method's schedule really runs,
with each sub-graph on its cores: on one device with all cores, and on as many devices as cores (what DUET, HEFT and PEFT are for),
which share their memory. Programs take turns; a makespan is the median over rounds, from the first start of a sub-graph to the last
end. The error is predicted / measured - 1, by the simulator alone and with the way to memory shared. Below zero, the simulator
promises more than is kept: it leaves out the waking of threads, and caches that are shared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bricolage.driver.sub_graphs import Divided, divide
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.search.devices.duet import duet
from bricolage.search.devices.list_placement import heft, peft
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.moldable import METHODS
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem, TaskTimes
from bricolage.search.schedules.simulate import BandwidthContention, retime_schedule
from bricolage.search.schedules.stages import wavefront
from bricolage.work.placement import quotient
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

_EXACT_UP_TO = 20


@dataclass(frozen=True)
class Row:
    """One schedule. Times in milliseconds."""

    artifact: str
    devices: int
    method: str
    sub_graphs: int
    predicted_ms: float
    shared_ms: float
    """Predicted with the way to memory shared."""
    measured_ms: float
    error: float
    shared_error: float


@dataclass(frozen=True)
class Summary:
    """Of the absolute errors of all rows."""

    rows: int
    median: float
    worst: float
    shared_median: float
    shared_worst: float


def validate(path: Path, runs: int, rounds: int) -> list[Row]:
    """Every distinct schedule of an artifact."""
    divided = divide(path)
    cores, curves = divided.cores, divided.curves(runs)
    regions = divided.plan.buckets[0].program.regions
    one = _problem(divided, regions, [{"cpu": curve.table(len(cores))} for curve in curves], {"cpu": len(cores)})
    names = [f"core {number}" for number in range(len(cores))]
    alone = [dict.fromkeys(names, (curve.at(1),)) for curve in curves]
    several = _problem(divided, regions, alone, dict.fromkeys(names, 1))
    contention = BandwidthContention.seen([float(region.bytes) for region in regions], one, divided.device.peaks.gbytes)
    schedules = [(one, schedule) for schedule in _distinct(one, [*METHODS.values(), wavefront])]
    placing = [heft, peft, duet]
    if len(regions) <= _EXACT_UP_TO:
        placing.append(lambda problem: shortest_schedule(problem).schedule)
    schedules += [(several, schedule) for schedule in _distinct(several, placing)]
    programs = [divided.scheduled(_cores(schedule, names, cores), schedule.order()) for _, schedule in schedules]
    spans: list[list[float]] = [[] for _ in schedules]
    for number in range(rounds + 1):
        for index, program in enumerate(programs):
            traced = program.trace(divided.inputs).spans
            if number:  # the first round warms up
                spans[index].append((max(s.end_ns for s in traced) - min(s.start_ns for s in traced)) / 1e6)
    found = []
    for (problem, schedule), taken in zip(schedules, spans, strict=True):
        predicted = retime_schedule(problem, schedule).makespan_ms
        shared = retime_schedule(problem, schedule, contention=contention).makespan_ms
        ms = statistics.median(taken)
        found.append(
            Row(
                path.stem,
                len(problem.cores),
                schedule.method,
                len(regions),
                predicted,
                shared,
                ms,
                predicted / ms - 1.0,
                shared / ms - 1.0,
            )
        )
    return found


def _problem(
    divided: Divided,
    regions: Sequence[PlannedRegion],
    times: Sequence[TaskTimes],
    cores: Mapping[str, int],
) -> ScheduleProblem:
    readers = quotient(divided.graph, divided.regions)
    edges = tuple(WorkTensor(str(number), number, tuple(sorted(some))) for number, some in enumerate(readers))
    graph = WorkGraph(tuple(WorkOperator(region.title) for region in regions), edges)
    return ScheduleProblem(graph, tuple(times), cores)


def _distinct(problem: ScheduleProblem, methods: Sequence[object]) -> list[Schedule]:
    """Without those that have the cores and the order of another."""
    found: dict[object, Schedule] = {}
    for method in methods:
        assert callable(method)
        schedule = method(problem)
        check(problem, schedule)
        key = tuple((one, schedule.intervals[one].device, schedule.intervals[one].lanes) for one in schedule.order())
        found.setdefault(key, schedule)
    return list(found.values())


def _cores(schedule: Schedule, names: Sequence[str], cores: Sequence[int]) -> list[tuple[int, ...]]:
    """Processors by number: lanes of the one device, or the core that a device is."""
    return [
        (cores[names.index(one.device)],) if one.device in names else tuple(sorted(cores[lane] for lane in one.lanes))
        for one in schedule.intervals
    ]


def summary(rows: Sequence[Row]) -> Summary:
    """Median and worst of the absolute errors."""
    plain, shared = [abs(row.error) for row in rows], [abs(row.shared_error) for row in rows]
    return Summary(len(rows), statistics.median(plain), max(plain), statistics.median(shared), max(shared))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduling.simulation", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("artifact", type=Path, nargs="+", help="made by `bricolage optimize` on this machine")
    parser.add_argument("--runs", type=int, default=15, help="of which a sub-graph's time is the median")
    parser.add_argument("--rounds", type=int, default=31, help="of each schedule")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(arguments)
    rows = [row for path in given.artifact for row in validate(path, given.runs, given.rounds)]
    if given.json:
        json.dump({"summary": asdict(summary(rows)), "rows": [asdict(row) for row in rows]}, sys.stdout, indent=1)
        print()
        return
    for row in rows:
        print(
            f"{row.artifact}, {row.devices} devices, {row.method}: predicted {row.predicted_ms:.3f} ms ({row.shared_ms:.3f} with "
            f"memory shared), measured {row.measured_ms:.3f} ms: {row.error:+.1%} ({row.shared_error:+.1%})"
        )
    told = summary(rows)
    print(
        f"{told.rows} schedules: median error {told.median:.1%}, worst {told.worst:.1%}; with memory shared "
        f"{told.shared_median:.1%} and {told.shared_worst:.1%}"
    )


if __name__ == "__main__":
    main()
