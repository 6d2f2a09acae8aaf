"""What no continuation of a half-made schedule ends before, for many of them at a time.

Two bounds. *Paths*: each task starts no earlier than its device has a core and its sources' results have come, whatever device each
of them takes, transfers included; behind it lies the longest way on, again over the best devices. *Volume*: for weights λ of the
devices, Σ over the tasks left of min over devices of λ × cores × ms is no more than what the devices have left, Σ λ × (T - free)
over their cores; with those tasks alone behind which another q ms must follow, T - q takes the place of T. A task that would come
too late on a device for the best schedule known does not count as able to run there. The weights are the dual prices of the
fractional assignment of all such tasks (Lenstra, Shmoys and Tardos, 1990, round that relaxation), one set for each q.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem

_THRESHOLDS = 8
"""Different q of the volume bound."""


@dataclass(frozen=True)
class States:
    """Half-made schedules, a row each. Times in ms."""

    tasks: np.ndarray
    """Bit-sets of those that have started."""
    free: np.ndarray
    """By core: when it is; of a device ascending, and not before the last start."""
    ready: np.ndarray
    """By task and device: when what it waits for has come, as far as its sources have started; nothing for those that have."""
    bound: np.ndarray
    """No continuation ends before."""

    def __len__(self) -> int:
        return len(self.tasks)

    def take(self, rows: np.ndarray) -> States:
        """Some of them, in this order."""
        return States(self.tasks[rows], self.free[rows], self.ready[rows], self.bound[rows])

    def vector(self) -> np.ndarray:
        """One that is nowhere larger than another's of the same tasks can be continued like that, and ends no later."""
        return np.concatenate(
            [self.free, self.ready.reshape(len(self), self.ready.shape[1] * self.ready.shape[2])], axis=1
        )

    @staticmethod
    def joined(some: Sequence[States]) -> States:
        """One after the other."""
        columns = zip(*((block.tasks, block.free, block.ready, block.bound) for block in some), strict=True)
        return States(*(np.concatenate(column) for column in columns))


class LowerBounds:
    """Of the states of one problem."""

    def __init__(self, problem: ScheduleProblem) -> None:
        self._problem, self._graph = problem, problem.graph
        self._devices = tuple(problem.cores)
        counts = [problem.cores[device] for device in self._devices]
        ends = np.cumsum(counts)
        self._lanes = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
        self._counts = np.array(counts, float)
        self._ms = np.full((len(problem), len(counts)), np.inf)
        self._area = np.full_like(self._ms, np.inf)
        for task, mine in enumerate(problem.allotments):
            for allotment in mine:
                device = self._devices.index(allotment.device)
                self._ms[task, device] = min(self._ms[task, device], allotment.ms)
                self._area[task, device] = min(self._area[task, device], allotment.area)
        self._able = np.isfinite(self._ms)
        self._on = [tuple(int(device) for device in np.flatnonzero(row)) for row in self._able]
        self._tail = self._tails()
        self._behind = np.where(self._able, self._tail - np.where(self._able, self._ms, 0.0), np.inf)
        self._sources = [
            np.uint64(sum(1 << source for source in predecessor)) for predecessor in self._graph.predecessors
        ]
        self._least_behind = self._behind.min(axis=1)
        self._prices, self._weights, self._follow = self._volumes()

    def root(self) -> States:
        """Nothing has started."""
        count = len(self._problem)
        return States(
            np.zeros(1, np.uint64),
            np.zeros((1, int(self._counts.sum()))),
            np.zeros((1, count, len(self._devices))),
            np.zeros(1),
        )

    def after(self, task: int, device: str) -> float:
        """Milliseconds that must follow a task on a device."""
        return float(self._behind[task, self._devices.index(device)])

    def startable(self, states: States, task: int) -> np.ndarray:
        """Which states have all its sources, and not the task."""
        bit = np.uint64(1 << task)
        mask: np.ndarray = ((states.tasks & bit) == 0) & ((states.tasks & self._sources[task]) == self._sources[task])
        return mask

    def start(self, states: States, rows: np.ndarray, task: int, one: Allotment) -> np.ndarray:
        """The earliest, in some of the states; `free` is never before the last start."""
        device = self._devices.index(one.device)
        starts: np.ndarray = np.maximum(
            states.free[rows, self._lanes[device].start + one.cores - 1], states.ready[rows, task, device]
        )
        return starts

    def started(self, states: States, rows: np.ndarray, task: int, one: Allotment, start: np.ndarray) -> States:
        """Some of the states with one more task."""
        device = self._devices.index(one.device)
        end = start + one.ms
        free = np.maximum(states.free[rows], start[:, None])
        lanes = self._lanes[device]
        free[:, lanes.start : lanes.start + one.cores] = end[:, None]
        free[:, lanes] = np.sort(free[:, lanes], axis=1)
        ready = states.ready[rows]
        ready[:, task] = 0.0
        for after in self._graph.successors[task]:
            for place, there in enumerate(self._devices):
                arrival = end + self._problem.delay(task, after, one.device, there)
                ready[:, after, place] = np.maximum(ready[:, after, place], arrival)
        tasks = states.tasks[rows] | np.uint64(1 << task)
        waiting = ((tasks[:, None] >> np.arange(len(self._problem), dtype=np.uint64)) & np.uint64(1)) == 0
        first = np.stack([free[:, one_lanes.start] for one_lanes in self._lanes], axis=1)
        # Nothing starts on a device before its first core is free: what differs only before then is alike.
        ready = np.where(waiting[:, :, None] & self._able, np.maximum(ready, first[:, None, :]), 0.0)
        return States(tasks, free, ready, np.zeros(len(rows)))

    def bounded(self, states: States, limit: float) -> np.ndarray:
        """Which of the states may end before the limit; sets their bounds, and makes `ready` as late as it must be. Where a task
        can no more run on a device for the limit, it is ready there at the limit."""
        waiting = ((states.tasks[:, None] >> np.arange(len(self._problem), dtype=np.uint64)) & np.uint64(1)) == 0
        bound = states.bound
        np.maximum(states.free.max(axis=1), self._paths(states, waiting, limit), out=bound)
        by_core = np.repeat(self._prices, self._counts.astype(int), axis=1)
        busy = states.free @ by_core.T
        # First with what each task weighs at least; then, of what is left, on the devices that it can still run on.
        rows = np.flatnonzero(bound < limit)
        for weights in (None, self._late_weights):
            left = waiting[rows] @ self._weights if weights is None else weights(states, waiting, rows, limit)
            for place, follow in enumerate(self._follow):
                room = np.maximum(limit - follow - states.free[rows], 0.0) @ by_core[place]
                bound[rows[left[:, place] > room * (1.0 + 1e-12) + 1e-12]] = np.inf
            total = ((left + busy[rows]) / by_core.sum(axis=1))[:, self._follow == 0.0]
            bound[rows] = np.maximum(bound[rows], total.max(axis=1) * (1.0 - 1e-12))
            rows = rows[bound[rows] < limit]
        return bound < limit

    def _late_weights(self, states: States, waiting: np.ndarray, rows: np.ndarray, limit: float) -> np.ndarray:
        able = self._able & (states.ready[rows] < limit)
        late_weights = np.empty((len(rows), len(self._follow)))
        for place, (price, threshold) in enumerate(zip(self._prices, self._follow, strict=True)):
            costs = np.where(able, np.where(self._able, self._area, 0.0) * price, np.inf).min(axis=2)
            late_weights[:, place] = np.where(waiting[rows] & (self._least_behind >= threshold), costs, 0.0).sum(axis=1)
        return late_weights

    def _paths(self, states: States, waiting: np.ndarray, limit: float) -> np.ndarray:
        """The longest way through a task that waits, by state; `ready` becomes what its sources allow at best."""
        ready, paths = states.ready, np.zeros(len(states))
        for task in range(len(self._problem)):
            mine = waiting[:, task]
            if not mine.any():
                continue
            for source in self._graph.predecessors[task]:
                later = waiting[:, source]
                if not later.any():
                    continue
                for there in self._on[task]:
                    arrivals = [
                        ready[:, source, here] + (self._ms[source, here] + self._delay(source, task, here, there))
                        for here in self._on[source]
                    ]
                    arrival = arrivals[0] if len(arrivals) == 1 else np.minimum.reduce(arrivals)
                    np.maximum(ready[:, task, there], np.where(later, arrival, 0.0), out=ready[:, task, there])
            ends = np.where(self._able[task], ready[:, task] + self._tail[task], np.inf)
            np.maximum(paths, np.where(mine, ends.min(axis=1), 0.0), out=paths)
            ready[:, task] = np.where(mine[:, None] & (ends >= limit), limit, ready[:, task])
        return paths

    def _delay(self, source: int, target: int, here: int, there: int) -> float:
        return self._problem.delay(source, target, self._devices[here], self._devices[there])

    def _tails(self) -> np.ndarray:
        """By task and device: the least time from its start to the end of all behind it."""
        tails = self._ms.copy()
        for task in reversed(range(len(tails))):
            for here in range(len(self._devices)):
                if self._able[task, here]:
                    after = [
                        min(self._delay(task, other, here, there) + tails[other, there] for there in self._on[other])
                        for other in self._graph.successors[task]
                    ]
                    tails[task, here] += max(after, default=0.0)
        return tails

    def _volumes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prices of the devices, what each task then weighs, and what must follow."""
        follow = self._least_behind
        thresholds = np.unique(follow)
        if len(thresholds) > _THRESHOLDS:
            thresholds = np.unique(np.quantile(follow, np.linspace(0.0, 1.0, _THRESHOLDS), method="lower"))
        equal = (1.0,) * len(self._devices)
        rows = [
            (prices, threshold)
            for threshold in (0.0, *thresholds.tolist())
            for prices in (self._duals(follow >= threshold), equal)
        ]
        rows += [(tuple(row), 0.0) for row in np.eye(len(self._devices))]
        rows = list(dict.fromkeys(row for row in rows if sum(row[0]) > 0.0))
        prices = np.array([row for row, _ in rows])
        weights = np.empty((len(self._ms), len(rows)))
        for place, (price, threshold) in enumerate(rows):
            # A device that costs nothing takes any task for nothing.
            costs = np.where(self._able, self._area * np.where(self._able, price, 1.0), np.inf)
            weights[:, place] = np.where(follow >= threshold, costs.min(axis=1), 0.0)
        return prices, weights, np.array([threshold for _, threshold in rows])

    def _duals(self, chosen: np.ndarray) -> tuple[float, ...]:
        """Prices at which the devices are balanced when these tasks are divided between them, in parts."""
        from scipy.optimize import linprog  # a decision for one device asks for no bound, and need not import it

        tasks, count = np.flatnonzero(chosen), len(self._devices)
        pairs = [(row, device) for row, task in enumerate(tasks) for device in np.flatnonzero(self._able[task])]
        load = np.zeros((count, len(pairs) + 1))
        once = np.zeros((len(tasks), len(pairs) + 1))
        for column, (row, device) in enumerate(pairs):
            load[device, column] = self._area[tasks[row], device]
            once[row, column] = 1.0
        load[:, -1] = -self._counts
        cost = np.zeros(len(pairs) + 1)
        cost[-1] = 1.0
        solved = linprog(cost, A_ub=load, b_ub=np.zeros(count), A_eq=once, b_eq=np.ones(len(tasks)), method="highs")
        if not solved.success:
            return (0.0,) * count
        return tuple(max(0.0, float(-price)) for price in solved.ineqlin.marginals)
