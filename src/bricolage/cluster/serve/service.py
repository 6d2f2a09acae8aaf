"""A cluster that is served: one loop, on an engine whose turns are logged first, with users' requests in between.

A driver that dies is taken up again: the log's turns are told to the same loop and the same policy again, which come to stand where
they stood; then what the engine finds running goes on, and the rest is started again from its checkpoints. Where the policy, the
cluster or the version is another than the log's, jobs keep their steps and service, and the policy begins anew.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from bricolage import errors
from bricolage._version import __version__
from bricolage.base.codec import DecodeError, JsonObject, decode, encode
from bricolage.base.undo import undo_on_failure
from bricolage.cluster.engines.job_command import JobWork
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.job_engine import Earlier, Engine, Gang, JobWithdrawn, RealClock, Report, gang_of
from bricolage.cluster.jobs import JobState, TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import PolicyEntry, find_policy
from bricolage.cluster.scheduler import Changes, JobStart
from bricolage.cluster.serve.job_answers import JobRow, Listed, job_rows, past_of, why_now
from bricolage.cluster.serve.journal import Journal
from bricolage.cluster.serve.spool import Counter
from bricolage.cluster.serve.submission import JobSpec
from bricolage.cluster.serve.turn_log import (
    DecidedOtherwise,
    JournalledEngine,
    LoopTurn,
    RecordedEngine,
    Submission,
    turns_of,
)
from bricolage.errors import BricolageError, JobRefused, PolicyRefuses, UnknownJob

_LOG = logging.getLogger(__name__)
_PAST = 1000
"""Jobs that are over, as `list` shows them, when a policy begins anew."""


class JobEngine(Engine, Protocol):
    """An engine that takes up what an earlier driver left."""

    def adopt(self, gangs: Mapping[int, Gang], attempts: Mapping[int, int]) -> list[Report]:
        """Gangs that shall run, and how often each job was started so far; what is not as it should be."""
        ...

    def close(self) -> None:
        """The driver ends."""
        ...


MakeEngine = Callable[[ClusterSpec, RealClock, Callable[[int], JobWork]], JobEngine]


@dataclass(frozen=True)
class _Opened:
    """The first record of a chapter of the log: what was served since, and how."""

    began: float
    """By `time.time`: where the loop's time is zero."""
    policy: str
    cluster: ClusterSpec
    version: str
    past: tuple[JobRow, ...] = ()
    carried: tuple[Submission, ...] = ()
    """Jobs that were there before. The first turn after this record tells the loop of them."""

    def same(self, other: _Opened) -> bool:
        """Whether it was served in the same way."""
        return (self.policy, self.cluster, self.version) == (other.policy, other.cluster, other.version)


class Service:
    """Serves a cluster from a folder.

    Raises:
        AlreadyServed, UnsafeState, BrokenJournal, NotWritable: the folder cannot be served from; nothing was changed.
        UnknownPolicy, PolicyRefuses: there is no such policy, or it can serve no jobs on this cluster.
        BadCluster: the cluster has failures written down, which are for replays.
    """

    def __init__(self, folder: Path, cluster: ClusterSpec, policy: str, make_engine: MakeEngine) -> None:
        self.folder, self.cluster = folder.resolve(), cluster
        self.entry = find_policy(policy)
        _check(self.entry, cluster)
        self._submissions: list[Submission] = []
        self._numbers: dict[str, int] = {}
        self._past: tuple[JobRow, ...] = ()
        self._ended = False
        self._counter = Counter(self.folder)
        with undo_on_failure(lambda: self._counter.__exit__(None, None, None)):
            self._journal = Journal(self.folder / "log")
        self._engine: JobEngine | None = None
        with undo_on_failure(self.close):
            self._open(make_engine)

    def close(self) -> None:
        """The engine ends jobs that cannot outlive this process; the log says that they shall run."""
        if self._ended:
            return
        self._ended = True
        if self._engine is not None:
            self._engine.close()
        self._journal.__exit__(None, None, None)
        self._counter.__exit__(None, None, None)

    def serve(self, over: Callable[[], bool] = lambda: False) -> None:
        """Until `over` says so; what ends the process ends this, too."""
        self._turns.over = over
        self.loop.run(over)

    @property
    def left(self) -> int:
        """Jobs that are not over, of those that the log has."""
        return self._turns.first + sum(not self.loop.observed.over(state) for state in self.loop.states)

    @property
    def idle(self) -> bool:
        """Whether every job that was submitted is over."""
        return not self.left

    def work(self, number: int) -> JobWork:
        """A job's command."""
        spec = self._submissions[number].spec
        return JobWork(
            spec.name, spec.command, self.folder / "jobs" / spec.name, Path(spec.directory), spec.steps,
            spec.environment, spec.grace,
        )  # fmt: skip

    # --- taking up --------------------------------------------------------------------------------------------------

    def _open(self, make_engine: MakeEngine) -> None:
        chapter, turns = self._chapter()
        again = _Opened(chapter.began if chapter else time.time(), self.entry.name, self.cluster, __version__)
        first: list[Submission] = []
        gangs: dict[int, Gang] = {}
        same = False
        if chapter is not None:
            self._past = chapter.past
            same = chapter.same(again) and self._retell(turns, None, self.cluster)
            if same and not turns:
                first = list(chapter.carried)
            elif not same:
                self._retell(turns, _AsWritten(), chapter.cluster)
                first = self._carry_jobs_over(self._attempts(turns)) if turns else list(chapter.carried)
        attempts = {number: submission.attempts for number, submission in enumerate(first)}
        if chapter is None or not same:
            self._begin(again, first)
        else:
            gangs = {state.number: gang_of(state) for state in self.loop.states if state.held}
            attempts |= self._attempts(turns)
        clock = RealClock(again.began, turns[-1].at if turns else 0.0)
        engine = self._engine = make_engine(self.cluster, clock, self.work)
        reports = engine.adopt(gangs, attempts)
        self._turns = JournalledEngine(engine, self._journal, self._news, self._take, self.cluster, [*first, *reports])
        self.loop.engine = self._turns

    def _chapter(self) -> tuple[_Opened | None, list[LoopTurn]]:
        """The log's last chapter."""
        records = list(enumerate(self._journal.records, 1))
        start = max((index for index, (_, record) in enumerate(records) if "opened" in record), default=None)
        if start is None:
            return None, []
        path = self._journal.path
        try:
            opened = decode(_Opened, records[start][1]["opened"], "opened")
        except DecodeError as error:
            raise errors.BrokenJournal(path=path, line=records[start][0], reason=str(error)) from error
        return opened, list(turns_of(path, records[start + 1 :]))

    def _retell(self, turns: Sequence[LoopTurn], scheduler: _AsWritten | None, cluster: ClusterSpec) -> bool:
        """Brings a fresh loop to where the log ends; False where the policy decides otherwise now."""
        self._submissions, self._numbers = [], {}
        engine = RecordedEngine(turns, cluster, self._take)
        policy = scheduler or self.entry.make((), cluster)
        self.loop = EventLoop((), cluster, policy, self.entry.estimator(0.0, 0), engine=engine)
        if scheduler is not None:
            scheduler.engine, scheduler.states = engine, self.loop.states
        try:
            self.loop.run(engine.over)
        except DecidedOtherwise:
            _LOG.warning("policy %s decides otherwise than the log has it: it begins anew", self.entry.name)
            return False
        return True

    def _carry_jobs_over(self, attempts: Mapping[int, int]) -> list[Submission]:
        """Jobs that are not over, as they come into the next chapter."""
        self._past = (*self._past, *past_of(self.loop, self._submissions))[-_PAST:]
        carried: list[Submission] = []
        for state in self.loop.states:
            if self.loop.observed.over(state):
                continue
            state.advance(self.loop.now)
            started = None if math.isnan(state.first_start_s) else state.first_start_s
            earlier = Earlier(self.work(state.number).saved(), state.attained_s, state.run_s, started, state.restarts)
            carried.append(replace(self._submissions[state.number], earlier=earlier, attempts=attempts[state.number]))
        return carried

    def _begin(self, opened: _Opened, carried: Sequence[Submission]) -> None:
        """A new chapter.

        Raises:
            JobRefused, JobFitsNowhere, PolicyRefuses: a job that is there already cannot be served like this.
        """
        self._submissions, self._numbers = [], {}
        self.loop = EventLoop((), self.cluster, self.entry.make((), self.cluster), self.entry.estimator(0.0, 0))
        for submission in carried:
            self._check_serves(submission.spec, submission.submit_s)
        self._journal.append({"opened": encode(replace(opened, past=self._past, carried=tuple(carried)))})

    def _attempts(self, turns: Sequence[LoopTurn]) -> dict[int, int]:
        count = {number: submission.attempts for number, submission in enumerate(self._submissions)}
        for turn in turns:
            for gang in turn.starts:
                count[gang.number] = count.get(gang.number, 0) + 1
        return count

    def _take(self, submission: Submission) -> None:
        self._numbers[submission.spec.name] = len(self._submissions)
        self._submissions.append(submission)

    # --- users' requests --------------------------------------------------------------------------------------------

    def _news(self, now: float) -> tuple[list[Submission | Report], Callable[[], None]]:
        """Submissions and withdrawals; what only asks is answered at once."""
        reports: list[Submission | Report] = []
        answers: list[tuple[str, JsonObject]] = []
        seen_requests = {submission.request for submission in self._submissions}
        for request, asked in self._counter.requests():
            try:
                reply = self._answer_request(request, asked, now, seen_requests, reports)
            except BricolageError as error:
                self._counter.refuse(request, error)
                continue
            except DecodeError as error:
                self._counter.refuse(request, JobRefused(name="?", reason=str(error)))
                continue
            if reply is not None:
                answers.append((request, reply))

        def answer() -> None:
            for request, reply in answers:
                self._counter.answer(request, reply)

        return reports, answer

    def _answer_request(
        self, request: str, asked: JsonObject, now: float, known: set[str], found: list[Submission | Report]
    ) -> JsonObject | None:
        """What a request is answered with once its reports are on disk; None where it was answered at once."""
        what = next(iter(asked), "")
        if what == "submit":
            if request in known:  # a driver died between the log and the answer
                return {
                    "submitted": [
                        submission.spec.name for submission in self._submissions if submission.request == request
                    ]
                }
            specs = decode(_Specs, {"specs": asked["submit"]}, "request").specs
            names = {entry.spec.name for entry in found if isinstance(entry, Submission)}
            for spec in specs:
                self._check_new(spec, now, names)
                names.add(spec.name)
            found += [Submission(request, spec, now) for spec in specs]
            return {"submitted": [spec.name for spec in specs]}
        if what == "cancel":
            number = self._number(str(asked["cancel"]))
            state = self.loop.states[number]
            if not self.loop.observed.over(state):
                found.append(JobWithdrawn(number))
                return {"cancelled": self._submissions[number].spec.name}
            self._counter.answer(request, {"over": self._submissions[number].spec.name})
        elif what == "list":
            jobs = (*self._past, *job_rows(self.loop, self._submissions, now))
            self._counter.answer(request, encode(Listed(jobs, self.entry.name, now)))
        elif what == "why":
            number = self._number(str(asked["why"]))
            self._counter.answer(request, {"why": encode(why_now(self.loop, self.entry, number, now))})
        else:
            raise JobRefused(name="?", reason=f"there is no request '{what}'")
        return None

    def _check_new(self, spec: JobSpec, now: float, others: set[str]) -> None:
        """Raises JobRefused, JobFitsNowhere or PolicyRefuses."""
        if spec.name in self._numbers or spec.name in others or (self.folder / "jobs" / spec.name).exists():
            raise JobRefused(name=spec.name, reason="there is, or was, a job of that name here")
        self._check_serves(spec, now)

    def _check_serves(self, spec: JobSpec, now: float) -> None:
        job = spec.training_job(now, self.cluster)
        self.loop.check_fits(job)
        if reason := self.entry.refuses([*_likely(self.cluster), job], self.cluster):
            raise PolicyRefuses(name=self.entry.name, reason=reason)

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise UnknownJob(name=name)
        return self._numbers[name]


@dataclass(frozen=True)
class _Specs:
    specs: tuple[JobSpec, ...]


class _AsWritten:
    """Decides what the log has."""

    preempts = True
    engine: RecordedEngine
    states: Sequence[JobState]

    def begin(self, cluster: ClusterSpec) -> None:
        """Nothing is kept."""

    def arrived(self, state: JobState, now: float) -> None:
        """As it is written."""

    def ended(self, state: JobState, now: float) -> None:
        """As it is written."""

    def evicted(self, state: JobState, now: float) -> None:
        """As it is written."""

    def changed(self, state: JobState, now: float) -> None:
        """As it is written."""

    def withdrawn(self, state: JobState, now: float) -> None:
        """As it is written."""

    def resized(self, kind: str, devices: int, now: float) -> None:
        """As it is written."""

    def decide(self, now: float) -> Changes:
        """The present turn's stops and starts."""
        del now
        turn = self.engine.turn
        stops = [self.states[number] for number in turn.stops if self.states[number].held]
        starts = [JobStart(self.states[g.number], g.kind, g.devices, nodes=g.nodes) for g in turn.starts]
        return Changes(stops, starts)


def _check(entry: PolicyEntry, cluster: ClusterSpec) -> None:
    """Whether a policy could serve some job here."""
    if cluster.failure:
        raise errors.BadCluster(path="the cluster", reason="[[failure]] is for replays: real nodes fail by themselves")
    if reason := entry.refuses(_likely(cluster), cluster):
        raise PolicyRefuses(name=entry.name, reason=reason)


def _likely(cluster: ClusterSpec) -> list[TrainingJob]:
    """Jobs that have all that a policy may ask some to have: what is refused with them, is for the job's or the cluster's sake."""
    phases = (WorkPhase(1.0, dict.fromkeys(cluster.kinds, 1.0)),)
    return [
        TrainingJob(name, 0.0, phases, user=name, queue=name, deadline_s=10.0, scaling=((1, 1.0), (2, 1.5)))
        for name in ("one", "other")
    ]
