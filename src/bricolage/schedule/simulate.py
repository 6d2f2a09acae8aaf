"""What becomes of a schedule when its tasks take other times, and share the way to memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.schedule.problem import ScheduleProblem
from bricolage.schedule.schedule import Interval, Schedule


@dataclass(frozen=True)
class Traffic:
    """Bytes that each task moves to and from memory, and what memory gives, 10⁹ bytes a second.

    Raises ValueError where memory gives nothing.
    """

    bytes: tuple[float, ...]
    gbytes: float

    def __post_init__(self) -> None:
        if self.gbytes <= 0.0:
            raise ValueError("memory without bandwidth")

    @classmethod
    def seen(cls, bytes_: Sequence[float], problem: ScheduleProblem, gbytes: float) -> Traffic:
        """Of tasks whose times were measured where they will run: memory, or the caches before it, gives at least what one of them
        was seen to take alone. `gbytes` is what it gives at least by other knowledge."""
        shortest = [min(min(ms for _, ms in curve.points) for curve in curves.values()) for curves in problem.curves]
        taken = (size / ms / 1e6 for size, ms in zip(bytes_, shortest, strict=True) if ms > 0.0)
        return cls(tuple(bytes_), max([gbytes, *taken]))


def simulate(
    problem: ScheduleProblem, schedule: Schedule, ms: Sequence[float] | None = None, traffic: Traffic | None = None
) -> Schedule:
    """The intervals that come of running a schedule: every task keeps its cores, every core its order, and a task starts when
    its cores are free and what it reads has arrived. `ms` are the times of the tasks when nothing runs beside them, by default
    those of the problem.

    With `traffic`, tasks that together ask for more than memory gives are slowed alike, to what it gives. That is an upper
    limit of the harm by bandwidth; caches that they share are not modelled.
    """
    count = len(problem)
    alone = [one.end_ms - one.start_ms for one in schedule.intervals] if ms is None else list(ms)
    queues = _queues(schedule)
    turn = dict.fromkeys(queues, 0)
    pending, arrival = [len(sources) for sources in problem.graph.predecessors], [0.0] * count
    started: dict[int, float] = {}
    ended: dict[int, float] = {}
    left: dict[int, float] = {}
    now = 0.0
    while len(ended) < count:
        for task, one in enumerate(schedule.intervals):
            if task in started or pending[task] or arrival[task] > now:
                continue
            lanes = [(one.device, lane) for lane in one.lanes]
            if all(queues[lane][turn[lane]] == task for lane in lanes):
                started[task], left[task] = now, alone[task]
        rate = _rate(left, alone, traffic)
        arriving = [
            arrival[task] for task in range(count) if task not in started and not pending[task] and arrival[task] > now
        ]
        step = min([work / rate for work in left.values()] + [time - now for time in arriving])
        done = [task for task, work in left.items() if work / rate <= step]
        left = {task: work - step * rate for task, work in left.items() if task not in done}
        now = now + step if done or not arriving else min(arriving)
        for task in done:
            ended[task], device = now, schedule.intervals[task].device
            for lane in schedule.intervals[task].lanes:
                turn[device, lane] += 1
            for after in problem.graph.successors[task]:
                pending[after] -= 1
                there = schedule.intervals[after].device
                arrival[after] = max(arrival[after], now + problem.delay(task, after, device, there))
    found = (Interval(one.device, one.lanes, started[task], ended[task]) for task, one in enumerate(schedule.intervals))
    return Schedule(tuple(found), schedule.method)


def _queues(schedule: Schedule) -> dict[tuple[str, int], list[int]]:
    """By core: its tasks in the order of their starts."""
    queues: dict[tuple[str, int], list[int]] = {}
    order = sorted(
        range(len(schedule.intervals)),
        key=lambda task: (schedule.intervals[task].start_ms, schedule.intervals[task].end_ms, task),
    )
    for task in order:
        for lane in schedule.intervals[task].lanes:
            queues.setdefault((schedule.intervals[task].device, lane), []).append(task)
    return queues


def _rate(left: dict[int, float], alone: Sequence[float], traffic: Traffic | None) -> float:
    """How fast the running tasks go on, one where nothing slows them."""
    if traffic is None:
        return 1.0
    wanted = sum(traffic.bytes[task] / alone[task] / 1e6 for task in left if alone[task] > 0.0)
    return min(1.0, traffic.gbytes / wanted) if wanted > 0.0 else 1.0
