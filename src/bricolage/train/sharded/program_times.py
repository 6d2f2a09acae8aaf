"""What the programs of chosen plans compute: run on processes here without their collectives, which are priced by themselves.

The searches price operators by their rooflines and one common factor. What they chose is priced again by what its programs take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.sharded.planned_layouts import GroupedPlan, LayoutPlan
from bricolage.train.sharded.two_levels import simulate_groups
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import build

_LONGEST_S = 300.0
_COUNTS = (3, 50)
"""Calls that are timed, at least and at most."""


@dataclass(frozen=True)
class ProgramsJob:
    """Of each process."""

    spec: StepSpec
    layouts: LayoutPlan | None
    grouped: GroupedPlan | None
    seconds: float
    together: bool
    """Whether all compute at once, as on the cores of one machine; else one after another."""


@dataclass(frozen=True)
class ProgramTimes:
    """Milliseconds of one process: passes and the update of a step in layouts; passes of a micro-batch of its stage, and the
    update."""

    layouts: tuple[float, float] = (0.0, 0.0)
    stage: tuple[float, float, float] = (0.0, 0.0, 0.0)


def price_programs(job: ProgramsJob, workers: int, threads: int, scale: float, start_ms: float) -> ProgramsJob:
    """The job's plans with times that their programs took.

    Args:
        job: the plans.
        workers: processes.
        threads: of each.
        scale: of the planned devices' times by those here.
        start_ms: of each pass of a stage, whatever it computes.

    Raises:
        TrainingWorkerFailed: a process fails, or does not answer.
    """
    answers = run_group(work, [job] * workers, ProgramTimes, threads, _LONGEST_S + 20 * workers * job.seconds)
    layouts, grouped = job.layouts, job.grouped
    if layouts is not None:
        ms = layouts.conversion_ms + scale * sum(
            max(parts) for parts in zip(*(a.layouts for a in answers), strict=True)
        )
        layouts = replace(layouts, ms=ms, bound_ms=min(layouts.bound_ms, ms))
    if grouped is not None:
        grouped = _simulate_again(grouped, [answer.stage for answer in answers], scale, start_ms)
    return replace(job, layouts=layouts, grouped=grouped)


def _simulate_again(
    plan: GroupedPlan, seen: Sequence[tuple[float, float, float]], scale: float, start_ms: float
) -> GroupedPlan:
    """With the slowest process of each stage, and what its conversions take."""
    forward, backward = [], []
    for stage in plan.stages:
        ways = [scale * max(seen[rank][part] for rank in stage.ranks) for part in range(3)]
        share = ways[0] / max(ways[0] + ways[1], 1e-9)
        forward.append(start_ms + ways[0] + share * stage.layouts.conversion_ms)
        backward.append(start_ms + ways[1] + (1.0 - share) * stage.layouts.conversion_ms + ways[2] / plan.micro_batches)
    times = simulate_groups(forward, backward, plan.messages_ms, plan.micro_batches)
    return replace(plan, step_ms=max(timed_pass.end_ms for timed_pass in times.passes), bubble=times.bubble)


def work(job: ProgramsJob, rank: Rank) -> ProgramTimes:
    """What each process does."""
    layouts = stage = None
    if job.layouts is not None:
        layouts = _layout_calls(job.spec, job.layouts)
    if job.grouped is not None:
        stage = _stage_calls(job.spec, job.grouped, rank)
    times = ProgramTimes()
    for turn in range(1 if job.together else rank.size):
        rank.dist.barrier()
        if job.together or turn == rank.number:
            times = ProgramTimes(_times(layouts or (), job.seconds, 2), _times(stage or (), job.seconds, 3))  # type: ignore[arg-type]
    rank.dist.barrier()
    return times


def _layout_calls(spec: StepSpec, plan: LayoutPlan) -> Sequence[Callable[[], object]]:
    """Passes, and the update."""
    from bricolage.train.sharded.sharded_executors import ShardedOperators

    runs = ShardedOperators(build(spec), plan)
    runs.run()
    runs.spare_collectives()
    return runs.compute, runs.update


def _stage_calls(spec: StepSpec, plan: GroupedPlan, rank: Rank) -> Sequence[Callable[[], object]]:
    """Forward, backward, and what ends a step; all processes make them."""
    from bricolage.train.sharded.group_pipeline import GroupPipeline

    runs = GroupPipeline(build(spec), plan, rank.number, _LONGEST_S)
    runs.run()
    return runs.calls()


def _times(calls: Sequence[Callable[[], object]], seconds: float, count: int) -> tuple[float, ...]:
    """Median milliseconds of each; zeros for those that there are not."""
    return tuple(_median_of(call, seconds / count) for call in calls) or (0.0,) * count


def _median_of(call: Callable[[], object], seconds: float) -> float:
    call()
    durations: list[float] = []
    end = time.perf_counter() + seconds
    while len(durations) < _COUNTS[0] or (time.perf_counter() < end and len(durations) < _COUNTS[1]):
        begun = time.perf_counter()
        call()
        durations.append((time.perf_counter() - begun) * 1e3)
    return sorted(durations)[len(durations) // 2]
