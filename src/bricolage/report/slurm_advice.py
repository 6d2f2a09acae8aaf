"""An advice for a Slurm cluster as a table for the terminal."""

from __future__ import annotations

import math

from rich.table import Table

from bricolage.cluster.slurm.advice import JobAdvice, SlurmAdvice
from bricolage.report import words
from bricolage.report.policies import span
from bricolage.report.tables import plain_table

SHOWN = 40
"""Jobs in the table; JSON has all."""


def heading(advice: SlurmAdvice) -> str:
    """How many jobs and devices."""
    devices = words.list_devices(advice.devices)
    running = sum(job.running for job in advice.jobs)
    waiting = len(advice.jobs) - running
    return f"{words.count(running, 'job')} running, {waiting} waiting on {devices}, under {advice.policy}"


def advice_table(advice: SlurmAdvice) -> Table:
    """A row for each job: running ones, then those that wait, in the order in which the policy starts them."""
    heads = [("Job", "right"), ("Name", "left"), ("GPUs", "right"), ("Starts in", "right"), ("", "left"),
             ("Ends in", "right"), ("", "left"), ("Limit", "right"), ("Advised", "right"), ("Waits for", "left")]  # fmt: skip
    return plain_table(heads, [_cells(job) for job in advice.jobs[:SHOWN]])


def _cells(job: JobAdvice) -> list[str]:
    limit = span(job.limit_s) if math.isfinite(job.limit_s) else "none"
    advised = span(job.advised_limit_s) if job.advised_limit_s != job.limit_s else ""
    start, around = "runs", ""
    if not job.running:
        start, around = ("now", "") if job.starts_now else (span(job.start_s), _range(job.start_interval_s))
    waits = job.waits_for.split(":")[0]
    end = span(job.end_s)
    return [
        job.job, job.name[:20], str(job.devices), start, around, end, _range(job.end_interval_s), limit, advised, waits
    ]  # fmt: skip


def why_sentence(job: JobAdvice) -> str:
    """What a job waits for, and what would let it start now."""
    if job.running:
        return f"{job.job} runs"
    if not job.waits_for:
        return f"{job.job} starts now"
    sooner = f". It would start now with {job.change}" if job.change else ""
    return f"{job.job} waits for {job.waits_for}{sooner}"


def _range(interval: tuple[float, float]) -> str:
    low, high = (span(max(seconds, 0.0)) for seconds in interval)
    return f"({low} to {high})" if low != high else ""


def advice_notes(advice: SlurmAdvice) -> list[str]:
    """What a reader has to know of the table."""
    notes = [f"{count} {reason}" for reason, count in advice.left_out.items()]
    notes = [f"left out: {'; '.join(notes)}"] if notes else []
    past = [f"{count} {reason}" for reason, count in advice.past_left_out.items()]
    notes += [f"of the past, no run time is learnt from: {'; '.join(past)}"] if past else []
    if len(advice.jobs) > SHOWN:
        notes.append(f"{len(advice.jobs) - SHOWN} more jobs are in the JSON (--json)")
    notes.append(
        f"predictions go by {words.count(advice.known_runs, 'past run')} that completed; ranges hold eight of ten draws of them"
    )
    return notes
