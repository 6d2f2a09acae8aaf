"""How long a replay takes: many jobs on many devices, under the policies that are an order."""

from __future__ import annotations

import math
import random
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cluster import gavel
from bricolage.cluster.adaptive import BatchProfile, Matrix, StepTimes
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.rates import read_rates
from bricolage.cluster.jobs import JobState, TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policies.elastic import Sia
from bricolage.cluster.policies.gavel import max_min
from bricolage.cluster.policies.partitioned import JOBS_OF_A_PART, dealt, partition_rule
from bricolage.cluster.policies.pollux import Pollux
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.shares import SharePolicy, ShareProblem, share_problem
from bricolage.cluster.target_policies import ClusterView

POLICIES = ("fifo", "srtf", "las-2d", "qssf")


@dataclass(frozen=True)
class SpeedRow:
    """One replay."""

    policy: str
    jobs: int
    devices: int
    seconds: float
    events: int
    peak_mib: float
    """Of this process so far."""


def workload(jobs: int, devices: int, load: float, seed: int = 1) -> list[TrainingJob]:
    """Gangs and run times as Gavel's generator draws them; 400 names of 50 users. Submissions such that devices are `load` busy."""
    random_ = random.Random(seed)
    drawn: list[tuple[int, float]] = []
    for _ in range(jobs):
        gang = random_.choices((1, 2, 4, 8), (0.7, 0.1, 0.15, 0.05))[0]
        drawn.append((gang, 60 * 10 ** (random_.uniform(1.5, 3) if random_.random() < 0.8 else random_.uniform(3, 4))))
    rate = devices * load / (sum(gang * seconds for gang, seconds in drawn) / jobs)
    now, found, one = 0.0, list[TrainingJob](), {"gpu": 1.0}
    for number, (gang, seconds) in enumerate(drawn):
        now += random_.expovariate(rate)
        user = number * 7919 % 50
        found.append(TrainingJob(f"u{user}-{number % 8}", now, (WorkPhase(seconds, one),), gang, user=f"u{user}"))
    return found


def rows(jobs: int, devices: int, load: float, policies: Sequence[str] = POLICIES) -> list[SpeedRow]:
    """One for each policy. Nodes have eight devices."""
    cluster = ClusterSpec((NodeGroup("gpu", devices // 8, 8),))
    some = workload(jobs, devices // 8 * 8, load)
    found = []
    for policy in policies:
        entry = find_policy(policy)
        started = time.perf_counter()
        done = EventLoop(some, cluster, entry.make(some, cluster), entry.estimator(0.0, 0), keep_stays=False).run()
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found.append(SpeedRow(policy, jobs, devices // 8 * 8, seconds, done.events, peak))
    return found


@dataclass(frozen=True)
class RoundRow:
    """One round of Gavel's max-min: shares of all jobs, and who runs."""

    jobs: int
    devices: int
    parts: int
    shares_s: float
    """The linear programmes."""
    round_s: float
    """All of it, the jobs' states in arrays and the filling of the round included."""
    whole_s: float
    """The programme of all jobs at once; not a number where it was not asked for."""
    objective: float
    """Value of the parts by that of the whole: the worst job's normalised rate; not a number likewise."""


def round_rows(rates: Path, sizes: Sequence[int] = (1024, 10_000, 65_536), whole: int = 10_000) -> Iterator[RoundRow]:
    """Jobs of Gavel's generator that are all there, on a third of a device for each; up to `whole` jobs the parts are compared."""
    for jobs in sizes:
        devices = jobs // 9 * 3
        spec = ClusterSpec(tuple(NodeGroup(kind, devices // 3, 1) for kind in ("v100", "p100", "k80")))
        some = gavel.drawn(read_rates(rates, spec.kinds), jobs, 0.0, 1)
        states = [JobState(number, job, job.steps, job.kinds) for number, job in enumerate(some)]
        view = ClusterView(0.0, states, spec.capacity, spec)
        parts = -(-jobs // JOBS_OF_A_PART)
        started = time.perf_counter()
        SharePolicy(partition_rule(max_min), spec.round_s).target(view)
        seconds = time.perf_counter() - started
        problem = share_problem(view, np.zeros(jobs))
        started = time.perf_counter()
        dealt_ = dealt(problem, max_min, parts)
        shares_s, whole_s, ratio = time.perf_counter() - started, math.nan, math.nan
        if jobs <= whole:
            started = time.perf_counter()
            best = max_min(problem)
            whole_s = time.perf_counter() - started
            ratio = _worst(problem, dealt_) / _worst(problem, best)
        yield RoundRow(jobs, devices, parts, shares_s, seconds, whole_s, ratio)


@dataclass(frozen=True)
class AdaptiveRow:
    """A round of a policy that chooses numbers of devices and batch sizes, of jobs with profiles that are all there and wait."""

    policy: str
    jobs: int
    devices: int
    round_s: float
    """Least of three rounds; each has the noise of another moment, so that nothing of the round before is known."""


def adaptive_rows(
    jobs: int = 64, devices: int = 64, policies: Sequence[str] = ("pollux", "sia")
) -> Iterator[AdaptiveRow]:
    """Jobs drawn at random, half of the devices half as fast."""
    draw = random.Random(0)
    spec = ClusterSpec((NodeGroup("fast", devices // 8, 4), NodeGroup("slow", devices // 8, 4, speed=0.5)))
    states = []
    for number in range(jobs):
        grad, sample = draw.uniform(0.01, 0.1), draw.uniform(0.0005, 0.002)
        times = {
            kind: StepTimes(grad * slow, sample * slow, 0.01, 0.002, 0.05, 0.004, 2.0)
            for kind, slow in (("fast", 1.0), ("slow", 2.0))
        }
        noise = tuple((share / 10, draw.uniform(0.5, 16.0)) for share in range(10))
        batches = BatchProfile(64, 4096, 64, noise, times, most_devices=16)
        gang = draw.choice((1, 1, 2, 4))
        phases = (WorkPhase(draw.uniform(1e3, 1e4), {"fast": 1.0, "slow": 0.5}),)
        job = TrainingJob(str(number), 0.0, phases, gang, batches=batches, scaling=batches.scaling(gang, 4, "fast"))
        states.append(JobState(number, job, job.steps, job.kinds))
    for name in policies:
        policy, least = Pollux() if name == "pollux" else Sia(), math.inf
        for part in range(3):
            for state in states:
                state.done = part / 4 * state.job.steps
            started = time.perf_counter()
            policy.target(ClusterView(1000.0, states, spec.capacity, spec))
            least = min(least, time.perf_counter() - started)
        yield AdaptiveRow(name, jobs, sum(spec.capacity.values()), least)


def _worst(problem: ShareProblem, shares: Matrix) -> float:
    """What max-min maximises: the least rate by that on equal shares."""
    equal = (problem.rates * (problem.capacity / problem.capacity.sum())).sum(axis=1)
    return float(((problem.rates * shares).sum(axis=1) * problem.gangs / problem.weights / equal).min())
