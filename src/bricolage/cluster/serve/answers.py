"""What a served cluster says of its jobs: where each stands, and why it waits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.cluster.catalogue import PolicyEntry
from bricolage.cluster.jobs import JobState, TrainingJob, WorkPhase
from bricolage.cluster.loop import ReplayLoop
from bricolage.cluster.why import lacking
from bricolage.errors import BricolageError

if TYPE_CHECKING:
    from bricolage.cluster.serve.turns import Submission


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
class Outlook:
    """Why a job waits, and when it may start and end."""

    job: str
    state: str
    reason: str
    change: str
    start_s: float | None
    """From now; None where it runs, or where the policy cannot be asked ahead."""
    end_s: float | None


def rows(loop: ReplayLoop, submissions: Sequence[Submission], now: float) -> list[JobRow]:
    """All jobs of a loop."""
    found = []
    for state in loop.states:
        if state.held:
            state.advance(now)
        start = None if math.isnan(state.first_start_s) else state.first_start_s
        end = None if math.isnan(state.finish_s) else state.finish_s
        found.append(
            JobRow(
                submissions[state.number].spec.name, stands(loop, state, now), state.held or state.job.devices,
                state.held_kind, min(state.steps_done, state.job.steps), state.job.steps, state.job.submit_s, start, end,
                state.restarts,
            )
        )  # fmt: skip
    return found


def past_of(loop: ReplayLoop, submissions: Sequence[Submission]) -> list[JobRow]:
    """Those that are over."""
    return [row for row in rows(loop, submissions, loop.now) if row.state not in ("waiting", "starting", "running")]


def stands(loop: ReplayLoop, state: JobState, now: float) -> str:
    """One word of a job, or why it was given up."""
    if state.number in loop.given_up:
        return loop.given_up[state.number]
    if not math.isnan(state.finish_s):
        return "finished"
    if not state.held:
        return "waiting"
    return "running" if loop.works(state) and now >= state.resumes_s else "starting"


def why_now(loop: ReplayLoop, entry: PolicyEntry, number: int, now: float) -> Outlook:
    """Why a job waits now."""
    state = loop.states[number]
    word = stands(loop, state, now)
    if not math.isnan(state.finish_s) or number in loop.given_up:
        return Outlook(state.job.name, word, "", "", None, None)
    start, end = _ahead(loop, entry, number, now)
    if state.held:
        return Outlook(state.job.name, word, "", "", None, end)
    free = {kind: loop.pools[kind].free for kind in state.kinds}
    there = {kind: loop.there(kind) for kind in state.kinds}
    ahead = sum(
        not one.held and math.isnan(one.finish_s) and one.number not in loop.given_up and one.number < number
        for one in loop.states
    )
    reason, change = lacking(free, there, state.job.devices, ahead)
    return Outlook(state.job.name, word, reason, change, start, end)


def _ahead(loop: ReplayLoop, entry: PolicyEntry, number: int, now: float) -> tuple[float | None, float | None]:
    """When a job starts and ends if no other comes, by a replay of what is left under the same policy. What the policy remembers of
    the jobs does not enter: those that run come first, then the others in order."""
    active = [one for one in loop.states if math.isnan(one.finish_s) and one.number not in loop.given_up]
    active.sort(key=lambda one: (not one.held, one.number))
    jobs, mine = [], 0
    for index, state in enumerate(active):
        mine = index if state.number == number else mine
        if state.held:
            state.advance(now)
        job = state.job
        rates = job.phases[state.phase].rates
        jobs.append(
            TrainingJob(
                job.name, 0.0, (WorkPhase(state.predicted_left(), rates),), job.devices, job.user, job.kind, job.queue,
                job.deadline_s - now, job.weight, job.scaling, job.limit_s,
            )
        )  # fmt: skip
    try:
        if entry.refuses(jobs, loop.cluster):
            return None, None
        found = ReplayLoop(
            jobs, loop.cluster, entry.make(jobs, loop.cluster), entry.estimator(0.0, 0), False, frozenset((mine,))
        ).run()
    except BricolageError:
        return None, None
    return found.states[mine].first_start_s, found.states[mine].finish_s
