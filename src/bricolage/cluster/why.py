"""Why a job waits: whom it stands behind, what it lacks, and when it will start if nothing changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from bricolage.cluster.event_loop import Replayed
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import ClusterSpec

Interval = tuple[float, float]
Vector: TypeAlias = NDArray[np.float64]
TENTHS = (0.1, 0.9)
"""Quantiles of an interval."""


@dataclass(frozen=True)
class Expected:
    """Start and end of a job, in seconds, each with the range of eight draws of ten."""

    place: int
    """In the order of first starts, from 1; 0 where it runs."""
    start_s: float
    """Negative where it runs."""
    start_interval_s: Interval
    end_s: float
    end_interval_s: Interval

    @classmethod
    def of(cls, place: int, start_s: float, starts: Vector, end_s: float, ends: Vector) -> Expected:
        """With the intervals of `starts` and `ends`, the draws."""
        start, end = (np.quantile(times, TENTHS).tolist() for times in (starts, ends))
        return cls(place, start_s, (start[0], start[1]), end_s, (end[0], end[1]))


@dataclass(frozen=True)
class Waited:
    """A job's wait for its first devices, as the replay went."""

    job: str
    submit_s: float
    start_s: float
    finish_s: float
    devices: int
    ahead: int
    """Jobs that were waiting when it came, and started before it."""
    overtook: int
    """Jobs that came later and started before it."""
    reason: str
    """What it waited for when it came."""
    change: str
    """What would have let it start at once."""
    expected: Expected | None = None
    """What was to be predicted when it came, where that was asked for."""


def explain_waits(replayed: Replayed, cluster: ClusterSpec, numbers: Sequence[int]) -> list[Waited]:
    """For the jobs with these numbers, in their order."""
    return [_explain_wait(replayed.states[number], replayed, cluster) for number in numbers]


def _explain_wait(state: JobState, replayed: Replayed, cluster: ClusterSpec) -> Waited:
    submit, start = state.job.submit_s, state.first_start_s
    started = [other for other in replayed.states if other is not state and other.first_start_s <= start]
    ahead = sum(other.job.submit_s <= submit and other.first_start_s > submit for other in started)
    overtook = sum(other.job.submit_s > submit and other.first_start_s < start for other in started)
    reason, change = "nothing", ""
    if start > submit:
        reason, change = _lack_at(state, replayed, cluster, ahead, submit)
    return Waited(
        state.job.name,
        submit,
        start_s=start,
        finish_s=state.finish_s,
        devices=state.job.devices,
        ahead=ahead,
        overtook=overtook,
        reason=reason,
        change=change,
    )


def _lack_at(state: JobState, replayed: Replayed, cluster: ClusterSpec, ahead: int, at: float) -> tuple[str, str]:
    """What a job lacks at a time, and what would change that."""
    before = [other.job.name for other in replayed.states if other.job.name in state.job.after and other.finish_s > at]
    if before:
        sentence = f"the end of {', '.join(before[:3])}" + (f" and {len(before) - 3} more" if len(before) > 3 else "")
        return sentence, sentence
    gang = state.job.devices
    held = dict.fromkeys(cluster.kinds, 0)
    for stay in replayed.stays:
        if stay.start_s <= at < stay.end_s:
            held[stay.kind] += stay.devices
    free = {kind: cluster.capacity[kind] - held[kind] for kind in state.kinds}
    return lacking(free, cluster.capacity, gang, ahead)


def lacking(free: Mapping[str, int], capacity: Mapping[str, int], gang: int, ahead: int) -> tuple[str, str]:
    """What a gang lacks, and what would let it start at once.

    Args:
        free: devices of each kind that it can use.
        capacity: devices of each kind that there are.
        gang: devices that it needs.
        ahead: jobs that wait before it.
    """
    kind = max(free, key=lambda device: free[device])
    if free[kind] < gang:
        lacks = gang - free[kind]
        what = f"{lacks} more {kind}: {free[kind]} of {capacity[kind]} were free, and its gang needs {gang}"
        return what, f"{lacks} more {kind}" + (
            f", or without the {_jobs(ahead)} that waited before it" if ahead else ""
        )
    behind = f"{_jobs(ahead)} before it" if ahead else "the next round"
    return (
        f"its turn: {free[kind]} {kind} were free, and {behind} came first",
        "an earlier place in the order" if ahead else "shorter rounds",
    )


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def longest_waits(replayed: Replayed, count: int) -> list[int]:
    """Numbers of the jobs that waited longest for their first devices."""
    waits = [
        (state.first_start_s - state.job.submit_s, state.number)
        for state in replayed.states
        if not math.isnan(state.finish_s)
    ]
    return [number for wait, number in sorted(waits, reverse=True)[:count] if wait > 0]
