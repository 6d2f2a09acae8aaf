"""Lines of a history with their columns. A line that cannot be used is left out and counted; the first is told with its column."""

from __future__ import annotations

import csv
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TextIO

from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.device.memory import available_bytes, reserve_bytes
from bricolage.errors import BadHistory, UnknownHistory

MOST_JOBS = 5_000_000
_LOOK = 1 << 16
"""Jobs between two looks at the memory."""
_JOB_BYTES = 700
"""That a replay adds to a job that was read, at least: its state, its events and its stay."""
NO_RATE = "jobs have no rate on their number of devices of the cluster's kinds"
NOT_OVER = "jobs are not over: they wait, run or are suspended"
_MOST_S = 1e10
_LONGEST = 1 << 16
"""Letters of a line."""


_MOST_JOINED = 64
"""Lines that one quoted cell of a table may go on over."""


@dataclass
class OddLines:
    """Lines of a history that cannot be used."""

    count: int = 0
    first: BadHistory | None = None

    def add(self, error: BadHistory) -> None:
        """One more."""
        self.count += 1
        if self.first is None or int(str(error.facts["line"])) < int(str(self.first.facts["line"])):
            self.first = error

    def counted(self) -> dict[str, int]:
        """By the reason, as `JobHistory.left_out` has it: the first line is named."""
        if self.first is None:
            return {}
        facts = self.first.facts
        where = f"line {facts['line']}{facts['column']}: {facts['reason']}"
        return {f"lines cannot be used ({'' if self.count == 1 else 'the first is '}{where})": self.count}


@dataclass(frozen=True)
class JobHistory:
    """Jobs in order of submission, the first at 0 s, and how many lines held none (by the reason)."""

    jobs: tuple[TrainingJob, ...]
    left_out: Mapping[str, int]
    format: str
    not_completed: Mapping[str, int] = field(default_factory=dict)
    """How many of `jobs` did not complete, by their state: they are load, and say only that their work takes at least so long."""
    unfinished: tuple[TrainingJob, ...] = ()
    """Runs that are not among `jobs`, since they are not over or were begun anew: their work takes at least so long. Their
    submissions are as the file has them."""
    components: Mapping[str, str] = field(default_factory=dict)
    """By the name of a component of a heterogeneous job: the name of the job; empty where it is left out."""
    odd: OddLines = field(default_factory=OddLines)
    rate_error: float = 0.0
    """By how much the rates that its jobs were given are off (`RateTable.error`); 0: they are exact, or there are none."""

    def no_lengths(self) -> dict[str, int]:
        """How many lines and runs say nothing of how long jobs take, by the reason."""
        cut = {f"runs did not complete ({state})": count for state, count in self.not_completed.items()}
        return {**self.left_out, **cut}

    def notes(self) -> list[str]:
        """What a reader has to know of the jobs, in sentences."""
        sentences = []
        if self.not_completed:
            states = ", ".join(f"{count} {state}" for state, count in self.not_completed.items())
            sentences.append(
                f"{sum(self.not_completed.values())} of {len(self.jobs)} jobs did not complete ({states}): they hold devices "
                "as long as they did, and no run time is learnt from them"
            )
        joined = Counter(job for job in self.components.values() if job)
        if joined:
            sentences.append(
                f"{len(joined)} heterogeneous jobs: each is one gang of its {' or '.join(map(str, sorted(set(joined.values()))))} "
                "components, which start together"
            )
        return sentences


NO_HISTORY = JobHistory((), {}, "")


@dataclass(frozen=True, slots=True)
class Record:
    """One line."""

    path: Path
    line: int
    values: Mapping[str, str]

    def error(self, reason: str, column: str = "") -> BadHistory:
        """What is wrong with it."""
        return BadHistory(path=self.path, line=self.line, column=f", column {column}" if column else "", reason=reason)

    def text(self, column: str, default: str | None = None) -> str:
        """What stands in a column."""
        value = self.values.get(column, "").strip()
        if value or default is not None:
            return value or default or ""
        raise self.error("it is empty or missing", column)

    def number(self, column: str, default: float | None = None, least: float = 0.0, most: float = _MOST_S) -> float:
        """A number within limits."""
        word = self.text(column, None if default is None else "")
        if not word and default is not None:
            return default
        try:
            value = float(word)
        except ValueError:
            raise self.error(f"'{word}' is no number", column) from None
        if not least <= value <= most:
            raise self.error(f"{word} is not between {least:g} and {most:g}", column)
        return value

    def whole(self, column: str, default: int | None = None, least: int = 1, most: int = 1 << 20) -> int:
        """A whole number within limits."""
        value = self.number(column, default, least, most)
        if value != int(value):
            raise self.error(f"{value:g} is no whole number", column)
        return int(value)

    def time(self, column: str) -> float:
        """Seconds: as a number, or as a date (2024-03-01T12:00:00, or with a space)."""
        word = self.text(column)
        try:
            return datetime.fromisoformat(word).timestamp() if ":" in word else self.number(column, least=-_MOST_S)
        except ValueError:
            raise self.error(f"'{word}' is neither a number of seconds nor a date", column) from None


@lru_cache(maxsize=16)
def _capacity(cluster: ClusterSpec) -> Mapping[str, int]:
    return cluster.capacity


@lru_cache(maxsize=16)
def _speeds(cluster: ClusterSpec) -> Mapping[str, float]:
    return {kind: cluster.speed(kind) for kind in cluster.kinds}


def records(path: Path, file: TextIO, delimiter: str, odd: OddLines) -> Iterator[Record]:
    """The lines below a heading; those that are no lines of its columns are odd.

    Raises:
        BadHistory: the heading names a column twice.
    """
    rows = _rows(path, _short(path, file, odd), delimiter, odd)
    heads = [head.strip() for head in next(rows, (1, []))[1]]
    if len(set(heads)) < len(heads):
        twice = next(head for head in heads if heads.count(head) > 1)
        raise BadHistory(path=path, line=1, column="", reason=f"column '{twice}' is there twice")
    for number, row in rows:
        if not any(row):
            continue
        if len(row) != len(heads):
            reason = f"it has {len(row)} columns, the heading {len(heads)}"
            odd.add(BadHistory(path=path, line=number, column="", reason=reason))
            continue
        yield Record(path, number, dict(zip(heads, row, strict=True)))


def _rows(
    path: Path, lines: Iterator[tuple[int, str]], delimiter: str, odd: OddLines
) -> Iterator[tuple[int, list[str]]]:
    """Cells, with the number of their first line. A quote that opens and never closes costs its line, not all behind it."""
    ahead: deque[tuple[int, str]] = deque()

    def following() -> tuple[int, str] | None:
        return ahead.popleft() if ahead else next(lines, None)

    while (line := following()) is not None:
        number, text = line
        if delimiter == "|" or '"' not in text:
            yield number, text.rstrip("\r\n").split(delimiter)
            continue
        taken = [line]
        while (row := _cells([content for _, content in taken], delimiter)) is None and len(taken) < _MOST_JOINED:
            if (more := following()) is None:
                break
            taken.append(more)
        if row is None:
            ahead.extendleft(reversed(taken[1:]))
            odd.add(BadHistory(path=path, line=number, column="", reason="a quote opens in it, and none closes it"))
            continue
        yield number, row


def _cells(lines: list[str], delimiter: str) -> list[str] | None:
    """None where a quoted cell goes on behind them."""
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, strict=True))
    except csv.Error as error:
        if "unexpected end" in str(error):
            return None
        rows = list(csv.reader(lines, delimiter=delimiter))  # a letter behind a closing quote: read as it stands
    return rows[0] if rows else []


def _short(path: Path, file: TextIO, odd: OddLines) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, 1):
        if len(line) > _LONGEST or "\0" in line:
            odd.add(BadHistory(path=path, line=number, column="", reason="it is no line of text"))
            continue
        yield number, line


def read_job(odd: OddLines, read: Callable[[], TrainingJob | None]) -> TrainingJob | None:
    """The job that `read` makes of a line; None where it holds none, or cannot be used."""
    try:
        return read()
    except BadHistory as error:
        odd.add(error)
        return None


def has_room(job: TrainingJob, cluster: ClusterSpec) -> bool:
    """Whether some kind of device that a job can use has room for its gang."""
    capacity = _capacity(cluster)
    return any(job.devices <= capacity.get(kind, 0) for kind, rate in job.phases[0].rates.items() if rate > 0.0)


def check_job(record: Record, job: TrainingJob, cluster: ClusterSpec, column: str) -> TrainingJob:
    """A job that can run.

    Args:
        record: its line.
        job: of it.
        cluster: where it is to run.
        column: that says how many devices it needs.

    Raises:
        BadHistory: its gang fits on no kind of device that it can use.
    """
    if not has_room(job, cluster):
        capacity = _capacity(cluster)
        there = ", ".join(f"{capacity.get(kind, 0)} {kind}" for kind in job.kinds)
        raise record.error(f"its gang of {job.devices} fits nowhere: there are {there}", column)
    return job


def room(record: Record, jobs: int) -> None:
    """Looks now and then whether there is memory for more jobs.

    Raises:
        BadHistory: there are more jobs than one replay takes, or memory runs out.
    """
    advice = "give a part of the history"
    if jobs >= MOST_JOBS:
        raise record.error(f"there are more than {MOST_JOBS} jobs; {advice}")
    if jobs % _LOOK == 0 and available_bytes() < max(reserve_bytes(), _JOB_BYTES * jobs):
        raise record.error(f"memory runs out after {jobs} jobs, and a replay needs twice that memory; {advice}")


def timed_phases(record: Record, seconds: float, cluster: ClusterSpec, kind: str, column: str) -> tuple[WorkPhase, ...]:
    """Work of which only its run time is known: on a kind, or on any at the speed that the cluster's file gives each."""
    if not kind:
        return (WorkPhase(seconds, _speeds(cluster)),)
    if kind not in cluster.kinds:
        raise record.error(f"the cluster has no devices of kind '{kind}'; it has {', '.join(cluster.kinds)}", column)
    return (WorkPhase(seconds, {kind: 1.0}),)


def history(
    path: Path,
    jobs: list[TrainingJob],
    left_out: Mapping[str, int],
    name: str,
    odd: OddLines,
    *,
    not_completed: Mapping[str, int] | None = None,
    unfinished: Sequence[TrainingJob] = (),
    components: Mapping[str, str] | None = None,
) -> JobHistory:
    """In order, with times from the first submission. Further fields are those of `JobHistory`.

    Raises:
        BadHistory: there are no jobs, and a line cannot be used.
        UnknownHistory: there are no jobs.
    """
    left_out = {**left_out, **odd.counted()}
    if not jobs:
        if odd.first is not None:
            raise odd.first
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise UnknownHistory(path=path, reason=f"it holds no job{f' ({reasons})' if reasons else ''}")
    first = min(job.submit_s for job in jobs)
    for number, job in enumerate(jobs if first else ()):  # one by one: there may be millions
        jobs[number] = replace(job, submit_s=job.submit_s - first, deadline_s=job.deadline_s - first)
    jobs.sort(key=lambda job: job.submit_s)
    last = jobs[-1].submit_s
    if last > _MOST_S or not math.isfinite(last):
        raise UnknownHistory(path=path, reason=f"its submissions are {last:.3g} s apart; a clock has jumped")
    return JobHistory(tuple(jobs), left_out, name, not_completed or {}, tuple(unfinished), components or {}, odd)
