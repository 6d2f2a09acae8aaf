"""Gavel's traces, and Shockwave's, which also say how batch sizes change: lines of fields between tabs, without a heading.

| fields | what |
|---|---|
| 10 | type, command, folder, steps argument, needs data, steps, scale factor, weight, deadline factor, arrival: Gavel's runs |
| 9 | the same without the folder |
| 7 | type, command, steps argument, needs data, steps, arrival, scale factor: its virtual clusters of Philly |
| 12 | as 10 with the mode before the weight and the duration before the arrival: Shockwave |

Types need a table of rates (`--rates`); jobs that it has no rate for are left out, and counted. A deadline factor above 0 is a
deadline at arrival plus a multiple of the run time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

from bricolage.cluster.history.batch_growth import grown_phases
from bricolage.cluster.history.rates import RateTable
from bricolage.cluster.history.records import NO_RATE, JobHistory, OddLines, Record, check_job, history, read_job, room
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import RatesNeeded

_COLUMNS: Mapping[int, tuple[str, ...]] = {
    7: ("type", "command", "argument", "data", "steps", "arrival", "scale"),
    9: ("type", "command", "argument", "data", "steps", "scale", "weight", "slo", "arrival"),
    10: ("type", "command", "folder", "argument", "data", "steps", "scale", "weight", "slo", "arrival"),
    12: (
        "type",
        "command",
        "folder",
        "argument",
        "data",
        "steps",
        "scale",
        "mode",
        "weight",
        "slo",
        "duration",
        "arrival",
    ),
}


def is_gavel(line: str) -> bool:
    """Whether a first line looks like one of these."""
    return line.count("\t") + 1 in _COLUMNS


def read_gavel(path: Path, file: TextIO, cluster: ClusterSpec, rates: RateTable | None, odd: OddLines) -> JobHistory:
    """Jobs of such a trace.

    Raises:
        RatesNeeded: no rates are given.
        BadHistory: no line can be used.
    """
    if rates is None:
        raise RatesNeeded(path=path)
    jobs: list[TrainingJob] = []
    left_out: Counter[str] = Counter()
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        parts = line.rstrip("\r\n").split("\t")
        record = Record(path, number, dict(zip(_COLUMNS.get(len(parts), ()), parts, strict=False)))
        if not record.values:
            odd.add(record.error(f"it has {len(parts)} fields; Gavel's traces have 7, 9 or 10, Shockwave's 12"))
            continue
        job = read_job(odd, partial(_job, record, cluster, rates, number, left_out))
        if job is not None:
            room(record, len(jobs))
            jobs.append(job)
    return history(path, jobs, left_out, "gavel", odd)


def _job(
    record: Record, cluster: ClusterSpec, rates: RateTable, number: int, left_out: Counter[str]
) -> TrainingJob | None:
    devices, kind = record.whole("scale"), record.text("type")
    steps = record.number("steps", least=1e-9, most=1e15)
    kind_rates = {device: rate for device, rate in rates.of(kind, devices).items() if device in cluster.kinds}
    if not kind_rates:
        left_out[NO_RATE] += 1
        return None
    mode = record.text("mode", "static")
    if mode not in ("static", "accordion", "gns"):
        raise record.error(f"'{mode}' is none of static, accordion, gns", "mode")
    phases: tuple[WorkPhase, ...] = (WorkPhase(steps, kind_rates),)
    if mode != "static":
        phases = grown_phases(mode, kind, devices, steps, rates, cluster.kinds) or phases
    arrival, slo = record.number("arrival"), record.number("slo", -1.0, -1.0)
    job = TrainingJob(
        f"job {number}",
        arrival,
        phases,
        devices,
        kind=kind,
        weight=record.number("weight", 1.0, 1e-6, 1e6),
        together=rates.together(kind, devices),
    )
    if slo > 0:
        due = arrival + slo * job.run_s(job.kinds[0])
        job = replace(job, deadline_s=min(due, math.inf))
    return check_job(record, job, cluster, "scale")
