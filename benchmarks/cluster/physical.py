"""The replay beside machines: Shockwave's 120 jobs on 32 V100, policy by policy.

Outcomes are files of JSON with `policy`, `jct_s` (of each job, in order), `makespan_s` and `round_s`. The makespan of a run is
taken as the last end of a job, from arrivals and completion times: in the published run of finish-time fairness the recorded
makespan is 3,600 s short, since its clock was set back meanwhile; the file's own value stands in `recorded_makespan_s`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cluster.allox_port import AlloXPort
from bricolage.cluster.catalogue import named
from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.history.rates import read_rates
from bricolage.cluster.history.read import read_history
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.loop import ReplayLoop
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.scheduler import Scheduler
from bricolage.cluster.shares import SharePolicy
from bricolage.cluster.target import TargetScheduler

NAMES = {
    "finish_time_fairness": "gavel-ftf-blind",
    "max_min_fairness": "max-min",
    "min_total_duration": "gavel-makespan",
    "max_sum_throughput_perf": "gavel-throughput",
    "allox": "allox-port",
    "shockwave": "shockwave",
    "gandiva_fair": "proportional",
}
"""The published names of policies, and ours."""


@dataclass(frozen=True)
class Row:
    """One policy: the replay beside the run. Errors are (replay - run) / run."""

    policy: str
    ours: str
    makespan_s: float
    run_makespan_s: float
    recorded_makespan_s: float
    makespan_error: float
    mean_jct_s: float
    run_mean_jct_s: float
    mean_jct_error: float
    median_job_error: float
    """Of the absolute relative errors of single jobs' completion times."""


def cluster(restart_s: float = 20.0, round_s: float = 120.0) -> ClusterSpec:
    """Eight nodes of four V100, as the run had them."""
    return ClusterSpec((NodeGroup("v100", 8, 4),), restart_s=restart_s, round_s=round_s, recompute_s=1000.0)


def jobs_of(folder: Path, spec: ClusterSpec) -> tuple[TrainingJob, ...]:
    """The trace, with rates measured on the machines."""
    rates = read_rates(folder / "tacc_throughputs.json", spec.kinds)
    return read_history(folder / "120_jobs.trace", spec, rates).jobs


def rows(trace: Path, data: Path, restart_s: float) -> list[Row]:
    """One for each outcome in a folder."""
    found = []
    for file in sorted(data.glob("*.json")):
        outcome = json.loads(file.read_text(encoding="utf-8"))
        if outcome["policy"] in NAMES:
            found.append(_row(outcome, trace, restart_s))
    return found


def _row(outcome: dict[str, object], trace: Path, restart_s: float) -> Row:
    spec = cluster(restart_s)
    jobs = jobs_of(trace, spec)
    policy = str(outcome["policy"])
    ours = NAMES[policy]
    if ours == "allox-port":
        scheduler: Scheduler = TargetScheduler(SharePolicy(AlloXPort(alpha=0.2), spec.round_s, spec.recompute_s))
    else:
        scheduler = named(ours).make(jobs, spec)
    made = ReplayLoop(jobs, spec, scheduler, ExactLengths(), keep_stays=False).run()
    mine = [state.finish_s - state.job.submit_s for state in made.states]
    theirs = [float(value) for value in outcome["jct_s"]]  # type: ignore[attr-defined]
    ends = [state.finish_s for state in made.states]
    run_end = max(job.submit_s + jct for job, jct in zip(jobs, theirs, strict=True))
    errors = sorted(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
    mean, run_mean = sum(mine) / len(mine), sum(theirs) / len(theirs)
    return Row(
        policy, ours, max(ends), run_end, float(outcome["makespan_s"]), max(ends) / run_end - 1,  # type: ignore[arg-type]
        mean, run_mean, mean / run_mean - 1, errors[len(errors) // 2],
    )  # fmt: skip
