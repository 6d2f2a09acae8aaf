"""The same trainings of real networks on a real Slurm and in the replay: two node daemons of this machine with a device each.

Jobs are those of `network_jobs.py`. They are submitted held and released by `SlurmWatch` in the policy's order, as `bricolage
cluster slurm watch --hold` does. Before, jobs of each network measure its pace and what a job takes beyond its steps on this
machine (the look, the release, Slurm's, Python's and torch's start), which the replay charges for each.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cluster_real.network_jobs import CORE, drawn_networks, pace_jobs, rates_of, write_digits
from benchmarks.cluster_real.side_by_side import Beside, Compared, same_order
from benchmarks.cluster_real.slurm_daemons import LONGEST_S, LocalSlurm, local_slurm
from benchmarks.cluster_real.workload import Planned
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
_LOOK_S = 0.2
_LONGEST_S = 300.0
"""For all jobs under one policy."""
_SCRIPT = """#!/bin/sh
export BRICOLAGE_CHECKPOINT={folder} BRICOLAGE_PROGRESS={folder}/progress BRICOLAGE_STEPS={steps} BRICOLAGE_GANG={devices}
export {variables}
exec {command}
"""


def run(jobs: int = 8, nodes: int = 2, policies: Sequence[str] = POLICIES, seed: int = 0) -> Compared:
    """Runs the jobs once under each policy.

    Raises:
        NoSlurm: it cannot be started here.
        RuntimeError: a job died, or did not end in time.
    """
    found: list[Beside] = []
    with TemporaryDirectory(prefix="slurm") as folder:
        digits = write_digits(Path(folder))
        rates, cost = _pace(Path(folder) / "p", nodes, digits)
        print(f"steps a second: {rates}; beyond them {cost:.2f} s", file=sys.stderr, flush=True)
        planned = drawn_networks(jobs, seed, rates, digits)
        for number, policy in enumerate(policies):
            print(f"{policy}: {jobs} jobs", file=sys.stderr, flush=True)
            with local_slurm(Path(folder) / str(number), nodes, kind=CORE) as slurm:
                done = _really(slurm, planned, policy)
            found.append(_compared(policy, [_charged(job, cost) for job in planned], done, nodes))
            print(found[-1], file=sys.stderr, flush=True)
    return Compared(jobs, nodes, cost, 0.0, found, same_order(found))


def _pace(folder: Path, nodes: int, digits: Path) -> tuple[dict[tuple[str, int], float], float]:
    """Steps a second of each network, and what a job takes beyond its steps, in the median: of jobs that come one by one, as ends
    of jobs do, since starts at once would wait for each other's."""
    jobs = pace_jobs(digits)
    with local_slurm(folder, nodes, kind=CORE) as slurm:
        _really(slurm, jobs, "fifo")
    checkpoints = [folder / job.spec.name for job in jobs]
    rates = rates_of(jobs, checkpoints)
    alone = [
        replace(
            job, at_s=6.0 * number, spec=replace(job.spec, name=f"alone-{number}", steps=max(1.0, round(2.0 * rate)))
        )
        for number, (job, rate) in enumerate(
            (job, rates[job.spec.command[2], 2]) for job in jobs if job.spec.devices == 2
        )
    ]
    with local_slurm(folder / "a", nodes, kind=CORE) as slurm:
        done = _really(slurm, alone, "fifo")
    trained = [json.loads((folder / "a" / job.spec.name / "timing").read_text())["seconds"] for job in alone]
    return rates, statistics.median(end - begin - seconds for (begin, end), seconds in zip(done, trained, strict=True))


def _compared(policy: str, slowed: Sequence[TrainingJob], done: Sequence[tuple[float, float]], nodes: int) -> Beside:
    cluster = ClusterSpec((NodeGroup(CORE, nodes, 1),))
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


def _charged(job: Planned, cost: float) -> TrainingJob:
    """With what it takes beyond its steps, and the time limit that Slurm gives it: backfilling trusts it."""
    seconds = job.spec.steps / job.spec.rates[CORE] + cost
    phases = (WorkPhase(seconds, {CORE: 1.0}),)
    return TrainingJob(
        job.spec.name, job.at_s, phases, job.spec.devices, user="any", kind=job.spec.name, limit_s=LONGEST_S
    )


def submit_training(slurm: LocalSlurm, job: Planned) -> int:
    """A job that is held; its number. It runs in the folder of the Slurm, and saves below its name there."""
    folder = slurm.folder / job.spec.name
    folder.mkdir()
    variables = " ".join(f"{name}={value}" for name, value in job.spec.environment.items())
    script = _SCRIPT.format(
        folder=folder, steps=int(job.spec.steps), devices=job.spec.devices, variables=variables,
        command=shlex.join(job.spec.command),
    )  # fmt: skip
    return slurm.submit(
        script, f"--nodes={job.spec.devices}", "--ntasks-per-node=1", "--gres=gpu:1", f"--job-name={job.spec.name}",
        "--hold", f"--comment={GATE}", "--no-requeue", "--export=ALL",
    )  # fmt: skip


def _really(slurm: LocalSlurm, work: Sequence[Planned], policy: str) -> list[tuple[float, float]]:
    """Submission and end of each job.

    Raises:
        RuntimeError: a job died, or they were not over in time.
    """
    client = SlurmClient(run=lambda words: CommandAnswer(0, slurm.call(*words)))
    user = slurm.call("id", "-un").strip()
    history = tuple(replace(_charged(job, 0.0), name=f"past {job.spec.name}", user=user) for job in work)
    watch = SlurmWatch(
        client,
        policy,
        AdviceOptions(limits=False, draws=0),
        Levers(limits=False, hold=True),
        JobHistory(history, {}, "table"),
    )
    began, numbers, submitted, ends = time.time(), list[int](), list[float](), dict[int, float]()

    def more() -> bool:
        while len(submitted) < len(work) and time.time() - began >= work[len(submitted)].at_s:
            numbers.append(submit_training(slurm, work[len(submitted)]))
            submitted.append(time.time())
        for place in range(len(submitted)):
            losses = slurm.folder / work[place].spec.name / "losses"
            if place not in ends and losses.exists():
                ends[place] = losses.stat().st_mtime
        check_alive(slurm, {number: work[place].spec.name for place, number in enumerate(numbers) if place not in ends})
        if time.time() > began + _LONGEST_S:
            raise RuntimeError(f"{len(work) - len(ends)} of {len(work)} jobs are not over after {_LONGEST_S:.0f} s")
        time.sleep(_LOOK_S)
        return len(ends) < len(work)

    more()
    watch.watch(more, lambda *_: None)
    return [(submitted[place], ends[place]) for place in range(len(work))]


def check_alive(slurm: LocalSlurm, names: Mapping[int, str]) -> None:
    """Of jobs that have not left their last file.

    Raises:
        RuntimeError: Slurm says that one failed; with the end of what it printed, and the steps that its checkpoint holds.
    """
    if not names:
        return
    asked = ",".join(str(number) for number in names)
    states = slurm.call("squeue", "--noheader", "--states=all", f"--jobs={asked}", "--format=%i %T").splitlines()
    for number, state in (line.split() for line in states):
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"):
            printed = slurm.folder / f"job-{number}.out"
            last = printed.read_text(errors="replace").strip().splitlines()[-1:] if printed.exists() else []
            steps = slurm.folder / names[int(number)] / "steps"
            saved = steps.read_text().strip() if steps.exists() else "0"
            raise RuntimeError(
                f"job {names[int(number)]} ended as {state.lower()} ({''.join(last) or 'it printed nothing'}); "
                f"its checkpoint holds {saved} steps"
            )
