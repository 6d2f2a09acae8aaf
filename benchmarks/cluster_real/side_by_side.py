"""Makespan and completion times of real runs, and of the replay of the same submissions under the same policy."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cluster_real.served import Nodes, serving, submit, turns, wait
from benchmarks.cluster_real.workload import Planned, cluster, drawn
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import find_policy

_LONGEST_S = 550.0


@dataclass(frozen=True)
class Beside:
    """One policy. Errors are relative to the real run."""

    policy: str
    makespan_s: float
    mean_jct_s: float
    restarts: int
    simulated_makespan_s: float
    simulated_mean_jct_s: float
    simulated_restarts: int
    makespan_error: float
    mean_jct_error: float
    median_job_error: float
    """Median over jobs of the absolute error of its completion time."""


@dataclass(frozen=True)
class Compared:
    """All policies."""

    jobs: int
    devices: int
    start_s: float
    """Measured before: from a job's devices to its first step."""
    restart_s: float
    """Measured before: from being asked to save to the next step elsewhere."""
    rows: list[Beside]
    same_order: bool
    """Whether the policies stand in the same order by mean completion time in the replay as in truth."""


def run(folder: Path, nodes: Nodes, count: int, policies: Sequence[str], seed: int) -> Compared:
    """Runs the jobs once under each policy."""
    start_s, restart_s = calibrated(folder / "calibration", nodes)
    spec = cluster(start_s, restart_s)
    jobs = drawn(count, seed)
    found: list[Beside] = []
    for policy in policies:
        print(f"{policy}: {count} jobs", file=sys.stderr, flush=True)
        with serving(folder / policy, spec, policy, nodes) as driver:
            submit(driver, jobs)
            rows = wait(driver, _LONGEST_S)
        found.append(compared(policy, rows, jobs, spec))
        print(found[-1], file=sys.stderr, flush=True)
    real = [row.policy for row in sorted(found, key=lambda row: row.mean_jct_s)]
    simulated = [row.policy for row in sorted(found, key=lambda row: row.simulated_mean_jct_s)]
    return Compared(count, sum(spec.capacity.values()), start_s, restart_s, found, real == simulated)


def calibrated(folder: Path, nodes: Nodes) -> tuple[float, float]:
    """What a start and a restart take here: of jobs that run alone, and of one that gives way to shorter ones; from the log."""
    one, *others = drawn(4, 7)
    long = replace(
        one, at_s=0.0, spec=replace(one.spec, steps=700.0, devices=4, rates={"fast": one.spec.rates["fast"]})
    )
    short = [
        replace(other, at_s=5.0 + 6.0 * index, spec=replace(other.spec, steps=50.0, devices=4, rates=long.spec.rates))
        for index, other in enumerate(others)
    ]
    with serving(folder, cluster(), "srtf", nodes) as driver:
        submit(driver, [long, *short])
        wait(driver, _LONGEST_S)
    told = turns(folder / "state")
    begun: dict[int, float] = {}
    stopped: dict[int, float] = {}
    starts: list[float] = []
    restarts: list[float] = []
    for turn in told:
        for report in turn["reports"]:
            number = report.get("number", -1)
            if report["what"] == "JobStopped":
                stopped[number] = turn["at"] - stopped[number]
            if report["what"] == "JobRunning" and number in begun:
                took = turn["at"] - begun.pop(number)
                (restarts if number in stopped else starts).append(took)
        for number in turn["stops"]:
            stopped[number] = turn["at"]
        for gang in turn["starts"]:
            begun[gang["number"]] = turn["at"]
    return statistics.median(starts), statistics.median(restarts)


def compared(policy: str, rows: Sequence[dict[str, Any]], jobs: Sequence[Planned], spec: ClusterSpec) -> Beside:
    """The replay of what was submitted, when it was."""
    by_name = {row["name"]: row for row in rows}
    lost = [row["name"] for row in rows if row["finish_s"] is None]
    if lost:
        raise AssertionError(f"these have not finished: {lost}")
    entry = find_policy(policy)
    told = [one.spec.training_job(by_name[one.spec.name]["submit_s"], spec) for one in jobs]
    states = EventLoop(told, spec, entry.make(told, spec), entry.estimator(0.0, 0)).run().states
    first = min(job.submit_s for job in told)
    real = {row["name"]: row["finish_s"] - row["submit_s"] for row in rows}
    simulated = {state.job.name: state.finish_s - state.job.submit_s for state in states}
    makespan = max(row["finish_s"] for row in rows) - first
    replayed = max(state.finish_s for state in states) - first
    mean, expected = statistics.mean(real.values()), statistics.mean(simulated.values())
    assert all(math.isfinite(value) for value in real.values())
    return Beside(
        policy, makespan, mean, sum(row["restarts"] for row in rows), replayed, expected,
        sum(state.restarts for state in states), replayed / makespan - 1.0, expected / mean - 1.0,
        statistics.median(abs(simulated[name] / real[name] - 1.0) for name in real),
    )  # fmt: skip
