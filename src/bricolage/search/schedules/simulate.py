"""What becomes of a schedule when its tasks take other times, and share the way to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.search.schedules.schedule import Interval, Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.simulator import Task, simulate


@dataclass(frozen=True)
class BandwidthContention:
    """Bytes that each task moves to and from memory, and what memory gives, 10⁹ bytes a second. Tasks that together ask for more
    than that are slowed alike, to what it gives: an upper limit of the harm by bandwidth. Caches that they share are not modelled.

    Raises ValueError where memory gives nothing.
    """

    bytes: tuple[float, ...]
    gbytes: float

    def __post_init__(self) -> None:
        if self.gbytes <= 0.0:
            raise ValueError("memory without bandwidth")

    @classmethod
    def seen(cls, bytes_: Sequence[float], problem: ScheduleProblem, gbytes: float) -> BandwidthContention:
        """Of tasks whose times were measured where they will run: memory, or the caches before it, gives at least what one of them
        was seen to take alone. `gbytes` is what it gives at least by other knowledge."""
        shortest = problem.shortest_ms
        taken = (size / ms / 1e6 for size, ms in zip(bytes_, shortest, strict=True) if ms > 0.0)
        return cls(tuple(bytes_), max([gbytes, *taken]))

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:
        """The same for all; transfers between devices, whose numbers are beyond those of the tasks, are not slowed."""
        here = [number for number in running if number < len(self.bytes)]
        wanted = sum(self.bytes[number] / tasks[number].ms / 1e6 for number in here if tasks[number].ms > 0.0)
        rate = min(1.0, self.gbytes / wanted) if wanted > 0.0 else 1.0
        return [rate if number < len(self.bytes) else 1.0 for number in running]


def retime_schedule(
    problem: ScheduleProblem,
    schedule: Schedule,
    ms: Sequence[float] | None = None,
    contention: BandwidthContention | None = None,
) -> Schedule:
    """The intervals that come of running a schedule: every task keeps its cores, every core its order, and a task starts when
    its cores are free and what it reads has arrived. `ms` are the times of the tasks when nothing else runs, by default
    those of the problem."""
    alone = [interval.end_ms - interval.start_ms for interval in schedule.intervals] if ms is None else ms
    tasks: list[Task] = []
    transfers: list[Task] = []
    for number, slot in enumerate(schedule.intervals):
        after = []
        for source in problem.graph.predecessors[number]:
            delay = problem.delay(source, number, schedule.intervals[source].device, slot.device)
            if delay > 0.0:
                after.append(len(problem) + len(transfers))
                transfers.append(Task(delay, (), (source,)))
            else:
                after.append(source)
        tasks.append(Task(alone[number], tuple((slot.device, lane) for lane in slot.lanes), tuple(after)))
    order = sorted(
        range(len(tasks)),
        key=lambda number: (schedule.intervals[number].start_ms, schedule.intervals[number].end_ms, number),
    )
    times = simulate([*tasks, *transfers], order, contention)
    intervals = (
        Interval(slot.device, slot.lanes, times.starts[number], times.ends[number])
        for number, slot in enumerate(schedule.intervals)
    )
    return Schedule(tuple(intervals), schedule.method)
