"""The same jobs on a real Slurm and in the replay: 24 small training jobs on 8 node daemons of this machine.

A job fits a linear model by gradient steps, one each `PACE_S` seconds, so that eight of them run side by side on few cores. They
are submitted held and released by `SlurmWatch` in the policy's order, as `bricolage cluster slurm watch --hold` does. What a start
costs on this machine (the look, the release, Slurm's and Python's start) is measured with eight jobs before, and charged
in the replay for each.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cluster_real.side_by_side import Beside, Compared
from benchmarks.cluster_real.slurm_daemons import LONGEST_S, LocalSlurm, local_slurm
from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.replay_figures import outcome
from bricolage.cluster.slurm.advice import AdviceOptions
from bricolage.cluster.slurm.commands import CommandAnswer, SlurmClient
from bricolage.cluster.slurm.job_changes import Levers
from bricolage.cluster.slurm.queue import GATE
from bricolage.cluster.slurm.watch import SlurmWatch

POLICIES = ("fifo", "easy", "sjf")
PACE_S = 0.05
_LOOK_S = 0.2
_KIND = "v100"
_STEPS = """
import sys, time
began = time.time()
import numpy as np
steps, pace, path = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
x = rng.standard_normal((64, 16)); y = x @ rng.standard_normal(16); w = np.zeros(16)
first = time.monotonic()
for step in range(1, steps + 1):
    w -= 0.05 * x.T @ (x @ w - y) / len(x)
    time.sleep(max(first + step * pace - time.monotonic(), 0.0))
with open(path, "w") as file:
    file.write(f"{began} {time.time()} {float(np.abs(x @ w - y).mean())}")
"""


def workload(jobs: int, seed: int = 0) -> list[TrainingJob]:
    """Jobs of 1, 2 and 4 nodes and 4 to 28 s, that come within a minute; seconds of the replay are seconds of the jobs."""
    rng = random.Random(seed)
    at, found = 0.0, []
    for number in range(jobs):
        devices = rng.choice((1, 1, 1, 2, 2, 4))
        seconds = round(4.0 * 7.0 ** rng.random() / PACE_S) * PACE_S
        found.append(
            TrainingJob(
                f"j{number}", at, (WorkPhase(seconds, {_KIND: 1.0}),), devices, user="any", kind=f"kind{number}"
            )
        )
        at += rng.expovariate(1.0 / 2.0)
    return found


def run(jobs: int = 24, nodes: int = 8, policies: Sequence[str] = POLICIES, seed: int = 0) -> Compared:
    """Runs the jobs once under each policy.

    Raises:
        NoSlurm: it cannot be started here.
    """
    work = workload(jobs, seed)
    found: list[Beside] = []
    costs: list[float] = []
    for policy in policies:
        print(f"{policy}: {jobs} jobs", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="slurm") as folder, local_slurm(Path(folder), nodes, kind=_KIND) as slurm:
            costs.append(_start_cost(slurm, policy))
            done = _really(slurm, work, policy)
        found.append(_compared(policy, work, done, nodes, costs[-1]))
        print(found[-1], file=sys.stderr, flush=True)
    real = [row.policy for row in sorted(found, key=lambda row: row.mean_jct_s)]
    simulated = [row.policy for row in sorted(found, key=lambda row: row.simulated_mean_jct_s)]
    return Compared(jobs, nodes, statistics.mean(costs), 0.0, found, real == simulated)


def _compared(
    policy: str, work: Sequence[TrainingJob], done: Sequence[tuple[float, float]], nodes: int, cost: float
) -> Beside:
    slowed = [_slowed(job, cost) for job in work]
    cluster = ClusterSpec((NodeGroup(_KIND, nodes, 1),))
    scheduler = find_policy(policy).make(slowed, cluster)
    scheduler.preempts = False
    replayed = EventLoop(slowed, cluster, scheduler, ExactLengths()).run()
    told = outcome(policy, replayed, cluster)
    makespan = max(end for _, end in done) - min(begin for begin, _ in done)
    jct = [end - begin for begin, end in done]
    errors = [
        abs((state.finish_s - state.job.submit_s) / real - 1.0)
        for state, real in zip(replayed.states, jct, strict=True)
    ]
    mean = statistics.mean(jct)
    return Beside(
        policy, makespan, mean, 0, told.makespan_s, told.mean_jct_s, 0, told.makespan_s / makespan - 1.0,
        told.mean_jct_s / mean - 1.0, statistics.median(errors),
    )  # fmt: skip


def _slowed(job: TrainingJob, cost: float) -> TrainingJob:
    """With what its start costs, and the time limit that Slurm gives it: backfilling trusts it."""
    return replace(job, phases=(WorkPhase(job.phases[0].steps + cost, {_KIND: 1.0}),), limit_s=LONGEST_S)


def _start_cost(slurm: LocalSlurm, policy: str) -> float:
    """What completions of jobs that never wait for nodes take more than their steps, in the mean. They come one by one, as ends of
    jobs do: starts at once would wait for each other's."""
    jobs = [
        TrainingJob(f"c{n}", 1.5 * n, (WorkPhase(3.0, {_KIND: 1.0}),), 1, user="any", kind=f"cost{n}") for n in range(8)
    ]
    done = _really(slurm, jobs, policy)
    return sum(end - begin - 3.0 for begin, end in done) / len(done)


def _really(slurm: LocalSlurm, work: Sequence[TrainingJob], policy: str) -> list[tuple[float, float]]:
    """Submission and end of each job."""
    script = slurm.folder / "steps.py"
    script.write_text(_STEPS)
    client = SlurmClient(run=lambda words: CommandAnswer(0, slurm.call(*words)))
    user = slurm.call("id", "-un").strip()
    history = tuple(replace(job, name=f"past {job.name}", user=user) for job in work)
    watch = SlurmWatch(
        client,
        policy,
        AdviceOptions(limits=False, draws=0),
        Levers(limits=False, hold=True),
        JobHistory(history, {}, "table"),
    )
    began, submitted, ends = time.time(), list[float](), dict[int, float]()

    def more() -> bool:
        while len(submitted) < len(work) and time.time() - began >= work[len(submitted)].submit_s:
            number = len(submitted)
            job = work[number]
            out = slurm.folder / f"done-{began}-{number}"
            steps = round(job.phases[0].steps / PACE_S)
            slurm.submit(
                f"#!/bin/sh\nexec {sys.executable} {script} {steps} {PACE_S} {out}\n",
                f"--nodes={job.devices}", "--ntasks-per-node=1", "--gres=gpu:1", f"--job-name={job.kind}",
                "--hold", f"--comment={GATE}",
                "--export=ALL,OMP_NUM_THREADS=1,OPENBLAS_NUM_THREADS=1",
            )  # fmt: skip
            submitted.append(time.time())
        for number in range(len(submitted)):
            out = slurm.folder / f"done-{began}-{number}"
            if number not in ends and out.exists() and len(words := out.read_text().split()) == 3:
                ends[number] = float(words[1])
        time.sleep(_LOOK_S)
        return len(ends) < len(work)

    more()
    watch.watch(more, lambda *_: None)
    return [(submitted[number], ends[number]) for number in range(len(work))]
