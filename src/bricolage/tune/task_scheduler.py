"""Which task gets the next trials: the one from which the end-to-end time is expected to gain most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

_ALPHA = 0.2
"""Weight of the last gains, compared with what is hoped for ..."""
_BETA = 2.0
"""... where tasks alike take no more than this part of the time for their operations."""
_WINDOW = 3
"""Rounds that the last gains are taken from."""


@dataclass
class TaskProgress:
    """One task so far: milliseconds of all its kernels in one call of the region."""

    best_ms: float
    flops: int = 0
    """Of all its kernels."""
    group: str = ""
    """Tasks of one group may be expected to be as fast as each other."""
    rounds: int = 0
    """How often it had its turn."""
    curve: list[float] = field(default_factory=list)
    """Best time after each turn."""
    exhausted: bool = False
    """Nothing is left to try."""

    def tell(self, best_ms: float) -> None:
        """A turn is over."""
        self.rounds += 1
        self.best_ms = min(self.best_ms, best_ms)
        self.curve.append(self.best_ms)


def expected_gain(task: TaskProgress, tasks: Sequence[TaskProgress]) -> float:
    """Milliseconds of a call that the next turn of a task may save: the gradient of Ansor (Zheng et al., OSDI 2020, section 6.2)

        α (g(t) − g(t−Δ)) / Δ + (1 − α) min(−g(t)/t, β C / max V − g(t))

    with the sign turned, g being its best time, t its turns, C its operations and V the operations a millisecond that tasks of its
    group reach. Tasks that had no turn come first."""
    if task.exhausted:
        return 0.0
    if task.rounds == 0:
        return math.inf
    g = task.best_ms
    back = 0.0
    if task.rounds > _WINDOW:
        back = (task.curve[-1 - _WINDOW] - task.curve[-1]) / _WINDOW
    ahead = g / task.rounds
    alike = [
        other
        for other in tasks
        if other is not task and other.group == task.group and other.flops and other.best_ms > 0
    ]
    if task.group and task.flops and alike:
        speed = max(other.flops / other.best_ms for other in alike)
        ahead = max(ahead, g - _BETA * task.flops / speed)
    return _ALPHA * back + (1.0 - _ALPHA) * ahead


def next_tasks(tasks: Sequence[TaskProgress], count: int) -> list[int]:
    """Numbers of up to `count` tasks with the greatest expected gains, greatest first; those whose next gain is nothing are left
    out."""
    gains = [(expected_gain(task, tasks), number) for number, task in enumerate(tasks)]
    first = sorted(gains, key=lambda pair: (-pair[0], pair[1]))
    return [number for gain, number in first[:count] if gain > 0.0]
