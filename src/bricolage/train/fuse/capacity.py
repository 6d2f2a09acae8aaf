"""How many lanes fit as one into the memory, by dry runs (as HFTA's tuner does): all of them, or else doubled from one while
they fit, then bisected."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.device.memory import available_bytes
from bricolage.errors import NotFusible, TrainingWorkerFailed
from bricolage.train.fuse.alone import make_module, shorten_lane
from bricolage.train.fuse.lane_groups import Group, group
from bricolage.train.fuse.sweep import Sweep
from bricolage.train.fuse.sweep_data import load_data
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.step.data import Data

STEPS = 5
"""Of a dry run."""
_SHARE = 0.8
"""Of free memory that may be held."""
_SURE = 0.01
"""Of the limit: weights, gradients and the optimiser's state of all lanes below which nothing is tried."""
_COPIES = 4
_LIMIT_S = 600.0


@dataclass(frozen=True)
class DryRun:
    """Some lanes, trained as one for a few steps by a process that may hold a number of bytes."""

    sweep: Sweep
    threads: int
    limit: int


@dataclass(frozen=True)
class Held:
    """Bytes that it held at most; or why the lanes cannot be trained as one."""

    bytes: int
    reason: str = ""


def within(sweep: Sweep, data: Data, one: Group, limit: int | None, threads: int, progress: Progress) -> list[Group]:
    """The group, cut into parts that fit into the limit; by default most of what is free.

    Small models are not tried where none is given.
    """
    if one.reason or len(one.lanes) < 2:
        return [one]
    most = limit if limit is not None else int(available_bytes() * _SHARE)
    if limit is None:
        module, _ = make_module(data, one.lanes[0])
        weights = sum(p.numel() * p.element_size() for p in module.parameters())
        if weights * _COPIES * len(one.lanes) < _SURE * most:
            return [one]
    progress.start("dry runs")
    try:
        count = capacity(len(one.lanes), lambda lanes: fits_memory(sweep, one, lanes, threads, most))
    except NotFusible as error:
        return [Group(one.lanes, (), str(error.facts["reason"]))]
    return [
        Group(one.lanes[begin : begin + count], one.traced[begin : begin + count])
        for begin in range(0, len(one.lanes), count)
    ]


def capacity(lanes: int, fit: Callable[[int], bool]) -> int:
    """The most lanes that fit, at least one."""
    if fit(lanes):
        return lanes
    low, high = 1, lanes
    while low * 2 < high and fit(low * 2):
        low *= 2
    high = min(high, low * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return low


def fits_memory(sweep: Sweep, one: Group, lanes: int, threads: int, limit: int) -> bool:
    """Whether a process trains that many lanes as one for some steps, and holds no more than the limit.

    Raises:
        NotFusible: they cannot be trained as one, however much memory there is.
    """
    short_lanes = tuple(replace(shorten_lane(lane, STEPS), patience=None) for lane in one.lanes[:lanes])
    job = DryRun(replace(sweep, lanes=short_lanes), threads, limit)
    try:
        (held,) = run_group(work, [job], Held, threads, _LIMIT_S)
    except TrainingWorkerFailed:
        return False
    if held.reason:
        raise NotFusible(reason=held.reason)
    return held.bytes <= limit


def work(job: DryRun, _: Rank) -> Held:
    """A dry run."""
    from bricolage.train.fuse.contestants import Here

    data = load_data(job.sweep)
    (lane_group,) = group(data, job.sweep.lanes)
    # Beyond the limit memory is refused, so that a dry run that does not fit harms no other process.
    taken = (
        int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
        if Path("/proc").is_dir()
        else 0
    )
    resource.setrlimit(resource.RLIMIT_AS, (taken + job.limit, resource.RLIM_INFINITY))
    try:
        Here(data, lane_group, job.threads).fused.run(STEPS)
    except NotFusible as error:
        return Held(0, str(error.facts["reason"]))
    unit = 1 if sys.platform == "darwin" else 1024
    return Held(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
