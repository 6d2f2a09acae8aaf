"""How many seconds of a decision other processes took, compiling and references included: the tally of a `MeasurementLog`
counts only while something is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

import psutil

from bricolage.measure.disturbance import CALM, CALM_S, MachineReading, machine

_EVERY_S = 1.0
"""Reading looks through all processes, which takes some milliseconds."""


@dataclass(frozen=True)
class FamilyReading:
    """Some processors at one moment, and the processor time of this process with its workers and all that they started."""

    machine: MachineReading
    own_s: float


def read_family(cores: Collection[int]) -> FamilyReading:
    """The counters of these processors now."""
    process, times = psutil.Process(), list[float]()
    for member in (process, *process.children(recursive=True)):
        try:
            spent = member.cpu_times()
        except psutil.Error:  # it has ended since it was listed: its parent has its time
            continue
        times += (spent.user, spent.system, spent.children_user, spent.children_system)
    # Microseconds are added as integers: a worker's time moves to its parent, and sums of floats depend on their order.
    return FamilyReading(machine(cores), sum(round(seconds * 1e6) for seconds in times) / 1e6)


def others_s(before: FamilyReading, after: FamilyReading) -> float:
    """Processor time that other processes had between two readings, in seconds; 0 where the system does not count it. Of a worker
    that was ended with its compiler, the compiler's time is lost: own time never runs backwards."""
    if before.machine.busy_s is None or after.machine.busy_s is None:
        return 0.0
    return max(0.0, after.machine.busy_s - before.machine.busy_s - max(0.0, after.own_s - before.own_s))


def taken_s(before: FamilyReading, after: FamilyReading, cores: int) -> float:
    """Seconds of wall time that others took between two readings: their part of the processors, times the time. Processors that
    no process here wanted were not taken: no more counts than the time in which some thread waited for one, where the system counts
    that. What a hypervisor gave to others counts in any case. Nothing was taken where it is no more than on any machine."""
    wall = after.machine.wall_s - before.machine.wall_s
    taken = others_s(before, after) / cores
    if before.machine.pressure_s is not None and after.machine.pressure_s is not None:
        taken = min(taken, after.machine.pressure_s - before.machine.pressure_s)
    taken = min(wall, taken + max(0.0, after.machine.stolen_s - before.machine.stolen_s) / cores)
    return taken if taken > CALM * wall + CALM_S else 0.0


class TimeTaken:
    """Called, it says how many seconds others have taken since it was made. The counters are read once a second at most, and only
    when it is called: never while something is timed."""

    def __init__(
        self,
        cores: Collection[int],
        read: Callable[[], FamilyReading] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cores`: the processors that may be used, at least one. `read`: their counters now."""
        self._cores, self._read, self._clock = max(1, len(cores)), read or partial(read_family, cores), clock
        self._before, self._looked, self._taken_s = self._read(), clock(), 0.0

    def __call__(self) -> float:
        """Seconds; never fewer than before."""
        if self._clock() - self._looked >= _EVERY_S:
            after = self._read()
            self._taken_s += taken_s(self._before, after, self._cores)
            self._before, self._looked = after, self._clock()
        return self._taken_s


def share_taken(cores: Collection[int], seconds: float = 0.5) -> float:
    """Share of these processors that others take now, in a look of some seconds."""
    before = read_family(cores)
    time.sleep(seconds)
    after = read_family(cores)
    available = (after.machine.wall_s - before.machine.wall_s) * max(1, len(cores))
    return min(1.0, (others_s(before, after) + max(0.0, after.machine.stolen_s - before.machine.stolen_s)) / available)
