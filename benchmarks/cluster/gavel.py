"""Gavel's tables: mean completion time under continuous arrivals, and makespan of jobs that all are there at the start.

Jobs are drawn as its generator draws them (`scheduler/utils.py` and `scheduler/job_table.py` @c4fa400), with Python's generators
seeded alike. The published mean is over jobs 4,000 to 5,000; `jobs` and `measured` shrink that, and then only ratios can be
compared.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.history.rates import RateTable, read_rates
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import find_policy

KINDS = (
    *((f"ResNet-18 (batch size {size})", True) for size in (16, 32, 64, 128, 256)),
    *((f"ResNet-50 (batch size {size})", True) for size in (16, 32, 64, 128)),
    *((f"Transformer (batch size {size})", True) for size in (16, 32, 64, 128, 256)),
    *((f"LM (batch size {size})", True) for size in (5, 10, 20, 40, 80)),
    *((f"Recommendation (batch size {size})", False) for size in (512, 1024, 2048, 4096, 8192)),
    ("A3C", False),
    ("CycleGAN", False),
)
"""Kinds of jobs, and whether they run on several devices."""
PUBLISHED = {
    ("max-min", 2.0): 23.47, ("max-min", 3.2): 23.59, ("max-min", 4.0): 23.49, ("max-min", 4.8): 35.79,
    ("allox-shares", 2.0): 16.93, ("allox-shares", 3.2): 16.43, ("allox-shares", 4.0): 17.13, ("allox-shares", 4.8): 20.92,
    ("gavel", 2.0): 16.95, ("gavel", 3.2): 16.08, ("gavel", 4.0): 16.82, ("gavel", 4.8): 18.97,
    ("gavel-packed", 2.0): 18.26, ("gavel-packed", 3.2): 16.18, ("gavel-packed", 4.0): 16.96, ("gavel-packed", 4.8): 18.67,
    ("gandiva-packed", 2.0): 17.61, ("gandiva-packed", 3.2): 17.83, ("gandiva-packed", 4.0): 18.88,
    ("gandiva-packed", 4.8): 30.46,
}  # fmt: skip
"""Mean completion time in hours, one device a job, by jobs an hour."""
PUBLISHED_MAKESPAN = {("gavel-makespan", 100): 161.2, ("gavel-makespan", 300): 161.2, ("gavel-makespan", 500): 169.4}
"""Hours, several devices a job."""


@dataclass(frozen=True)
class Cell:
    """One cell of a table, in hours."""

    policy: str
    load: float
    """Jobs an hour; or the number of jobs that are there at the start."""
    seed: int
    hours: float
    published: float
    error: float


def cluster() -> ClusterSpec:
    """36 of each, one device a node, no cost of restarts, shares at most every 1,920 s: as its simulation."""
    groups = tuple(NodeGroup(kind, 36, 1) for kind in ("v100", "p100", "k80"))
    return ClusterSpec(groups, round_s=360.0, recompute_s=1920.0)


def drawn(rates: RateTable, count: int, per_hour: float, seed: int, several: bool = False) -> list[TrainingJob]:
    """Jobs of the generator; `per_hour` 0 has all of them there at the start."""
    jobs, gaps = random.Random(seed + 2), random.Random(seed + 3)
    found, now = list[TrainingJob](), 0.0
    for number in range(count):
        devices = _devices(jobs)  # drawn always, and in this order, so that seeds give the published jobs
        minutes = 10 ** jobs.uniform(3, 4) if jobs.random() >= 0.8 else 10 ** jobs.uniform(1.5, 3)
        devices = devices if several else 1
        kind, distributed = jobs.choice(KINDS)
        while devices > 1 and not distributed:
            kind, distributed = jobs.choice(KINDS)
        here = dict(rates.of(kind, devices))
        phases = (WorkPhase(60.0 * minutes * here["v100"], here),)
        found.append(
            TrainingJob(f"job {number}", now, phases, devices, kind=kind, together=rates.together(kind, devices))
        )
        now += -math.log(1.0 - gaps.random()) * 3600.0 / per_hour if per_hour else 0.0
    return found


def _devices(random_: random.Random) -> int:
    drawn_ = random_.uniform(0, 1)
    return 1 if drawn_ < 0.7 else 2 if drawn_ < 0.8 else 4 if drawn_ < 0.95 else 8


def mean_jct(rates: Path, policy: str, per_hour: float, seed: int, jobs: int = 5000, measured: int = 1000) -> Cell:
    """A cell of the table of completion times, over the last `measured` jobs, while others keep coming."""
    spec = cluster()
    some = drawn(read_rates(rates, spec.kinds), jobs + jobs // 2, per_hour, seed)
    window = frozenset(range(jobs - measured, jobs))
    loop = EventLoop(some, spec, find_policy(policy).make(some, spec), ExactLengths(), False, window)
    found = loop.run()
    hours = sum(found.states[n].finish_s - found.states[n].job.submit_s for n in window) / len(window) / 3600
    published = PUBLISHED.get((policy, per_hour), math.nan)
    return Cell(policy, per_hour, seed, hours, published, hours / published - 1)


def makespan(rates: Path, policy: str, count: int, seed: int = 1) -> Cell:
    """A cell of the table of makespans."""
    spec = cluster()
    some = drawn(read_rates(rates, spec.kinds), count, 0.0, seed, several=True)
    found = EventLoop(some, spec, find_policy(policy).make(some, spec), ExactLengths(), False).run()
    hours = max(state.finish_s for state in found.states) / 3600
    published = PUBLISHED_MAKESPAN.get((policy, count), math.nan)
    return Cell(policy, count, seed, hours, published, hours / published - 1)
