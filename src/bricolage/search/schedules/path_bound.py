"""NEW-B-2: the upper bound that looks at each path and at what may run in parallel to it.

    max over paths p of [ sum of the times on p + sum over devices s of vol(all tasks of s parallel to a task of s on p) / cores
    of s ]

"Parallel" is neither before nor after. Han et al. (TPDS 2019) walk the graph in topological order with tuples (task, last task of
each device on the path, value) and drop dominated ones. Here the last tasks are kept as what still counts of them: the bit-set of
tasks parallel to them that a later task of their device could count again. Paths that differ in nothing else become one; dominance
weighs what the other has not counted yet against the lead in value (the published rule asks for there to be none); and where tasks
have many tuples, what cannot overtake the best path known is left.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np

from bricolage.search.schedules.certificates import TypedTasks
from bricolage.search.schedules.closure import TransitiveClosure
from bricolage.search.schedules.scheduling_problem import bottom_levels

_Counted: TypeAlias = tuple[int, ...]
"""By device: tasks parallel to the path that are counted already and that a later task would count again."""


_NARROW = 8
"""Tuples of a task up to which a graph counts as nearly a chain: one walk without a look at the best path known is then enough."""
_FEW = 16
"""Tasks whose times are added one by one; more of them go through an array."""


class PathBound:
    """The bound of some tasks, with what it needs."""

    def __init__(self, tasks: TypedTasks) -> None:
        self._tasks = tasks
        self._graph = tasks.graph
        self._devices = tuple(dict.fromkeys(tasks.device))
        self._index = [self._devices.index(device) for device in tasks.device]
        self._volumes: dict[int, float] = {0: 0.0}
        self._ms = np.array(tasks.ms)
        self.tuples = 0
        """Kept in all; a measure of the work done."""

    @cached_property
    def parallel(self) -> tuple[int, ...]:
        """For each task those of its device that are neither before nor after it, and take any time."""
        reach = TransitiveClosure(self._graph.predecessors)
        mine = [0] * len(self._devices)
        for task, device in enumerate(self._index):
            if self._tasks.ms[task] > 0.0:
                mine[device] |= 1 << task
        return tuple(
            mine[device] & ~(before | after | 1 << task)
            for task, (device, before, after) in enumerate(zip(self._index, reach.before, reach.after, strict=True))
        )

    @cached_property
    def countable(self) -> tuple[_Counted, ...]:
        """For each task, by device: all that tasks after it could count."""
        nothing = (0,) * len(self._devices)
        reachable = [nothing] * len(self._graph)
        for task in reversed(range(len(reachable))):
            bits = list(nothing)
            for after in self._graph.successors[task]:
                for device, theirs in enumerate(reachable[after]):
                    if theirs:
                        bits[device] |= theirs
                bits[self._index[after]] |= self.parallel[after]
            reachable[task] = tuple(bits)
        return tuple(reachable)

    def value(self) -> float:
        """The bound in ms."""
        if not len(self._graph):
            return 0.0
        bound_ms = self._walk(0.0, widest=_NARROW)
        if bound_ms is not None:
            return bound_ms
        best = self._walk(0.0, most=1)
        bound_ms = self._walk(best or 0.0)
        assert bound_ms is not None
        return bound_ms

    def _walk(self, best: float, *, most: int | None = None, widest: int | None = None) -> float | None:
        """The largest value of a path, at least `best`; with `most`, that of some path, from that number of tuples a task. With
        `widest`, nothing is left for not overtaking the best, and it gives up (None) where a task has more tuples than that."""
        fronts: list[dict[_Counted, float]] = [{} for _ in range(len(self._graph))]
        nothing = (0,) * len(self._devices)
        for task in range(len(self._graph)):
            front = fronts[task]
            if not self._graph.predecessors[task]:
                self._extend(front, task, nothing, 0.0)
            if len(front) == 1:
                kept = list(front.items())
            else:
                if widest is not None and len(front) > widest:
                    return None
                kept = self._find_undominated(task, front, best if widest is None else None, most)
            self.tuples += len(kept)
            if not self._graph.successors[task]:
                best = max([best, *(value for _, value in kept)])
            for after in self._graph.successors[task]:
                for counted, value in kept:
                    self._extend(fronts[after], after, counted, value)
            fronts[task] = {}
        return best

    def _extend(self, front: dict[_Counted, float], task: int, counted: _Counted, value: float) -> None:
        """A path goes on to `task`."""
        device, parallel = self._index[task], self.parallel[task]
        value += self._tasks.ms[task]
        more = parallel & ~counted[device]
        if more:
            value += self._share(more, device)
        later = self.countable[task]
        # Most graphs have few kinds, and most sets of a chain are empty: loops over tuples beat generators here.
        counted_bits = [bits & later_bits if bits else 0 for bits, later_bits in zip(counted, later, strict=True)]
        counted_bits[device] = parallel & later[device]
        key = tuple(counted_bits)
        if value > front.get(key, -1.0):
            front[key] = value

    @cached_property
    def _tails(self) -> list[float]:
        """For each task the longest path behind it, in ms."""
        levels = bottom_levels(self._graph, self._tasks.ms)
        return [level - ms for level, ms in zip(levels, self._tasks.ms, strict=True)]

    def _find_undominated(
        self, task: int, front: dict[_Counted, float], best: float | None, most: int | None
    ) -> list[tuple[_Counted, float]]:
        """Those that may lie on the best path: by falling value; `most` of them at most, and with `best` those alone that may
        overtake it."""
        later = self.countable[task]
        kept: list[tuple[_Counted, float]] = []
        for counted, value in sorted(front.items(), key=lambda entry: -entry[1]):
            if most is not None and len(kept) == most:
                break
            if most is None and best is not None:
                to_come = self._tails[task] + sum(
                    self._share(bits & ~counted_bits, device)
                    for device, (bits, counted_bits) in enumerate(zip(later, counted, strict=True))
                )
                if value + to_come <= best:
                    continue
            if not any(self._never_overtaken(other, lead - value, counted) for other, lead in kept):
                kept.append((counted, value))
        return kept

    def _never_overtaken(self, ahead: _Counted, lead: float, behind: _Counted) -> bool:
        """Whether what only the one ahead has counted already is not worth more than its lead."""
        for device, (ahead_bits, other) in enumerate(zip(ahead, behind, strict=True)):
            only = ahead_bits & ~other
            if only:
                lead -= self._share(only, device)
                if lead < 0.0:
                    return False
        return True

    def _share(self, bits: int, device: int) -> float:
        """The volume of tasks by the cores of their device, in ms."""
        volume = self._volumes.get(bits)
        if volume is None:
            volume = self._volumes[bits] = self._volume(bits)
        return volume / self._tasks.cores[self._devices[device]]

    def _volume(self, bits: int) -> float:
        if bits.bit_count() <= _FEW:
            total_ms = 0.0
            while bits:
                lowest = bits & -bits
                total_ms += self._tasks.ms[lowest.bit_length() - 1]
                bits ^= lowest
            return total_ms
        raw = np.frombuffer(bits.to_bytes((len(self._ms) + 7) // 8, "little"), dtype=np.uint8)
        return float(np.add.reduce(self._ms[np.unpackbits(raw, bitorder="little", count=len(self._ms)).view(bool)]))


def new_b_2(tasks: TypedTasks) -> float:
    """NEW-B-2 in ms; at most NEW-B-1. Exponential at worst in the number of devices, as the published algorithm."""
    return PathBound(tasks).value()
