"""Turns of a loop as the log has them: when, what was reported, who stopped and who started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.base.codec import DecodeError, JsonObject, decode, encode
from bricolage.cluster import job_engine
from bricolage.cluster.job_engine import Earlier, Gang, JobArrived, Report
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.serve.journal import Journal
from bricolage.cluster.serve.submission import JobSpec
from bricolage.errors import BrokenJournal

_KINDS: dict[str, type[Report]] = {
    kind.__name__: kind
    for kind in (
        job_engine.JobWithdrawn, job_engine.JobRunning, job_engine.JobProgressed, job_engine.JobStopped, job_engine.JobFinished,
        job_engine.JobFailed, job_engine.JobEvicted, job_engine.NodeGone, job_engine.NodeBack,
    )
}  # fmt: skip


_SLICE_S = 0.2
"""After so long users' requests are looked at again."""


@dataclass(frozen=True)
class Submission:
    """A job that came in: the request, so that it is not taken up twice, its description, when, and what it had before."""

    request: str
    spec: JobSpec
    submit_s: float
    earlier: Earlier = Earlier()
    attempts: int = 0

    def arrived(self, cluster: ClusterSpec) -> JobArrived:
        """As the loop hears of it."""
        return JobArrived(self.spec.training_job(self.submit_s, cluster), self.earlier)


@dataclass(frozen=True)
class LoopTurn:
    """One pass of the loop."""

    at: float
    reports: tuple[Submission | Report, ...]
    stops: tuple[int, ...]
    starts: tuple[Gang, ...]


def turn_record(turn: LoopTurn) -> JsonObject:
    """As the log has it."""
    reports = [{"what": type(report).__name__, **encode(report)} for report in turn.reports]
    return {"at": turn.at, "reports": reports, "stops": list(turn.stops), "starts": encode(turn.starts)}


def read_turn(record: JsonObject) -> LoopTurn:
    """What `turn_record` wrote.

    Raises:
        DecodeError: it is none.
    """
    parsed_reports: list[Submission | Report] = []
    reports = record.get("reports")
    for entry in reports if isinstance(reports, list) else ():
        facts = {key: value for key, value in entry.items() if key != "what"}
        kind: type[Submission | Report] | None = (
            Submission if entry.get("what") == "Submission" else _KINDS.get(str(entry.get("what")))
        )
        if kind is None:
            raise DecodeError(f"it has the unknown report '{entry.get('what')}'")
        parsed_reports.append(decode(kind, facts, "report"))
    rest = decode(_Decided, {key: value for key, value in record.items() if key != "reports"}, "turn")
    return LoopTurn(rest.at, tuple(parsed_reports), rest.stops, rest.starts)


@dataclass(frozen=True)
class _Decided:
    at: float
    stops: tuple[int, ...]
    starts: tuple[Gang, ...]


class DecidedOtherwise(Exception):
    """A policy does not decide again as the log has it: it is another version."""


class RecordedEngine:
    """Turns from a log: what the loop is told again, and what it decided then."""

    observes = True

    def __init__(self, turns: Sequence[LoopTurn], cluster: ClusterSpec, take: Callable[[Submission], object]) -> None:
        self._turns, self._cluster, self._take = turns, cluster, take
        self._at = 0

    def over(self) -> bool:
        """Whether all turns were told."""
        return self._at == len(self._turns)

    @property
    def turn(self) -> LoopTurn:
        """The present one."""
        return self._turns[self._at]

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        """The next turn's time and reports."""
        del until
        reports: list[Report] = []
        for report in self.turn.reports:
            if isinstance(report, Submission):
                self._take(report)
                reports.append(report.arrived(self._cluster))
            else:
                reports.append(report)
        return self.turn.at, reports

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        """Nothing: it was.

        Raises:
            DecidedOtherwise: it was something else.
        """
        del now
        if (tuple(stops), tuple(starts)) != (self.turn.stops, self.turn.starts):
            raise DecidedOtherwise
        self._at += 1


class JournalledEngine:
    """An engine whose turns are in the log before anything of them is carried out."""

    observes = True

    def __init__(
        self,
        engine: job_engine.Engine,
        journal: Journal,
        news: Callable[[float], tuple[Sequence[Submission | Report], Callable[[], None]]],
        take: Callable[[Submission], object],
        cluster: ClusterSpec,
        first: Sequence[Submission | Report] = (),
    ) -> None:
        """`news`: what users have asked for, and what answers them once it is on disk; `first`: what is told in the first turn."""
        self._engine, self._journal, self._news, self._take, self._cluster = engine, journal, news, take, cluster
        self._first = list(first)
        self._told: list[Submission | Report] = []
        self._answer: Callable[[], None] = lambda: None
        self.over: Callable[[], bool] = lambda: False
        """Where it says so, nothing is waited for any more."""

    @property
    def first(self) -> int:
        """Jobs that the first turn will tell of."""
        return sum(isinstance(report, Submission) for report in self._first)

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        """Reports of the engine, and what users want."""
        now, until = 0.0, 0.0 if self._first else until
        while True:
            now, reports = self._engine.wait(min(until, now + _SLICE_S))
            asked, self._answer = self._news(now)
            self._told = [*self._first, *reports, *asked]
            if self._told or now >= until or self.over():
                break
        self._first = []
        loop_reports: list[Report] = []
        for report in self._told:
            if isinstance(report, Submission):
                self._take(report)
                loop_reports.append(report.arrived(self._cluster))
            else:
                loop_reports.append(report)
        return now, loop_reports

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        """Writes it down first."""
        self._journal.append(turn_record(LoopTurn(now, tuple(self._told), tuple(stops), tuple(starts))))
        self._engine.carry_out(now, stops, starts)
        self._answer()


def turns_of(path: Path, records: Sequence[tuple[int, JsonObject]]) -> Iterator[LoopTurn]:
    """Turns from numbered lines of a log.

    Raises:
        BrokenJournal: one is none.
    """
    for line, record in records:
        try:
            yield read_turn(record)
        except (DecodeError, AttributeError) as error:
            raise BrokenJournal(path=path, line=line, reason=str(error)) from error
