"""Tables of jobs with a heading: bricolage's own columns, and those of published traces.

| format | columns that it is known by |
|---|---|
| table | `submit, duration, devices`; also `name, user, kind, queue, device, deadline, weight, limit, after, state` |
| elasticflow | `submit_time, iteration, model_name, ddl, batch_size, num_gpu, duration` |
| tiresias | `job_id, num_gpu, submit_time, iterations, model_name, duration` |
| helios | `job_id, user, vc, gpu_num, state, submit_time, duration` |
| philly | `submit_time, duration, num_gpus`, or Sia's `time, duration, num_gpus, vc` |

Where a table has no states, what ran is taken to have completed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from sys import intern

from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.history.records import (
    NO_RATE,
    NOT_OVER,
    JobHistory,
    OddLines,
    Record,
    check_job,
    history,
    read_job,
    room,
    timed_phases,
)  # fmt: skip
from bricolage.cluster.history.states import ending, state_word
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec


@dataclass(frozen=True)
class TableFormat:
    """Which column says what; empty where none does."""

    name: str
    submit: str
    duration: str
    devices: str
    job: str = ""
    user: str = ""
    kind: str = ""
    queue: str = ""
    device: str = ""
    deadline: str = ""
    weight: str = ""
    limit: str = ""
    after: str = ""
    state: str = ""
    steps: str = ""
    """For formats whose durations come from a table of rates."""
    batch: str = ""
    known_by: tuple[str, ...] = ()
    """Further columns that tell it from others."""

    def fits(self, heads: Iterable[str]) -> bool:
        """Whether a table with these columns is of this format."""
        return {self.submit, self.duration, self.devices, *self.known_by} <= set(heads)


TABLES = (
    TableFormat(
        "elasticflow",
        "submit_time",
        "duration",
        "num_gpu",
        "job_id",
        kind="model_name",
        deadline="ddl",
        steps="iteration",
        batch="batch_size",
        known_by=("ddl", "batch_size", "model_name"),
    ),
    TableFormat(
        "tiresias",
        "submit_time",
        "duration",
        "num_gpu",
        "job_id",
        kind="model_name",
        known_by=("model_name", "iterations"),
    ),
    TableFormat(
        "helios",
        "submit_time",
        "duration",
        "gpu_num",
        "job_id",
        "user",
        queue="vc",
        state="state",
        known_by=("state", "vc"),
    ),
    TableFormat("philly", "submit_time", "duration", "num_gpus", "job_id", "user", queue="vc"),
    TableFormat("philly", "time", "duration", "num_gpus", "job_id", queue="vc"),
    TableFormat(
        "table",
        "submit",
        duration="duration",
        devices="devices",
        job="name",
        user="user",
        kind="kind",
        queue="queue",
        device="device",
        deadline="deadline",
        weight="weight",
        limit="limit",
        after="after",
        state="state",
    ),
)


def read_table(
    path: Path, lines: Iterable[Record], form: TableFormat, cluster: ClusterSpec, rates: RateTable | None, odd: OddLines
) -> JobHistory:
    """Jobs of a table. Lines without devices (processor jobs), without run time, of jobs that are not over, and of jobs that come
    after one that is not there, are left out, and counted.

    Raises:
        BadHistory: no line can be used.
    """
    jobs: list[TrainingJob] = []
    unfinished: list[TrainingJob] = []
    left_out: Counter[str] = Counter()
    states: Counter[str] = Counter()
    waiting: list[tuple[Record, TrainingJob]] = []
    for record in lines:
        word = state_word(record.values.get(form.state, "")) if form.state in record.values else "COMPLETED"
        parsed_job = read_job(odd, partial(_line, record, form, cluster, rates, ending(word) == "completed", left_out))
        if parsed_job is None:
            continue
        if ending(word) == "not over":
            left_out[NOT_OVER] += 1
            unfinished.append(parsed_job)
            continue
        room(record, len(jobs))
        jobs.append(parsed_job)
        if not parsed_job.completed:
            states[word] += 1
        if parsed_job.after:
            waiting.append((record, parsed_job))
    never = _never_start(jobs, waiting, form.after, odd)
    if never:
        states.subtract(
            state_word(record.text(form.state)) for record, job in waiting if id(job) in never and not job.completed
        )
        jobs = [job for job in jobs if id(job) not in never]
    return history(path, jobs, left_out, form.name, odd, not_completed=dict(+states), unfinished=tuple(unfinished))


def _line(
    record: Record,
    form: TableFormat,
    cluster: ClusterSpec,
    rates: RateTable | None,
    completed: bool,
    left_out: Counter[str],
) -> TrainingJob | None:
    """The job of a line; None where it holds none, which is counted."""
    devices = record.whole(form.devices, least=0)
    seconds = record.number(form.duration)
    if not devices or not seconds:
        left_out["lines have no devices" if not devices else "jobs never ran"] += 1
        return None
    job = _job(record, form, cluster, rates, devices, seconds, record.line - 1)
    if job is None:
        left_out[NO_RATE] += 1
        return None
    job = check_job(record, job, cluster, form.devices)
    return job if completed else replace(job, completed=False)


def _job(
    record: Record,
    form: TableFormat,
    cluster: ClusterSpec,
    rates: RateTable | None,
    devices: int,
    seconds: float,
    number: int,
) -> TrainingJob | None:
    def read_cell(column: str) -> str:
        return record.values.get(column, "").strip() if column else ""

    submit = record.time(form.submit)
    deadline = record.time(form.deadline) if read_cell(form.deadline) else math.inf
    if deadline < submit:
        raise record.error("the deadline is before the submission", form.deadline)
    phases: tuple[WorkPhase, ...] = ()
    scaling: tuple[tuple[int, float], ...] = ()
    together: Mapping[str, Mapping[str, float]] = {}
    if form.steps and rates is not None:
        steps, kind = (
            record.number(form.steps, least=1e-9, most=1e15),
            rates.label(read_cell(form.kind), read_cell(form.batch)),
        )
        kind_rates: Mapping[str, float] = {
            device: rate for device, rate in rates.of(kind, devices).items() if device in cluster.kinds
        }
        if not kind_rates:
            return None
        phases, scaling = (WorkPhase(steps, kind_rates),), rates.scaling(kind, devices)
        together = rates.together(kind, devices)
    elif rates is not None and form.kind:
        phases = _build_rated_phases(
            record,
            form,
            cluster,
            rates.of(read_cell(form.kind) or read_cell(form.job), devices),
            seconds,
            read_cell(form.device),
        )
        together = rates.together(read_cell(form.kind) or read_cell(form.job), devices) if phases else {}
    return TrainingJob(
        name=read_cell(form.job) or f"job {number}",
        submit_s=submit,
        phases=phases or timed_phases(record, seconds, cluster, read_cell(form.device), form.device),
        devices=devices,
        user=intern(read_cell(form.user)),
        kind=rates.label(read_cell(form.kind), read_cell(form.batch)) if together and rates else read_cell(form.kind),
        queue=intern(read_cell(form.queue)),
        deadline_s=deadline,
        weight=record.number(form.weight, 1.0, 1e-6, 1e6) if form.weight else 1.0,
        scaling=scaling,
        together=together,
        after=tuple(filter(None, (name.strip() for name in read_cell(form.after).split(";")))),
        limit_s=record.number(form.limit, math.inf, 1e-6, math.inf) if form.limit else math.inf,
    )


def _build_rated_phases(
    record: Record, form: TableFormat, cluster: ClusterSpec, rates: Mapping[str, float], seconds: float, device: str
) -> tuple[WorkPhase, ...]:
    """Work whose run time on one kind is known, and whose rates on all kinds a table has: it may run on all of them. Nothing where
    the table has no rate of it here. The kind of its run time is that of its line, else the one of `speed` 1.

    Raises:
        BadHistory: the table has no rate on the kind that the run time is of.
    """
    kind_rates = {kind: rate for kind, rate in rates.items() if kind in cluster.kinds}
    if not kind_rates:
        return ()
    measured = device or next((kind for kind in cluster.kinds if cluster.speed(kind) == 1.0), "")
    if measured not in kind_rates:
        there = ", ".join(kind_rates)
        raise record.error(
            f"its run time is of '{measured}', and --rates has it on {there}", form.device or form.duration
        )
    return (WorkPhase(seconds * kind_rates[measured], kind_rates),)


def _never_start(
    jobs: Iterable[TrainingJob], waiting: Sequence[tuple[Record, TrainingJob]], column: str, odd: OddLines
) -> set[int]:
    """Jobs that come after others and can never start, by `id`: after a job that is not there, that is there twice, or that comes
    after them by way of others. Their lines are odd."""
    if not waiting:
        return set()
    names = Counter(job.name for job in jobs)
    after = {job.name: job.after for _, job in waiting}
    over = set(names) - set(after)
    awaited = [len(job.after) for _, job in waiting]
    behind: dict[str, list[int]] = {}
    for number, (_, job) in enumerate(waiting):
        for name in job.after:
            if names[name] == 1:
                behind.setdefault(name, []).append(number)
    ready = list(over)
    while ready:  # who comes after those alone that are over is over, too
        for number in behind.get(ready.pop(), ()):
            awaited[number] -= 1
            if not awaited[number]:
                over.add(waiting[number][1].name)
                ready.append(waiting[number][1].name)
    left = [entry for number, entry in enumerate(waiting) if awaited[number]]
    for record, job in left:
        odd.add(record.error(_why_never(job, names, after, over), column))
    return {id(job) for _, job in left}


def _why_never(job: TrainingJob, names: Mapping[str, int], after: Mapping[str, Sequence[str]], over: set[str]) -> str:
    for name in job.after:
        if names.get(name, 0) != 1:
            return f"there {'is no job' if not names.get(name) else 'are several jobs'} '{name}'"
    path = [job.name]
    while path.count(path[-1]) == 1:
        before = next((predecessor for predecessor in after.get(path[-1], ()) if predecessor not in over), None)
        if before is None or names.get(before, 0) != 1:
            return f"it comes after '{path[-1]}', which never starts"
        path.append(before)
    circle = path[path.index(path[-1]) :]
    if circle[0] == job.name:
        return f"it never starts: {' after '.join(circle)}"
    return f"it comes after '{circle[0]}', which never starts"
