"""When jobs will start and end, and what they would do on other devices, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from bricolage.errors import plain
from bricolage.report import words
from bricolage.report.policies import span
from bricolage.report.tables import plain_table

if TYPE_CHECKING:
    from bricolage.api.job_estimates import JobOnDevices
    from bricolage.cluster.prospects import Prospect
    from bricolage.cluster.run_times import RunTime


def outlook_heading(prospects: Sequence[Prospect], at_s: float) -> str:
    """How many jobs there are, and how many wait."""
    waiting = sum(not prospect.kind for prospect in prospects)
    return f"{words.count(len(prospects), 'job')} at {span(at_s)}, {waiting} of them waiting; times from now"


def outlook_table(prospects: Sequence[Prospect], at_s: float) -> Table:
    """A row for each job: running ones, then those that wait, in the order in which they start."""
    heads = [("Job", "fold"), ("Devices", "right"), ("Place", "right"), ("Start", "right"), ("between", "left")]
    heads += [("End", "right"), ("between", "left")]
    rows = []
    for prospect in sorted(prospects, key=lambda prospect: prospect.expected.place):
        expected = prospect.expected
        start = ["runs", ""] if prospect.kind else _from_now(expected.start_s, expected.start_interval_s, at_s)
        place = str(expected.place) if expected.place else words.MISSING
        end = _from_now(expected.end_s, expected.end_interval_s, at_s)
        rows.append([prospect.job, str(prospect.devices), place, *start, *end])
    return plain_table(heads, rows)


def outlook_sentences(prospects: Sequence[Prospect]) -> list[str]:
    """What each job that has no devices waits for, and what would let it start now."""
    return [
        plain(
            f"{prospect.job} waits for {prospect.reason}. It would start now with {prospect.change}"
            if prospect.reason
            else f"{prospect.job} starts now"
        )
        for prospect in prospects
        if not prospect.kind
    ]


def _from_now(middle_s: float, interval_s: tuple[float, float], at_s: float) -> list[str]:
    low, high = (span(max(bound - at_s, 0.0)) for bound in interval_s)
    return [span(max(middle_s - at_s, 0.0)), f"{low} – {high}"]


def estimate_table(estimates: Sequence[JobOnDevices]) -> Table:
    """A row for each kind and number of devices."""
    heads = [("Kind", "left"), ("Devices", "right"), ("Steps/s", "right"), ("between", "left"), ("Samples/s", "right")]
    heads += [("Memory", "right"), ("Cost", "right"), ("From", "left")]
    rows = []
    for estimate in estimates:
        if estimate.step is None:
            rows.append([estimate.kind, str(estimate.devices), *[words.MISSING] * 6])
            continue
        low, high = 1e3 / estimate.step.high_ms, 1e3 / estimate.step.low_ms
        size = words.size(estimate.peak_bytes) if estimate.peak_bytes else words.MISSING
        memory = size if estimate.fits else f"{size}!"
        rates = f"{estimate.steps_per_s:.3g}", f"{low:.3g}–{high:.3g}", f"{estimate.samples_per_s:,.0f}"
        cost = f"{estimate.cost_per_1000_steps:.3g}"
        rows.append([estimate.kind, str(estimate.devices), *rates, memory, cost, estimate.step.source])
    return plain_table(heads, rows)


def estimate_notes(estimates: Sequence[JobOnDevices]) -> list[str]:
    """What a reader has to know of the table."""
    notes = ["Cost: of a thousand steps, device-hours times price."]
    notes += dict.fromkeys(f"{estimate.kind}: {estimate.reason}" for estimate in estimates if estimate.reason)
    if any(estimate.step is not None and not estimate.fits for estimate in estimates):
        notes.append("!: more than a device's memory; `train predict --memory` says what to recompute.")
    return notes


def run_time_sentences(time: RunTime) -> list[str]:
    """How long a job will take, and what that goes by."""
    low, high = (span(seconds) for seconds in time.interval_s)
    alike = "all users, since its user has none" if time.likeness == "nothing" else f"the same {time.likeness}"
    return [
        f"{span(time.seconds)}, the mean of {words.count(time.all_runs, 'job')} of {alike}",
        f"Eight of ten of them took between {low} and {high}",
    ]


def run_time_notes(time: RunTime) -> list[str]:
    """What a reader has to know of them."""
    if not time.cut_runs:
        return []
    runs = words.count(time.cut_runs, "run")
    return [f"{runs} of this user and name did not complete, and took as long at least"]
