"""Lines of a history with their columns; what is wrong with one is told with line and column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
_SPANS = (("start_time", "end_time"), ("Start", "End"), ("start", "end"))
NO_RATE = "jobs have no rate on their number of devices of the cluster's kinds"
_MOST_S = 1e10
_LONGEST = 1 << 16
"""Letters of a line."""


@dataclass(frozen=True)
class JobHistory:
    """Jobs in order of submission, the first at 0 s, and how many lines held none (by the reason)."""

    jobs: tuple[TrainingJob, ...]
    left_out: Mapping[str, int]
    format: str


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
    return {one: cluster.speed(one) for one in cluster.kinds}


def records(path: Path, file: TextIO, delimiter: str) -> Iterator[Record]:
    """The lines below a heading."""
    rows = csv.reader(
        _short(path, file), delimiter=delimiter, quoting=csv.QUOTE_NONE if delimiter == "|" else csv.QUOTE_MINIMAL
    )
    heads = [head.strip() for head in next(rows, [])]
    if len(set(heads)) < len(heads):
        twice = next(head for head in heads if heads.count(head) > 1)
        raise BadHistory(path=path, line=1, column="", reason=f"column '{twice}' is there twice")
    for row in rows:
        if not any(row):
            continue
        if len(row) != len(heads):
            raise BadHistory(
                path=path, line=rows.line_num, column="", reason=f"it has {len(row)} columns, the heading {len(heads)}"
            )
        yield Record(path, rows.line_num, dict(zip(heads, row, strict=True)))


def _short(path: Path, file: TextIO) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if len(line) > _LONGEST or "\0" in line:
            raise BadHistory(path=path, line=number, column="", reason="it is no line of text")
        yield line


def checked(record: Record, job: TrainingJob, cluster: ClusterSpec, column: str) -> TrainingJob:
    """A job that can run.

    Args:
        record: its line.
        job: of it.
        cluster: where it is to run.
        column: that says how many devices it needs.

    Raises:
        BadHistory: its gang fits on no kind of device that it can use, or it ends before it starts.
    """
    capacity = _capacity(cluster)
    if all(job.devices > capacity.get(kind, 0) for kind, rate in job.phases[0].rates.items() if rate > 0.0):
        there = ", ".join(f"{capacity.get(kind, 0)} {kind}" for kind in job.kinds)
        raise record.error(f"its gang of {job.devices} fits nowhere: there are {there}", column)
    for start, end in _SPANS:
        if end not in record.values or start not in record.values:
            continue
        try:
            ended = record.time(end) < record.time(start)
        except BadHistory:  # nothing else is read from these columns: they may be missing, or hold words
            continue
        if ended:
            raise record.error(f"it ends before it starts, at {record.text(start)}", end)
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
        raise record.error(f"memory runs out after {jobs} jobs, which a replay needs as much again for; {advice}")


def timed_phases(record: Record, seconds: float, cluster: ClusterSpec, kind: str, column: str) -> tuple[WorkPhase, ...]:
    """Work of which only its run time is known: on a kind, or on any at the speed that the cluster's file gives each."""
    if not kind:
        return (WorkPhase(seconds, _speeds(cluster)),)
    if kind not in cluster.kinds:
        raise record.error(f"the cluster has no devices of kind '{kind}'; it has {', '.join(cluster.kinds)}", column)
    return (WorkPhase(seconds, {kind: 1.0}),)


def history(path: Path, jobs: list[TrainingJob], left_out: Mapping[str, int], name: str) -> JobHistory:
    """In order, with times from the first submission.

    Raises:
        UnknownHistory: there are no jobs.
    """
    if not jobs:
        told = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise UnknownHistory(path=path, reason=f"it holds no job{f' ({told})' if told else ''}")
    first = min(job.submit_s for job in jobs)
    for number, job in enumerate(jobs if first else ()):  # one by one: there may be millions
        jobs[number] = replace(job, submit_s=job.submit_s - first, deadline_s=job.deadline_s - first)
    jobs.sort(key=lambda job: job.submit_s)
    last = jobs[-1].submit_s
    if last > _MOST_S or not math.isfinite(last):
        raise UnknownHistory(path=path, reason=f"its submissions are {last:.3g} s apart; a clock has jumped")
    return JobHistory(tuple(jobs), left_out, name)
