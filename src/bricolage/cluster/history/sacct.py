"""What Slurm's accounting prints: `sacct --parsable2 --allusers
--format=JobID,JobName,User,Partition,Submit,Elapsed,Timelimit,State,AllocTRES`.

Columns may stand in any order. Read are the columns above, with ReqTRES where AllocTRES says nothing; no other column refuses a
line. Devices are the GPUs of `gres/gpu`; where their type is given (`gres/gpu:a100=2`) and the cluster has such a kind, the job
stays on it. How long a run took is Elapsed alone: Submit, Start and End are times of a clock without a zone, which goes back once a
year.

Left out, and counted: steps of jobs (`17.batch`), jobs without a GPU or with GPUs of several types, jobs that never ran or are not
over, and runs of requeued jobs but the last (`--duplicates` shows them). Components of a heterogeneous job (`300+0`, `300+1`) start
together: they are one gang where one kind of device serves all of them, else they are left out. A run that did not complete is
load.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from sys import intern

from bricolage.cluster.history.records import (
    NOT_OVER,
    JobHistory,
    OddLines,
    Record,
    check_job,
    has_room,
    history,
    room,
    timed_phases,
)  # fmt: skip
from bricolage.cluster.history.states import ending, state_word
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import BadHistory

NEEDED = ("JobID", "Submit", "Elapsed")
NO_STATE = "without a state"
_SPAN = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_COMPONENT = re.compile(r"(.+)\+\d+")
_TYPES = "jobs hold GPUs of several types"
_AGAIN = "runs were begun anew: their jobs were requeued"
_APART = "components of heterogeneous jobs cannot start as one gang: they are not over, or no kind of device serves all"


@dataclass(frozen=True, slots=True)
class _Run:
    """A line with GPUs that ran."""

    job: TrainingJob
    state: str
    pinned: str
    """The kind of device that it stays on; empty: any."""
    whole: str
    """The name of the heterogeneous job that it is a component of; empty: of none."""


def read_sacct(path: Path, lines: Iterable[Record], cluster: ClusterSpec, odd: OddLines) -> JobHistory:
    """Jobs of Slurm's accounting.

    Raises:
        BadHistory: no line can be used.
    """
    runs: list[_Run] = []
    left_out: Counter[str] = Counter()
    broken: set[str] = set()
    for record in lines:
        if "." in record.values.get("JobID", ""):
            left_out["lines are steps of jobs"] += 1
            continue
        if (run := _read(record, cluster, odd, left_out, broken)) is not None:
            room(record, len(runs))
            runs.append(run)
    broken.discard("")
    unfinished: list[TrainingJob] = []
    last = _last_runs(runs, unfinished, left_out)
    components: dict[str, str] = {}
    states: Counter[str] = Counter()
    jobs: list[TrainingJob] = []
    for same in _gangs(last):
        job = None if same[0].whole in broken else _gang(same, cluster)
        if same[0].whole:
            components |= dict.fromkeys((run.job.name for run in same), "" if job is None else job.name)
        if job is not None:
            jobs.append(job)
            if not job.completed:
                states[next(run.state for run in same if not run.job.completed)] += 1
        else:
            unfinished += [replace(run.job, completed=False) for run in same]
            left_out[_APART if same[0].whole else NOT_OVER] += len(same)
    return history(
        path, jobs, left_out, "sacct", odd,
        not_completed=dict(states), unfinished=tuple(unfinished), components=components,
    )  # fmt: skip


def _read(record: Record, cluster: ClusterSpec, odd: OddLines, left_out: Counter[str], broken: set[str]) -> _Run | None:
    """None where a line holds no run with GPUs that can be used, which is counted. Where it is a component of a heterogeneous job,
    `broken` gets the name of that."""
    match = _COMPONENT.fullmatch(record.values.get("JobID", ""))
    whole = match[1] if match else ""
    try:
        kinds, devices = _gpus(record)
        if len(kinds) > 1:
            left_out[_TYPES] += 1
            broken.add(whole)
        elif not devices:
            left_out["jobs have no GPU"] += 1
        elif not (seconds := span_s(record, "Elapsed")):
            left_out["jobs never ran"] += 1
        else:
            state = state_word(record.values["State"]) if record.values.get("State") else NO_STATE
            pinned = kinds[0] if kinds and kinds[0] in cluster.kinds else ""
            job = TrainingJob(
                name=record.text("JobID"),
                submit_s=record.time("Submit"),
                phases=timed_phases(record, seconds, cluster, pinned, "AllocTRES"),
                devices=devices,
                user=intern(record.text("User", "")),
                kind=intern(record.text("JobName", "")),
                queue=intern(record.text("Partition", "")),
                limit_s=_limit(record),
                completed=ending(state) == "completed",
            )
            return _Run(job if whole else check_job(record, job, cluster, "AllocTRES"), intern(state), pinned, whole)
    except BadHistory as error:
        odd.add(error)
        broken.add(whole)
    return None


def _last_runs(runs: Sequence[_Run], unfinished: list[TrainingJob], left_out: Counter[str]) -> list[_Run]:
    """One run of each job: a requeued one has a line for each time that it ran, and began anew each time. It was submitted when the
    first of them was."""
    latest: dict[str, _Run] = {}
    for run in runs:
        before = latest.get(run.job.name)
        if before is None:
            latest[run.job.name] = run
            continue
        first, second = sorted((before, run), key=lambda attempt: attempt.job.submit_s)
        unfinished.append(replace(first.job, completed=False))
        left_out[_AGAIN] += 1
        latest[run.job.name] = replace(second, job=replace(second.job, submit_s=first.job.submit_s))
    return list(latest.values())


def _gangs(runs: Sequence[_Run]) -> list[list[_Run]]:
    """Runs that start together, side by side: the components of a heterogeneous job."""
    gangs: dict[str, list[_Run]] = {}
    for run in runs:
        gangs.setdefault(run.whole or run.job.name, []).append(run)
    return list(gangs.values())


def _gang(runs: Sequence[_Run], cluster: ClusterSpec) -> TrainingJob | None:
    """The job of runs that start together, as one gang as long as the longest; None where they are not over, or no kind of device
    serves all."""
    pinned = {run.pinned: run.job for run in runs if run.pinned}
    if len(pinned) > 1 or any(ending(run.state) == "not over" for run in runs):
        return None
    job = runs[0].job
    if not runs[0].whole:
        return job
    rates = next(iter(pinned.values()), job).phases[0].rates
    gang = replace(
        job,
        name=runs[0].whole,
        submit_s=min(run.job.submit_s for run in runs),
        phases=(WorkPhase(max(run.job.steps for run in runs), rates),),
        devices=sum(run.job.devices for run in runs),
        limit_s=max(run.job.limit_s for run in runs),
        completed=all(run.job.completed for run in runs),
    )
    return gang if has_room(gang, cluster) else None


def span_s(record: Record, column: str) -> float:
    """Seconds of Slurm's `[days-]hours:minutes:seconds`."""
    word = record.text(column)
    match = _SPAN.fullmatch(word)
    if match is None:
        raise record.error(f"'{word}' is no time as Slurm writes it ([days-]hours:minutes:seconds)", column)
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _limit(record: Record) -> float:
    """Infinite where there is none, and where the column says something else, as `Partition_Limit`."""
    try:
        return span_s(record, "Timelimit")
    except BadHistory:
        return math.inf


def _gpus(record: Record) -> tuple[list[str], int]:
    """The types, where they are given, and the number of GPUs."""
    for column in ("AllocTRES", "ReqTRES"):
        matches = _GPUS.findall(record.values.get(column, ""))
        typed = {kind: int(count) for kind, count in matches if kind}
        if matches:
            return list(typed), next(iter(typed.values())) if typed else int(matches[0][1])
    return [], 0
