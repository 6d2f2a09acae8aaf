"""Speed-up curves: the time of a task by number of cores, measured at some counts and interpolated between them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bricolage.work.cost import Estimate, Setting, Work


@dataclass(frozen=True)
class SpeedupCurve:
    """Times of one task on one kind of device.

    Raises ValueError where the counts do not ascend from one or more, or a time is negative or not finite.
    """

    points: tuple[tuple[int, float], ...]
    """Cores and milliseconds, by cores."""

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.points]
        if not counts or counts[0] < 1 or counts != sorted(set(counts)):
            raise ValueError(f"the counts of cores {counts} do not ascend from one or more")
        if any(not 0.0 <= ms < math.inf for _, ms in self.points):
            raise ValueError("a time is negative or not finite")

    def at(self, cores: int) -> float:
        """Milliseconds on `cores` cores: linear between the counts measured (Liu et al., IPDPS 2019), and as at the nearest
        of them outside."""
        counts = [count for count, _ in self.points]
        place = bisect_left(counts, cores)
        if place == len(counts):
            return self.points[-1][1]
        right, after = self.points[place]
        if right == cores or place == 0:
            return after
        left, before = self.points[place - 1]
        return before + (after - before) * (cores - left) / (right - left)

    def table(self, most: int) -> tuple[float, ...]:
        """Milliseconds on one core, on two, ..., up to `most`."""
        return tuple(self.at(cores) for cores in range(1, most + 1))

    def best(self, most: int) -> int:
        """The count up to `most` with the shortest time, the smallest of those alike."""
        return min(range(1, most + 1), key=lambda cores: (self.at(cores), cores))


@dataclass(frozen=True)
class MeasuredCurves:
    """Curves of tasks on this device, by the keys of the work."""

    curves: Mapping[str, SpeedupCurve]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """On the threads of the setting."""
        curves = (self.curves.get(work.key) for work in works)
        return [None if curve is None else Estimate.of(curve.at(on.threads), "measured") for curve in curves]


def climb(measure: Callable[[int], float], most: int, *, start: int = 1, step: int = 2) -> SpeedupCurve:
    """A curve from few measurements: counts go up from `start` by `step` until the time rises or `most` is reached (the hill
    climbing of Liu et al., "Runtime concurrency control and operation scheduling for high performance neural network
    training", IPDPS 2019). `measure` returns milliseconds for a count of cores.

    A curve with several valleys is known up to the first hill only.

    Raises:
        ValueError: `start` is not between one and `most`, or `step` is less than one.
    """
    if not 1 <= start <= most or step < 1:
        raise ValueError(f"cannot climb from {start} to {most} by {step}")
    points = [(start, measure(start))]
    while points[-1][0] < most:
        count = min(points[-1][0] + step, most)
        points.append((count, measure(count)))
        if points[-1][1] > points[-2][1]:
            break
    return SpeedupCurve(tuple(points))
