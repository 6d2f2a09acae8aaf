"""What Slurm's accounting prints: `sacct --parsable2 --allusers
--format=JobID,JobName,User,Partition,Submit,Elapsed,Timelimit,State,AllocTRES`.

Columns may stand in any order. Read are the columns above, with ReqTRES where AllocTRES says nothing. Devices are the GPUs of
`gres/gpu`; where their type is given (`gres/gpu:a100=2`) and the cluster has such a kind, the job stays on it. Steps of jobs
(`17.batch`), jobs without a GPU and jobs that never ran are left out, and counted.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from sys import intern

from bricolage.cluster.history.records import JobHistory, Record, checked, history, room, timed_phases
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec

NEEDED = ("JobID", "Submit", "Elapsed")
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_ENDLESS = {"", "UNLIMITED", "Partition_Limit", "INVALID"}


def read_sacct(path: Path, lines: Iterable[Record], cluster: ClusterSpec) -> JobHistory:
    """Jobs of Slurm's accounting.

    Raises:
        BadHistory: a line is wrong.
    """
    jobs: list[TrainingJob] = []
    left_out: Counter[str] = Counter()
    for record in lines:
        name = record.text("JobID")
        kind, devices = _gpus(record)
        seconds = span_s(record, "Elapsed")
        if "." in name:
            left_out["lines are steps of jobs"] += 1
        elif not devices:
            left_out["jobs have no GPU"] += 1
        elif not seconds:
            left_out["jobs never ran"] += 1
        else:
            pinned = kind if kind in cluster.kinds else ""
            found = TrainingJob(
                name=name,
                submit_s=record.time("Submit"),
                phases=timed_phases(record, seconds, cluster, pinned, "AllocTRES"),
                devices=devices,
                user=intern(record.text("User", "")),
                kind=intern(record.text("JobName", "")),
                queue=intern(record.text("Partition", "")),
                limit_s=_limit(record),
            )
            room(record, len(jobs))
            jobs.append(checked(record, found, cluster, "AllocTRES"))
    return history(path, jobs, left_out, "sacct")


def span_s(record: Record, column: str) -> float:
    """Seconds of Slurm's `[days-]hours:minutes:seconds`."""
    word = record.text(column)
    match = _SPAN.fullmatch(word)
    if match is None:
        raise record.error(f"'{word}' is no time as Slurm writes it ([days-]hours:minutes:seconds)", column)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _limit(record: Record) -> float:
    return math.inf if record.text("Timelimit", "") in _ENDLESS else span_s(record, "Timelimit")


def _gpus(record: Record) -> tuple[str, int]:
    """The type, where it is given, and the number of GPUs."""
    for column in ("AllocTRES", "ReqTRES"):
        found = _GPUS.findall(record.values.get(column, ""))
        typed = [(kind, int(count)) for kind, count in found if kind]
        if len(typed) > 1:
            raise record.error("it holds GPUs of several types", column)
        if found:
            return typed[0] if typed else ("", int(found[0][1]))
    return "", 0
