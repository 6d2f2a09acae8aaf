"""The schedules that all methods propose for regions on one kind of core, by what the simulator makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bricolage.search.devices.duet import duet
from bricolage.search.devices.list_placement import heft, peft
from bricolage.search.schedules.certificates import lower_bound
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.moldable import METHODS
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention, retime_schedule
from bricolage.search.schedules.stages import ios, wavefront

STAGES_UP_TO, EXACT_UP_TO = 16, 20
"""Regions; beyond them the searches over stages, and over all schedules, take too long."""


@dataclass(frozen=True)
class Proposal:
    """A schedule that a method found."""

    schedule: Schedule
    simulated_ms: float
    """Its makespan with the way to memory shared."""


@dataclass(frozen=True)
class Proposals:
    """What the methods found. Times in milliseconds."""

    found: tuple[Proposal, ...]
    """By their simulated times."""
    sequential_ms: float
    """The regions one after the other, each on its best count of cores."""
    lower_ms: float
    """No schedule of the regions takes less, by their times."""

    @property
    def best(self) -> Proposal | None:
        """None where none is simulated to be shorter than one after the other."""
        first = self.found[0]
        return first if first.simulated_ms < self.sequential_ms else None


def propose_schedules(problem: ScheduleProblem, contention: BandwidthContention, *, exact_s: float = 10.0) -> Proposals:
    """Asks every method that can deal with this number of regions; the exact search gives its best after `exact_s` seconds. All
    schedules can be run (`schedule.check`)."""
    methods: list[Callable[[ScheduleProblem], Schedule]] = [*METHODS.values(), wavefront, heft, peft, duet]
    if len(problem) <= STAGES_UP_TO:
        methods.append(ios)
    if len(problem) <= EXACT_UP_TO:
        methods.append(lambda instance: shortest_schedule(instance, time_limit_s=exact_s).schedule)
    schedules = [method(problem) for method in methods]
    for candidate in schedules:
        check(problem, candidate)
    proposals = sorted(
        (
            Proposal(schedule, retime_schedule(problem, schedule, contention=contention).makespan_ms)
            for schedule in schedules
        ),
        key=lambda pair: (pair.simulated_ms, pair.schedule.makespan_ms),
    )
    sequential_ms = next(schedule.makespan_ms for schedule in schedules if schedule.method == "sequential")
    return Proposals(tuple(proposals), sequential_ms, lower_bound(problem))
