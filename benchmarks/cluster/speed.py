"""How long a replay takes: many jobs on many devices, under the policies that are an order."""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.cluster.catalogue import named
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.loop import ReplayLoop
from bricolage.cluster.machines import ClusterSpec, NodeGroup

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
        entry = named(policy)
        started = time.perf_counter()
        done = ReplayLoop(some, cluster, entry.make(some, cluster), entry.estimator(0.0, 0), keep_stays=False).run()
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found.append(SpeedRow(policy, jobs, devices // 8 * 8, seconds, done.events, peak))
    return found
