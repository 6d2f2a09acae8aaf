"""What a loop makes of reports: where an engine sees what happens (`job_engine.py`), the loop believes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from bricolage.cluster.fitted import learnt_scaling
from bricolage.cluster.gang_placement import NodePool
from bricolage.cluster.job_engine import (
    JobArrived,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobRunning,
    JobStopped,
    JobWithdrawn,
    NodeBack,
    NodeGone,
    Report,
)
from bricolage.cluster.jobs import JobState, TrainingJob, WorkPhase

ATTEMPTS = 3
"""A job that fails so often without a step more is given up."""
_DRIFT = 0.1
"""What is seen of a job's progress changes its rate when it is off by so much."""
_SOONEST_S = 20.0
"""Of running, before a job's rate is judged by what it did: jobs say now and then how far they are."""


class _Scheduler(Protocol):
    def changed(self, state: JobState, now: float) -> None: ...
    def evicted(self, state: JobState, now: float) -> None: ...


class _Estimator(Protocol):
    def ended(self, state: JobState) -> None: ...


class _Loop(Protocol):
    """What of a loop is changed here."""

    states: list[JobState]
    now: float
    lost_steps: float

    @property
    def pools(self) -> Mapping[str, NodePool]: ...
    @property
    def scheduler(self) -> _Scheduler: ...
    @property
    def estimator(self) -> _Estimator: ...
    def check_fits(self, job: TrainingJob) -> tuple[str, ...]: ...
    def arrive(self, state: JobState) -> None: ...
    def end(self, state: JobState) -> None: ...
    def withdraw(self, state: JobState) -> None: ...
    def release(self, state: JobState) -> None: ...
    def clear(self, kind: str, node: int) -> None: ...
    def tell_size(self, kind: str) -> None: ...


class Observations:
    """Changes a loop by reports."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._from: dict[int, tuple[float, float]] = {}
        """By number, since when a job runs where it is, and with how many steps it began there."""
        self._failed: dict[int, tuple[int, float]] = {}
        """By number, how often a job has failed with so many steps."""
        self._rates: dict[int, dict[str, dict[int, float]]] = {}
        """By number and kind: steps a second that a job was seen to do, by its number of devices."""
        self.given_up: dict[int, str] = {}
        """By number, why a job is not wanted any more."""

    def over(self, state: JobState) -> bool:
        """Whether a job has finished, or is not wanted any more."""
        return not math.isnan(state.finish_s) or state.number in self.given_up

    def works(self, state: JobState) -> bool:
        """Whether a job was seen to run where it is."""
        return self._from.get(state.number, (-1.0, 0.0))[0] >= state.since_s

    def wait(self) -> None:
        """Time has passed: who was not seen to run has done nothing yet."""
        for state in self._loop.states:
            self.hold(state, self._loop.now)

    def hold(self, state: JobState, now: float) -> None:
        """The same of one job, and up to a time."""
        if state.held and not self.works(state):
            state.resumes_s = max(state.resumes_s, now)

    def hear(self, report: Report) -> list[int]:
        """Takes a report. Returns the jobs that the engine has to stop for it."""
        if isinstance(report, JobArrived):
            self._take_in(report)
            return []
        if isinstance(report, NodeGone | NodeBack):
            self._node(report)
            return []
        state = self._loop.states[report.number]
        if self.over(state):
            return []
        if isinstance(report, JobWithdrawn):
            held = state.held > 0
            self._give_up(state, report.reason)
            return [state.number] if held else []
        if isinstance(report, JobRunning | JobProgressed):
            self._seen(state, report)
        elif isinstance(report, JobStopped):
            self._reset_to_checkpoint(state, report.steps)
        elif isinstance(report, JobFinished):
            self._finish_job(state)
        else:
            self._handle_eviction(state, report)
        return []

    def _take_in(self, report: JobArrived) -> None:
        earlier, loop = report.earlier, self._loop
        state = JobState(len(loop.states), report.job, report.job.steps, loop.check_fits(report.job))
        state.done, state.attained_s, state.run_s = earlier.done, earlier.attained_s, earlier.run_s
        state.restarts = earlier.restarts
        if earlier.first_start_s is not None:
            state.first_start_s = earlier.first_start_s
        loop.states.append(state)
        loop.arrive(state)

    def _node(self, report: NodeGone | NodeBack) -> None:
        pool = self._loop.pools[report.kind]
        if isinstance(report, NodeGone):
            self._loop.clear(report.kind, report.node)
            pool.fail(report.node)
        else:
            pool.repair(report.node)
        self._loop.tell_size(report.kind)

    def _seen(self, state: JobState, report: JobRunning | JobProgressed) -> None:
        """Progress as it was seen; a rate that is off is mended."""
        if not state.held:
            return
        now = self._loop.now
        state.advance(now)
        if isinstance(report, JobRunning):
            state.resumes_s = now
            self._from[state.number] = (now, report.steps)
            state.done = report.steps
            return
        state.done = min(report.steps, state.job.steps)
        since, before = self._from.get(state.number, (now, report.steps))
        if now - since < _SOONEST_S or report.steps <= before:
            return
        rate = (report.steps - before) / (now - since)
        seen = self._rates.setdefault(state.number, {}).setdefault(state.held_kind, {})
        seen[state.held] = rate
        if abs(rate / state.rate - 1.0) > _DRIFT:
            rates, scaling = dict(state.job.phases[0].rates), state.job.scaling
            if len(seen) > 1 and len(scaling) > 1:
                rates[state.held_kind], scaling = learnt_scaling(scaling, state.job.devices, seen)
            else:
                rates[state.held_kind] *= rate / state.rate
            state.job = replace(state.job, phases=(WorkPhase(state.job.steps, rates),), scaling=scaling)
            state.rate = rate
            self._loop.scheduler.changed(state, now)

    def _reset_to_checkpoint(self, state: JobState, steps: float) -> None:
        """Its steps are those of its checkpoint, wherever it is now."""
        state.advance(self._loop.now)
        self._loop.lost_steps += max(state.done - steps, 0.0)
        state.done = steps

    def _finish_job(self, state: JobState) -> None:
        state.advance(self._loop.now)
        state.done = state.job.steps
        if state.held:
            self._loop.end(state)
            return
        state.finish_s = self._loop.now
        self._loop.estimator.ended(state)
        self._loop.withdraw(state)

    def _handle_eviction(self, state: JobState, report: JobFailed | JobEvicted) -> None:
        self._reset_to_checkpoint(state, report.steps)
        self._take_back(state)
        if isinstance(report, JobFailed):
            count, before = self._failed.get(state.number, (0, -1.0))
            count = count + 1 if report.steps <= before else 1
            self._failed[state.number] = (count, report.steps)
            if count >= ATTEMPTS:
                self._give_up(state, f"failed: {report.reason}")

    def _give_up(self, state: JobState, reason: str) -> None:
        state.advance(self._loop.now)
        self._take_back(state)
        self.given_up[state.number] = reason
        self._loop.withdraw(state)

    def _take_back(self, state: JobState) -> None:
        if state.held:
            self._loop.release(state)
            self._loop.scheduler.evicted(state, self._loop.now)
