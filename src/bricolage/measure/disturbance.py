"""How much other processes disturbed what was timed, by the counters that Linux keeps for everybody.

Of the process that measures (`DisturbanceWatch`, read around every turn): how long its threads waited on a run queue
(`/proc/self/task/*/schedstat`), how much processor time it had, and how often it was preempted. Of the machine (`machine`, read
around longer intervals, since it counts in hundredths of a second): processor time by all, time that a hypervisor gave to
others (steal), and time in which a thread waited for a processor (pressure). Where a counter is absent, the others do.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from bricolage.plan.disturbance_record import Disturbance

_WAKING_NS = 150_000
"""That a thread may wait when it wakes, though no other wants a processor: a sleeping one has to wake, too."""
_SLICE_NS = 3_000_000
"""Where run queues are not counted: how long a preempted thread waits at least, a base slice of Linux's scheduler."""
DISTURBED = 0.02
"""Samples are disturbed from this share of their time on: as much as counts as a gain (`work.gain.LEAST_GAIN`)."""

CALM = 0.02
CALM_S = 0.02
"""Share of the processors, and seconds, that others may take of a calm machine: `/proc/stat` counts in ticks."""


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """A process at one moment; nanoseconds since some moment in the past."""

    wall_ns: int
    processor_ns: int
    """Processor time of all its threads."""
    waited_ns: int | None
    """That its threads waited on a run queue; None where the kernel does not count it."""
    turns: int
    """How often its threads were given a processor; 0 where the kernel does not count it."""
    preempted: int
    """Involuntary context switches of all its threads."""


class DisturbanceWatch:
    """Reads the counters of this process: 2 to 3 µs, and 1.4 µs for each thread (AMD EPYC, Zen 1)."""

    def __init__(self, threads: Path = Path("/proc/self/task")) -> None:
        """`threads`: the folder with one folder for each thread; it need not exist."""
        self._folder = threads
        self._files: dict[str, int] = {}
        self.follow()

    def follow(self) -> None:
        """Looks for threads that have started or ended since."""
        try:
            alive = set(os.listdir(self._folder))
        except OSError:
            alive = set()
        for thread in self._files.keys() - alive:
            os.close(self._files.pop(thread))
        for thread in alive - self._files.keys():
            try:
                self._files[thread] = os.open(self._folder / thread / "schedstat", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # it has just ended, or the kernel does not count
                continue

    def close(self) -> None:
        """Closes what it reads."""
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def read(self) -> ProcessReading:
        """The counters now."""
        waited, turns, counted = 0, 0, False
        for thread, file in list(self._files.items()):
            try:
                _, delay, slices = os.pread(file, 80, 0).split()
            except (OSError, ValueError):  # the thread has ended
                os.close(self._files.pop(thread))
                continue
            waited, turns, counted = waited + int(delay), turns + int(slices), True
        return ProcessReading(
            time.perf_counter_ns(),
            time.process_time_ns(),
            waited if counted else None,
            turns,
            resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        )


def waited_share(before: ProcessReading, after: ProcessReading, cores: int) -> float:
    """How long the threads of a process waited for processors that others had, over the wall time between two readings;
    above 1 where several waited. `cores`: processors that it may run on.

    What its threads do to each other does not count: they wait for each other only while they have all the
    processors, so no more can be due to others than the processor time that the process did not get. Neither does what every
    waking takes.
    """
    wall = max(1, after.wall_ns - before.wall_ns)
    if before.waited_ns is None or after.waited_ns is None:
        waited = (after.preempted - before.preempted) * _SLICE_NS
    else:
        waited = after.waited_ns - before.waited_ns - _WAKING_NS * max(0, after.turns - before.turns)
    missed = cores * wall - (after.processor_ns - before.processor_ns)
    return max(0.0, min(waited, missed) / wall)


@dataclass(frozen=True)
class MachineReading:
    """Some processors at one moment; seconds since some moment in the past."""

    wall_s: float
    busy_s: float | None
    """Processor time that they spent on anything; None where `/proc/stat` is absent."""
    stolen_s: float
    """That a hypervisor gave to others while a thread here wanted it."""
    pressure_s: float | None
    """In which a thread waited for a processor; None where the kernel does not count it."""


def machine(cores: Collection[int], folder: Path = Path("/proc")) -> MachineReading:
    """The counters of these processors now; of all where `cores` is empty."""
    busy, stolen, has_counters = 0, 0, False
    wanted = {f"cpu{core}" for core in cores} or {"cpu"}
    try:
        lines = (folder / "stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for name, *words in (line.split() for line in lines if line.startswith("cpu")):
        if name in wanted and len(words) >= 8:
            user, nice, system, _idle, _waiting, interrupts, soft, steal = map(int, words[:8])
            busy, stolen, has_counters = busy + user + nice + system + interrupts + soft, stolen + steal, True
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    return MachineReading(time.monotonic(), busy * tick if has_counters else None, stolen * tick, _pressure(folder))


def _pressure(folder: Path) -> float | None:
    """Of `/proc/pressure/cpu`, the total of the line "some"."""
    try:
        line = (folder / "pressure" / "cpu").read_text(encoding="utf-8").partition("\n")[0]
        return int(line.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


@dataclass
class Tally:
    """What was seen while things were timed, added up over one decision."""

    wall_s: float = 0.0
    cores_s: float = 0.0
    """Processor time that there was: wall time by processors."""
    others_s: float = 0.0
    stolen_s: float = 0.0
    pressure_s: float = 0.0
    own_s: float = 0.0
    """Processor time of workers, as they report it."""
    counted: bool = True
    """Whether `/proc/stat` was there to say what others took."""
    samples: int = 0
    disturbed: int = 0
    repeated: int = 0

    @property
    def calm(self) -> bool:
        """Whether others have done next to nothing until now, so that threads that waited have waited for each other."""
        return self.counted and self.others_s + self.stolen_s <= CALM * self.cores_s + CALM_S

    def add_interval(self, before: MachineReading, after: MachineReading, own_s: float, cores: int) -> None:
        """An interval in which nothing but one program at a time was timed. `own_s`: processor time of this process and of
        its workers in it."""
        wall = after.wall_s - before.wall_s
        self.wall_s += wall
        self.cores_s += wall * cores
        self.stolen_s += after.stolen_s - before.stolen_s
        if before.busy_s is not None and after.busy_s is not None:
            self.others_s += after.busy_s - before.busy_s - own_s
        else:
            self.counted = False
        if before.pressure_s is not None and after.pressure_s is not None:
            self.pressure_s += after.pressure_s - before.pressure_s

    def add_turn(self, waited: Collection[float], repeated: int, own_s: float) -> None:
        """A turn of a program: by sample, the share of its time that it waited; how many samples were taken because
        others were disturbed; its processor time."""
        self.own_s += own_s
        self.samples += len(waited)
        self.disturbed += sum(share > DISTURBED for share in waited)
        self.repeated += repeated

    @property
    def found(self) -> Disturbance:
        """All of it, for a plan."""

        def share(part: float, of: float) -> float:
            return round(min(1.0, max(0.0, part / of)), 4) if of > 0 else 0.0

        return Disturbance(
            others=share(self.others_s, self.cores_s),
            stolen=share(self.stolen_s, self.cores_s),
            pressure=share(self.pressure_s, self.wall_s),
            samples=self.samples,
            disturbed=self.disturbed,
            repeated=self.repeated,
        )
