"""What a served cluster says of its jobs: where each stands, and why it waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.jobs import JobState
from bricolage.cluster.machines import NodeFailure
from bricolage.cluster.policy_catalogue import PolicyEntry
from bricolage.cluster.prospects import Scene, WaitsFor, prospects
from bricolage.cluster.standing import Standing

if TYPE_CHECKING:
    from bricolage.cluster.serve.turn_log import Submission

_DRAWS, _FEW = 20, 5
"""Of the future; few where a policy looks at every job in every round."""
_AWAY_S = 1e7
"""Nodes that are away are believed to be so for long."""


@dataclass(frozen=True)
class JobRow:
    """A job in a list. Times are seconds since the cluster was first served."""

    name: str
    state: str
    """waiting, starting, running, finished, or why it was given up."""
    devices: int
    kind: str
    """That it runs on."""
    done: float
    steps: float
    submit_s: float
    start_s: float | None
    finish_s: float | None
    restarts: int


@dataclass(frozen=True)
class Listed:
    """All jobs, those of earlier policies first; and the present time."""

    jobs: tuple[JobRow, ...]
    policy: str
    now: float


@dataclass(frozen=True)
class WhyAnswer:
    """Why a job waits, and when it will start and end if no other comes. Times are seconds from now, each with a range."""

    job: str
    state: str
    waits_for: WaitsFor
    reason: str
    change: str
    place: int
    """Among those that wait, from 1; 0 where it does not."""
    start_s: float | None
    """None where it has devices."""
    start_interval_s: tuple[float, float] | None
    end_s: float | None
    """None where it is over."""
    end_interval_s: tuple[float, float] | None


def job_rows(loop: EventLoop, submissions: Sequence[Submission], now: float) -> list[JobRow]:
    """All jobs of a loop."""
    rows = []
    for state in (_at(loop, job_state, now) for job_state in loop.states):
        start = None if math.isnan(state.first_start_s) else state.first_start_s
        end = None if math.isnan(state.finish_s) else state.finish_s
        rows.append(
            JobRow(
                submissions[state.number].spec.name,
                stands(loop, state),
                devices=state.held or state.job.devices,
                kind=state.held_kind,
                done=min(state.steps_done, state.job.steps),
                steps=state.job.steps,
                submit_s=state.job.submit_s,
                start_s=start,
                finish_s=end,
                restarts=state.restarts,
            )
        )
    return rows


def past_of(loop: EventLoop, submissions: Sequence[Submission]) -> list[JobRow]:
    """Those that are over."""
    return [row for row in job_rows(loop, submissions, loop.now) if row.state not in ("waiting", "starting", "running")]


def stands(loop: EventLoop, state: JobState) -> str:
    """One word of a job, or why it was given up."""
    if state.number in loop.observed.given_up:
        return loop.observed.given_up[state.number]
    if not math.isnan(state.finish_s):
        return "finished"
    if not state.held:
        return "waiting"
    return "running" if loop.observed.works(state) else "starting"


def why_now(loop: EventLoop, entry: PolicyEntry, number: int, now: float) -> WhyAnswer:
    """Where a job stands, and what is ahead of it: the loop is run forward from here (`prospects`).

    Raises:
        ClusterStuck: it will never start as things are.
    """
    state = _at(loop, loop.states[number], now)
    word = stands(loop, state)
    if loop.observed.over(state):
        return WhyAnswer(
            state.job.name,
            word,
            waits_for="nothing",
            reason="",
            change="",
            place=0,
            start_s=None,
            start_interval_s=None,
            end_s=None,
            end_interval_s=None,
        )
    active = [_at(loop, job_state, now) for job_state in loop.states if not loop.observed.over(job_state)]
    mine = next(at for at, job_state in enumerate(active) if job_state.number == number)
    forecast = prospects(_scene(loop, entry, active, now), draws=_FEW if entry.slow else _DRAWS, asked=[mine])[0]
    expected = forecast.expected
    start, end = expected.start_interval_s, expected.end_interval_s
    return WhyAnswer(
        state.job.name,
        word,
        waits_for=forecast.waits_for,
        reason=forecast.reason,
        change=forecast.change,
        place=expected.place,
        start_s=None if state.held else expected.start_s - now,
        start_interval_s=None if state.held else (start[0] - now, start[1] - now),
        end_s=expected.end_s - now,
        end_interval_s=(end[0] - now, end[1] - now),
    )


def _at(loop: EventLoop, state: JobState, now: float) -> JobState:
    """A job as it is now. The loop's own state changes in its turns alone, which the log has."""
    current = copy(state)
    loop.observed.hold(current, now)
    current.advance(now)
    return current


def _scene(loop: EventLoop, entry: PolicyEntry, active: Sequence[JobState], now: float) -> Scene:
    """Jobs that are not over; nodes that are away stay away."""
    jobs = []
    for state in active:
        steps = state.steps_done + state.predicted_left()
        jobs.append(replace(state.job, phases=tuple(replace(phase, steps=steps) for phase in state.job.phases)))
    away = tuple(
        NodeFailure(kind, node, now, now + _AWAY_S) for kind, pool in loop.pools.items() for node in sorted(pool.down)
    )
    standing = {at: Standing.of(state) for at, state in enumerate(active)}
    return Scene(jobs, standing, replace(loop.cluster, failure=away), entry, now)
