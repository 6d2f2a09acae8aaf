"""Makespan and completion times of real runs, and of the replay of the same submissions under the same policy."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cluster_real.network_jobs import (
    Rates,
    drawn_networks,
    losses_of,
    network_cluster,
    pace_jobs,
    rates_of,
    training_spec,
    write_digits,
)
from benchmarks.cluster_real.served import Nodes, serving, submit, turns, wait
from benchmarks.cluster_real.workload import Planned
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
    digits = write_digits(folder)
    rates, start_s = measured_pace(folder / "pace", nodes, digits)
    restart_s = measured_restart(folder / "restart", nodes, digits, rates)
    print(f"steps a second: {rates}; start {start_s:.2f} s, restart {restart_s:.2f} s", file=sys.stderr, flush=True)
    spec = network_cluster(start_s, restart_s)
    jobs = drawn_networks(count, seed, rates, digits)
    found: list[Beside] = []
    for policy in policies:
        print(f"{policy}: {count} jobs", file=sys.stderr, flush=True)
        with serving(folder / policy, spec, policy, nodes) as driver:
            submit(driver, jobs)
            rows = wait(driver, _LONGEST_S)
            _check_learning(jobs, [driver.state / "jobs" / job.spec.name / "checkpoint" for job in jobs])
        found.append(compared(policy, rows, jobs, spec))
        print(found[-1], file=sys.stderr, flush=True)
    return Compared(count, sum(spec.capacity.values()), start_s, restart_s, found, same_order(found))


def same_order(rows: Sequence[Beside]) -> bool:
    """Whether policies stand in the same order by mean completion time in the replay as in truth."""
    real = [row.policy for row in sorted(rows, key=lambda row: row.mean_jct_s)]
    return real == [row.policy for row in sorted(rows, key=lambda row: row.simulated_mean_jct_s)]


def _check_learning(jobs: Sequence[Planned], checkpoints: Sequence[Path]) -> None:
    """Raises where a network has learned nothing in its last attempt of a hundred steps or more."""
    for job, checkpoint in zip(jobs, checkpoints, strict=True):
        first, last = losses_of(checkpoint)
        if job.spec.steps >= 100 and first > 1.0 and last > first:
            raise AssertionError(f"{job.spec.name}: the loss rose from {first:.3f} to {last:.3f}")


def measured_pace(folder: Path, nodes: Nodes, digits: Path) -> tuple[dict[tuple[str, int], float], float]:
    """Steps a second of each network on one and two devices, and what a job takes beyond its steps: its start and its end."""
    jobs = pace_jobs(digits)
    with serving(folder, network_cluster(), "fifo", nodes) as driver:
        submit(driver, jobs)
        rows = {row["name"]: row for row in wait(driver, _LONGEST_S)}
    if lost := [name for name, row in rows.items() if row["finish_s"] is None]:
        raise AssertionError(f"these have not finished: {lost}")
    checkpoints = [folder / "state" / "jobs" / job.spec.name / "checkpoint" for job in jobs]
    rates = rates_of(jobs, checkpoints)
    beyond = [
        rows[job.spec.name]["finish_s"]
        - rows[job.spec.name]["start_s"]
        - json.loads((checkpoint / "timing").read_text())["seconds"]
        for job, checkpoint in zip(jobs, checkpoints, strict=True)
    ]
    return rates, statistics.median(beyond)


def measured_restart(folder: Path, nodes: Nodes, digits: Path, rates: Rates) -> float:
    """What it takes to go on elsewhere or later, from the turns of a job that gives way twice to shorter ones."""
    network = "perceptron"
    rate = rates[network, 2]
    jobs = [
        Planned(at, number, training_spec(f"r-{number}", network, number, round(seconds * rate), 2, rate, digits))
        for number, (at, seconds) in enumerate(((0.0, 14.0), (5.0, 2.0), (14.0, 2.0)))
    ]
    with serving(folder, network_cluster(), "srtf", nodes) as driver:
        submit(driver, jobs)
        wait(driver, _LONGEST_S)
    begun, stopped, restarts = dict[int, float](), set[int](), list[float]()
    for turn in turns(folder / "state"):
        for report in turn["reports"]:
            number = report.get("number", -1)
            if report["what"] == "JobRunning" and number in begun:
                took = turn["at"] - begun.pop(number)
                restarts += [took] if number in stopped else []
        stopped.update(turn["stops"])
        begun.update((gang["number"], turn["at"]) for gang in turn["starts"])
    return statistics.median(restarts)


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
