"""The replay beside machines: Shockwave's 120 jobs on 32 V100, policy by policy.

Outcomes are files of JSON with `policy`, `jct_s` (of each job, in order), `makespan_s` and `round_s`. The makespan of a run is
taken as the last end of a job, from arrivals and completion times: in the published run of finish-time fairness the recorded
makespan is 3,600 s short, since its clock was set back meanwhile; the file's own value stands in `recorded_makespan_s`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.rates import read_rates
from bricolage.cluster.history.read import read_history
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policies.comparison_rules import AlloXShares
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.replay_figures import UNFAIR, fairness
from bricolage.cluster.scheduler import Scheduler
from bricolage.cluster.shares import SharePolicy
from bricolage.cluster.target_policies import TargetScheduler

NAMES = {
    "allox": "allox-shares",
    "fifo": "fifo",
    "fifo_perf": "fifo",
    "finish_time_fairness": "gavel-ftf-blind",
    "finish_time_fairness_perf": "gavel-ftf",
    "gandiva_fair": "gandiva-fair",
    "isolated": "proportional",
    "isolated_plus": "proportional",
    "max_min_fairness": "max-min",
    "max_min_fairness_perf": "gavel",
    "max_min_fairness_water_filling": "gavel-water",
    "max_min_fairness_water_filling_perf": "gavel-water",
    "max_sum_throughput_perf": "max-sum",
    "min_total_duration": "gavel-makespan",
    "min_total_duration_perf": "gavel-makespan",
    "shockwave": "shockwave",
    # As the paper's figures call them (`scheduler/reproduce/tacc_32gpus.sh`).
    "gavel": "max-min",
    "mst": "max-sum",
    "ossp": "gavel-makespan",
    "themis": "gavel-ftf-blind",
}
"""The names that `uw-mad-dash/shockwave` has for policies without sharing, and ours."""


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
    unfair: float
    """Share of jobs with rho above 1.05, by this project's formula."""
    run_unfair: float
    """The same of the run, by the same formula."""


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
        if _plain(outcome["policy"]) in NAMES:
            found.append(_row(outcome, trace, restart_s))
    return found


def _plain(policy: object) -> str:
    """A name without capitals and hyphens."""
    return str(policy).lower().replace("-", "_").replace(" ", "_")


def _row(outcome: dict[str, object], trace: Path, restart_s: float) -> Row:
    spec = cluster(restart_s)
    jobs = jobs_of(trace, spec)
    policy = str(outcome["policy"])
    ours = NAMES[_plain(policy)]
    made = EventLoop(jobs, spec, _scheduler(ours, jobs, spec), ExactLengths(), keep_stays=False).run()
    mine = [state.finish_s - state.job.submit_s for state in made.states]
    theirs = [float(value) for value in outcome["jct_s"]]  # type: ignore[attr-defined]
    ends = [state.finish_s for state in made.states]
    run_end = max(job.submit_s + jct for job, jct in zip(jobs, theirs, strict=True))
    errors = sorted(abs(a - b) / b for a, b in zip(mine, theirs, strict=True))
    unfair = float((fairness(made.states, spec) > UNFAIR).mean())
    for state, jct in zip(made.states, theirs, strict=True):
        state.finish_s = state.job.submit_s + jct
    run_unfair = float((fairness(made.states, spec) > UNFAIR).mean())
    mean, run_mean = sum(mine) / len(mine), sum(theirs) / len(theirs)
    return Row(
        policy, ours, max(ends), run_end, float(outcome["makespan_s"]), max(ends) / run_end - 1,  # type: ignore[arg-type]
        mean, run_mean, mean / run_mean - 1, errors[len(errors) // 2], unfair, run_unfair,
    )  # fmt: skip


def _scheduler(ours: str, jobs: Sequence[TrainingJob], spec: ClusterSpec) -> Scheduler:
    """The policy of the catalogue; of AlloX with the part of the waiting jobs that Shockwave's copy of Gavel looks at."""
    if ours == "allox-shares":
        return TargetScheduler(SharePolicy(AlloXShares(alpha=0.2), spec.round_s, spec.recompute_s))
    return find_policy(ours).make(jobs, spec)
