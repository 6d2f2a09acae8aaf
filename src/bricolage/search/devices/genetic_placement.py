"""Devices and order of tasks by a biased random-key genetic algorithm (`work.random_keys`), which begins at HEFT and DPOS.

For graphs on devices as in Paliwal, Gimeno, Nair, Li, Lubin, Kohli and Vinyals, "REGAL", ICLR 2020, whose learnt part,
distributions of the first keys, is here those of HEFT and DPOS. Keys: for each task and device how much it wants to be there,
for each task how urgent it is.
"""

from __future__ import annotations

import math
import time

import numpy as np

from bricolage.errors import DevicesTooSmall
from bricolage.search.devices.fastt import dpos
from bricolage.search.devices.list_placement import by_readiness, heft, insert, upward_ranks
from bricolage.search.schedules.schedule import Schedule
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.random_keys import RandomKeyOptions, minimise


def random_keys(
    problem: ScheduleProblem, options: RandomKeyOptions | None = None, *, limit_s: float = math.inf
) -> Schedule:
    """The best schedule found; never longer than HEFT's or DPOS's. A function of its arguments, unless `limit_s` seconds end it.

    Raises:
        DevicesTooSmall: HEFT or DPOS finds no room for some task.
    """
    deadline = time.monotonic() + limit_s
    devices, count = list(problem.cores), len(problem)
    starts = sorted((heft(problem), dpos(problem)), key=lambda schedule: schedule.makespan_ms)
    if not count:
        return Schedule((), "BRKGA")
    ranks = np.array(upward_ranks(problem))
    keys_of = []
    for start in starts:
        keys = np.full((count, len(devices) + 1), 0.5)
        keys[:, -1] = ranks / max(float(ranks.max()), 1e-300)
        for task, interval in enumerate(start.intervals):
            keys[task, devices.index(interval.device)] = 1.0
        keys_of.append(keys)

    def decode_keys(keys: np.ndarray) -> Schedule | None:
        only = {
            task: max(problem.times[task], key=lambda time: keys[task, devices.index(time)]) for task in range(count)
        }
        nothing = [dict.fromkeys(mine, 0.0) for mine in problem.times]
        try:
            return insert(problem, by_readiness(problem, keys[:, -1].tolist()), nothing, "BRKGA", only)
        except DevicesTooSmall:
            return None

    best = Schedule(starts[0].intervals, "BRKGA")

    def score(keys: np.ndarray) -> float:
        nonlocal best
        candidate = decode_keys(keys)
        if candidate is None:
            return float("inf")
        if candidate.makespan_ms < best.makespan_ms:
            best = candidate
        return candidate.makespan_ms

    minimise(score, keys_of, options or RandomKeyOptions(), stopped=lambda: time.monotonic() > deadline)
    return best
